"""The memory of one device: what lives at the peak, and what is at rest by kind and by name."""

from __future__ import annotations

from collections.abc import Sequence

from meshdsl.estimate.explanation import Explanation, MemoryView, TensorView
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, tag

KINDS = ("parameter", "optimizer", "gradient", "batch", "other", "activation")
_KIND_NAMES = {
    "parameter": "parameters",
    "optimizer": "optimizer state",
    "gradient": "gradients",
    "batch": "batch",
    "other": "other",
    "activation": "activations",
}
_LISTED = 60  # arrays of a kind that are listed by name


def arrays(explanation: Explanation, styles: AxisStyles) -> list[Markup | None]:
    """The largest arrays at the peak, and those at rest by kind."""
    return [_peak(explanation.memory, styles), _at_rest(explanation.memory, styles)]


def gauge(view: MemoryView) -> Markup:
    """The arguments by kind and the rest of the peak in one bar, with the capacity as a line."""
    scale = max(view.peak, view.arguments, view.capacity or 0, 1)
    parts = [(kind, view.total(kind)) for kind in KINDS if kind != "gradient" and view.total(kind)]
    rest = max(view.peak - sum(n for _, n in parts), 0)
    parts = [*parts, ("activation", rest)]
    bars = [
        tag(
            "span",
            class_=f"part {kind}",
            style=f"width:{100 * n / scale:.3f}%",
            title=f"{_legend_name(kind)}: {page_figures.size(n)}",
        )
        for kind, n in parts
        if n
    ]
    line = None
    if view.capacity:
        line = tag(
            "span",
            class_="capacity",
            style=f"left:{100 * view.capacity / scale:.3f}%",
            title=f"capacity: {page_figures.size(view.capacity)}",
        )
    items = [
        tag(
            "li",
            tag("span", class_=f"part {kind}"),
            _legend_name(kind),
            " ",
            tag("b", page_figures.size(n)),
        )
        for kind, n in parts
        if n
    ]
    if view.capacity:
        items.append(
            tag(
                "li",
                tag("span", class_="part capacity-key"),
                "capacity ",
                tag("b", page_figures.size(view.capacity)),
            )
        )
    label = f"peak {page_figures.size(view.peak)}" + (
        f" of {page_figures.size(view.capacity)}" if view.capacity else ""
    )
    bar = tag(
        "div",
        bars,
        line,
        class_="stack" + (" over" if view.fits is False else ""),
        role="img",
        aria_label=label,
    )
    return tag("div", bar, tag("ul", items, class_="legend"), class_="gauge")


def _legend_name(kind: str) -> str:
    """What the gauge calls a kind: its rest of the peak stands under `activation`."""
    return "gradients and activations at the peak" if kind == "activation" else _KIND_NAMES[kind]


def _peak(view: MemoryView, styles: AxisStyles) -> Markup | None:
    """The largest arrays at the peak; None where they are not known."""
    if not view.largest:
        return None
    at = [" It is reached in ", tag("code", view.at_peak), "."] if view.at_peak else []
    return tag(
        "div",
        tag("h3", "The peak"),
        tag(
            "p",
            "The most that lives at once is ",
            tag("b", page_figures.size(view.peak)),
            ", an estimate.",
            at,
            " The largest arrays then:",
            class_="said",
        ),
        _bars(view.largest, view.largest[0].bytes, styles, detailed=True),
        class_="arrays",
    )


def _at_rest(view: MemoryView, styles: AxisStyles) -> Markup:
    """The arrays at rest, a folded list for each kind."""
    kinds = [kind for kind in KINDS if view.total(kind)]
    largest = max((t.bytes for t in view.at_rest), default=1)
    groups = []
    for kind in kinds:
        arrays = sorted((t for t in view.at_rest if t.kind == kind), key=lambda t: -t.bytes)
        head = [
            tag("span", class_=f"part {kind}"),
            tag("b", _KIND_NAMES[kind]),
            " ",
            page_figures.size(view.total(kind)),
            tag("span", f" in {page_figures.plural(len(arrays), 'array')}", class_="quiet"),
        ]
        more = arrays[_LISTED:]
        count = page_figures.plural(len(more), "smaller array")
        size = page_figures.size(sum(t.bytes for t in more))
        groups.append(
            tag(
                "details",
                tag("summary", head),
                _bars(arrays[:_LISTED], largest, styles),
                tag("p", f"and {count} of {size}", class_="quiet") if more else None,
                class_="more kind",
                open=kind == "parameter",
            )
        )
    said = [
        "The step is called with ",
        tag("b", page_figures.size(view.arguments)),
        " of arguments",
    ]
    gradients = view.total("gradient")
    said += (
        [", and its gradients are ", tag("b", page_figures.size(gradients)), " more."]
        if gradients
        else ["."]
    )
    return tag("div", tag("h3", "At rest"), tag("p", said, class_="said"), groups, class_="arrays")


def _bars(
    arrays: Sequence[TensorView], largest: int, styles: AxisStyles, *, detailed: bool = False
) -> Markup:
    """A bar for each array.

    Args:
      largest: the bytes of a bar of the full width.
      detailed: below each bar it says what the array is.
    """
    rows = []
    for array in arrays:
        bar = tag(
            "span",
            tag(
                "span",
                class_=f"part {array.kind}",
                style=f"width:{100 * array.bytes / max(largest, 1):.2f}%",
            ),
            class_="rail",
        )
        below = tag(
            "span",
            _KIND_NAMES.get(array.kind, array.kind),
            f", {page_figures.product(array.shape)} {array.dtype} ",
            tag("span", array.source, class_="source"),
            class_="below quiet",
        )
        name = styles.notation(array.name, array.dims, bare=True)
        rows.append(
            tag(
                "li",
                tag("span", name, class_="of"),
                bar,
                tag("b", page_figures.size(array.bytes), class_="figure"),
                below if detailed else None,
            )
        )
    return tag("ol", rows, class_="bars")
