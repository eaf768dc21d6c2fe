"""The edges of the flow: a collective as a band, as wide as the square root of its bytes.

A gather opens downwards, a scatter closes, a sum has a waist, an exchange crosses: the shape says
what a label would have to.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod, sqrt

from meshdsl.estimate.explanation import MoveView
from meshdsl.report.page import page_figures
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, svg, tag

# Pixels: the width of the column of the flow, the height of an edge, half the width of the widest.
_SPINE, _EDGE, _WIDEST = 132, 34, 58
_VERBS = {
    "all_gather": "gathers",
    "psum_scatter": "sums and scatters",
    "psum": "sums",
    "pmax": "takes the largest",
    "pmin": "takes the smallest",
    "all_to_all": "exchanges",
    "ppermute": "passes on",
}
# Collectives whose result and operand differ in size by the number of devices.
_NARROW = ("all_gather", "psum_scatter")


def legend(used: Collection[str]) -> Markup | None:
    """A key to the shapes of the collectives that are `used`; None without any."""
    shapes = [(name, what) for name, what in _VERBS.items() if name in used]
    width = 40
    items = [
        tag(
            "li",
            svg(
                f"{name} {what}",
                width,
                22,
                tag(
                    "path",
                    d=_shape(name, width / 2, 22, 15, 5 if name in _NARROW else 15),
                    class_="band",
                ),
                class_="key",
            ),
            tag("code", name),
            f" {what}",
        )
        for name, what in shapes
    ]
    return (
        tag("ul", items, class_="legend", aria_label="shapes of the collectives") if items else None
    )


def line() -> Markup:
    """An edge over which nothing is moved."""
    return tag("div", tag("span", class_="line"), class_="edge plain", aria_hidden="true")


def edge(move: MoveView, widest: int, styles: AxisStyles) -> Markup:
    """An edge with a collective on it.

    Each end is as wide as the square root of the bytes there.

    Args:
      widest: the bytes of the largest collective of the page, which has the full width.
    """
    wide = 2 + _WIDEST * sqrt(move.bytes / max(widest, 1))
    parts = prod(styles.sizes.get(axis, 1) for axis in move.axes)
    narrow = (
        2 + _WIDEST * sqrt(move.bytes / parts / max(widest, 1))
        if move.operation in _NARROW
        else wide
    )
    d = _shape(move.operation, _SPINE / 2, _EDGE, wide, narrow)
    band = [
        tag("path", d=d, class_="band"),
        *(tag("path", d=d, fill=styles.fill(axis)) for axis in move.axes),
    ]
    said = f"{move.operation} over {' and '.join(move.axes)}, {page_figures.size(move.bytes)}"
    picture = svg(
        said,
        _SPINE,
        _EDGE,
        band,
        class_=f"band-picture {styles.css(move.axes)}",
        preserveAspectRatio="none",
    )
    times = f"{move.count:,}\u00a0\u00d7 " if move.count > 1 else ""
    seconds = f", {page_figures.time(move.seconds)}" if move.seconds else ""
    label = tag(
        "span",
        styles.chips(move.axes),
        " ",
        tag("code", move.operation),
        " ",
        tag("span", f"{times}{page_figures.size(move.bytes)}{seconds}", class_="fact"),
        class_="what",
    )
    return tag("div", tag("span", picture, class_="spine"), label, class_="edge")


def _shape(operation: str, x: float, h: float, wide: float, narrow: float) -> str:
    """The path of a band of height `h` around `x`, from above to below.

    It opens for a gather, closes for a scatter, has a waist for a sum and crosses for an exchange.

    Args:
      wide, narrow: half of the width at either end.
    """
    a, b, m = (narrow, wide, h / 2) if operation == "all_gather" else (wide, narrow, h / 2)

    def right(u: float, v: float, y0: float, y1: float) -> str:
        """A curve from `u` to `v` on the right of `x`."""
        middle = (y0 + y1) / 2
        return f"C{x + u:.1f} {middle:.1f} {x + v:.1f} {middle:.1f} {x + v:.1f} {y1:.1f}"

    if operation in ("psum", "pmax", "pmin"):
        waist = max(1.0, wide * 0.35)
        down = right(wide, waist, 0, m) + right(waist, wide, m, h)
        up = right(-wide, -waist, h, m) + right(-waist, -wide, m, 0)
        return f"M{x - wide:.1f} 0H{x + wide:.1f}{down}H{x - wide:.1f}{up}Z"
    if operation == "all_to_all":
        half = wide / 2
        one = (
            f"M{x - wide:.1f} 0H{x - wide + half:.1f}"
            + right(-half, wide, 0, h)
            + f"H{x + half:.1f}"
            + right(half, -wide, h, 0)
            + "Z"
        )
        two = (
            f"M{x + half:.1f} 0H{x + wide:.1f}"
            + right(wide, -half, 0, h)
            + f"H{x - wide:.1f}"
            + right(-wide, half, h, 0)
            + "Z"
        )
        return one + two
    if operation == "ppermute":
        half = wide * 0.6
        return (
            f"M{x - wide:.1f} 0H{x - wide + 2 * half:.1f}"
            + right(-wide + 2 * half, wide, 0, h)
            + f"H{x + wide - 2 * half:.1f}"
            + right(wide - 2 * half, -wide, h, 0)
            + "Z"
        )
    return (
        f"M{x - a:.1f} 0H{x + a:.1f}"
        + right(a, b, 0, h)
        + f"H{x - b:.1f}"
        + right(-b, -a, h, 0)
        + "Z"
    )
