"""Tensors as blocks, with their sizes in all and on one device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshdsl.estimate.explanation import DimView, TensorView
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.block import block_picture
from meshdsl.report.page.markup import Markup, tag

_SHOWN = 18  # tensors before the rest is folded


def tensors(views: Sequence[TensorView], styles: AxisStyles) -> Markup:
    """A card for each tensor, the largest first; those that no screen would show are folded."""
    ordered = sorted(views, key=lambda view: -view.bytes)
    first, more = ordered[:_SHOWN], ordered[_SHOWN:]
    cards = tag("ul", [card(view, styles) for view in first], class_="blocks")
    if not more:
        return cards
    count = page_figures.plural(len(more), "smaller parameter")
    size = page_figures.size(sum(view.bytes for view in more))
    head = tag("summary", f"{count}, {size} on a device")
    return tag(
        "div",
        cards,
        tag(
            "details",
            head,
            tag("ul", [card(view, styles) for view in more], class_="blocks"),
            class_="more",
        ),
    )


def card(view: TensorView, styles: AxisStyles) -> Markup:
    """One tensor: its name, its block, its sizes and its dims."""
    return tag(
        "li",
        tag("p", styles.notation(view.name, view.dims, bare=True), class_="of"),
        block_picture(view.name, view.dims, styles),
        tag("p", size_words(view), class_="said"),
        dims_table(view.dims, styles),
        class_="tensor",
        tabindex="0",
    )


def size_words(view: TensorView) -> list[Markup | str]:
    """`112.0 MiB of 7.00 GiB on a device`."""
    local = max(prod(dim.local for dim in view.dims), 1)
    in_all = view.bytes * prod(dim.size for dim in view.dims) // local
    split = in_all != view.bytes
    rest = f" of {page_figures.size(in_all)} on a device" if split else " whole on every device"
    return [tag("b", page_figures.size(view.bytes)), rest]


def dims_table(
    dims: Sequence[DimView], styles: AxisStyles, names: Sequence[Markup] | None = None
) -> Markup:
    """A table of dims: sizes in all and on a device, and the axes that split each.

    Args:
      names: what to call each; its name, if not given.
    """
    rows = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag("td", f"{dim.size:,}"),
            tag("td", f"{dim.local:,}"),
            tag("td", styles.chips(dim.axes)),
        )
        for dim, name in zip(dims, names or [dim.name for dim in dims], strict=True)
    ]
    headings = ("dim", "whole", "on a device", "split over")
    head = tag("tr", [tag("th", heading, scope="col") for heading in headings])
    return tag("table", tag("thead", head), tag("tbody", rows), class_="nest")
