"""The mesh as a picture: devices in a grid, one of them marked.

Those that it exchanges data with over an axis have the colour of that axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, svg, tag

_CELL, _PITCH = 18, 24  # the width of a device, and from one to the next
_WIDE, _HIGH, _SHEETS = 16, 8, 3  # more devices than these along an axis are drawn with a gap


def mesh_picture(styles: AxisStyles) -> Markup:
    """The picture of the mesh.

    At most two axes lie in the plane, the largest across; the others are sheets behind it.
    """
    live = sorted(
        (name for name, size in styles.sizes.items() if size > 1),
        key=lambda name: -styles.sizes[name],
    )
    across, down, behind = (live[:1] or [""])[0], (live[1:2] or [""])[0], live[2:]
    columns = _shown(styles.sizes.get(across, 1), _WIDE)
    rows = _shown(styles.sizes.get(down, 1), _HIGH)
    sheets = (
        min(_SHEETS, max([styles.sizes[name] - 1 for name in behind], default=0)) if behind else 0
    )
    left, top = (_label_width(down, styles) if down else 8), (34 if across else 8) + 9 * sheets
    wide, high = len(columns) * _PITCH, len(rows) * _PITCH
    parts = [_sheet(left, top, wide, high, i, styles.css(behind[:1])) for i in range(sheets, 0, -1)]
    parts.append(
        tag(
            "rect",
            x=left - 4,
            y=top - 4,
            width=wide + 2,
            height=high + 2,
            rx=5,
            class_="sheet front",
        )
    )
    for j, row in enumerate(rows):
        for i, column in enumerate(columns):
            parts.append(
                _device(
                    styles,
                    left + i * _PITCH,
                    top + j * _PITCH,
                    across if j == 0 else "",
                    down if i == 0 else "",
                    column,
                    row,
                )
            )
    if across:
        parts.append(_arrow_across(left, top - 10 - 9 * sheets, left + wide - 6, styles, across))
    if down:
        parts.append(_arrow_down(left - 12, top, top + high - 6, styles, down))
    for i, name in enumerate(behind):
        x = left + wide + 10 + 9 * sheets
        parts.append(
            tag(
                "text",
                f"{name} {styles.sizes[name]:,}",
                x=x,
                y=top + 4 + 18 * i,
                class_=f"label {styles.css((name,))}",
            )
        )
    right = max(
        [12 + 9 * sheets + 8 * len(f"{name} {styles.sizes[name]:,}") for name in behind], default=0
    )
    return svg(_title(styles, live), left + wide + right + 4, top + high + 4, parts, class_="mesh")


def _title(styles: AxisStyles, live: Sequence[str]) -> str:
    """The picture in words, for those who cannot see it; `live` are the axes larger than 1."""
    if not live:
        return "a mesh of one device"
    peers = " and ".join(f"{styles.sizes[name]:,} over {name}" for name in live)
    devices = prod(styles.sizes.values())
    return f"a mesh of {devices:,} devices; each exchanges data with groups of {peers}"


def _shown(size: int, most: int) -> list[int | None]:
    """The positions to draw along an axis, None for a gap."""
    if size <= most:
        return list(range(size))
    return [*range(most - 3), None, size - 1]


def _label_width(name: str, styles: AxisStyles) -> int:
    return 26 + 8 * max(len(name), len(f"{styles.sizes[name]:,}"))


def _device(
    styles: AxisStyles,
    x: float,
    y: float,
    across: str,
    down: str,
    column: int | None,
    row: int | None,
) -> Markup:
    """A device, or a dot for a gap.

    Args:
      across, down: the axes over which the marked device exchanges data with this one, if any.
      column, row: its position in the mesh; None in a gap.
    """
    if column is None or row is None:
        return tag("circle", cx=x + _CELL / 2, cy=y + _CELL / 2, r=1.5, class_="gap")
    if (across and down) or (column == 0 and row == 0):
        return tag("rect", x=x, y=y, width=_CELL, height=_CELL, rx=3, class_="device this")
    name = across or down
    box = {"x": x, "y": y, "width": _CELL, "height": _CELL, "rx": 3}
    if not name:
        return tag("rect", **box, class_="device")
    return tag(
        "g",
        tag("rect", **box, class_="device peer"),
        tag("rect", **box, fill=styles.fill(name)),
        class_=styles.css((name,)),
    )


def _sheet(left: float, top: float, wide: float, high: float, i: int, css: str) -> Markup:
    """The `i`-th sheet behind the plane."""
    return tag(
        "rect",
        x=left - 4 + 9 * i,
        y=top - 4 - 9 * i,
        width=wide + 2,
        height=high + 2,
        rx=5,
        class_=f"sheet {css}",
    )


def _arrow_across(x: float, y: float, to: float, styles: AxisStyles, name: str) -> Markup:
    """A double arrow above the columns, with the name and size of their axis."""
    heads = f"M{x + 4} {y - 3}L{x} {y}L{x + 4} {y + 3}M{to - 4} {y - 3}L{to} {y}L{to - 4} {y + 3}"
    line = f"M{x} {y}H{to}{heads}"
    label = tag("text", f"{name} {styles.sizes[name]:,}", x=x, y=y - 8, class_="label")
    return tag("g", tag("path", d=line, class_="arrow"), label, class_=styles.css((name,)))


def _arrow_down(x: float, y: float, to: float, styles: AxisStyles, name: str) -> Markup:
    """A double arrow beside the rows, with the name and size of their axis."""
    heads = f"M{x - 3} {y + 4}L{x} {y}L{x + 3} {y + 4}M{x - 3} {to - 4}L{x} {to}L{x + 3} {to - 4}"
    line = f"M{x} {y}V{to}{heads}"
    label = [
        tag("text", what, x=x - 8, y=y + 12 + 16 * i, class_="label end")
        for i, what in enumerate((name, f"{styles.sizes[name]:,}"))
    ]
    return tag("g", tag("path", d=line, class_="arrow"), label, class_=styles.css((name,)))
