"""One tensor as a block, divided along its dims by the axes of the mesh that split it.

At most three dims have a direction: across, down and into the page. Those that are split come
first, then the largest; the others are named below the picture. Lengths are not to scale, because a
dim of 128,256 beside one of 32 would leave nothing to see. Divisions are: there are as many pieces
as devices along the axis, up to a number that can still be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

from meshdsl.estimate.explanation import DimView
from meshdsl.report.page.axis_styles import AxisStyles
from meshdsl.report.page.markup import Markup, svg, tag

_MOST = 16  # pieces that are drawn along a dim
_SLANT = 0.5
_LETTER = 6.7  # the width of a letter of a label, about


def block_picture(name: str, dims: Sequence[DimView], styles: AxisStyles) -> Markup:
    """The block of a tensor `name` with these `dims`; the piece of the first device is filled."""
    across, down, into = _directions(dims)
    wide = _length(across, 60, 136) if across else 40
    high = _length(down, 44, 112) if down else 26
    deep = _length(into, 14, 40) if into else 10
    left, top = 10, deep * _SLANT + 24
    dx, dy = deep * _SLANT * 1.4, deep * _SLANT
    parts = [
        tag(
            "path",
            d=f"M{left} {top}l{dx:.1f} {-dy:.1f}h{wide}l{-dx:.1f} {dy:.1f}z",
            class_="face top",
        ),
        tag(
            "path",
            d=f"M{left + wide} {top}l{dx:.1f} {-dy:.1f}v{high}l{-dx:.1f} {dy:.1f}z",
            class_="face side",
        ),
        tag("rect", x=left, y=top, width=wide, height=high, class_="face"),
        _piece(left, top, wide, high, across, down, into, (dx, dy), styles),
    ]
    if across:
        parts += _dividers(
            across,
            styles,
            lambda t: f"M{left + t * wide:.1f} {top + high:.1f}v{-high}l{dx:.1f} {-dy:.1f}",
        )
    if down:
        parts += _dividers(
            down, styles, lambda t: f"M{left} {top + t * high:.1f}h{wide}l{dx:.1f} {-dy:.1f}"
        )
    if into:
        parts += _dividers(
            into, styles, lambda t: f"M{left + t * dx:.1f} {top - t * dy:.1f}h{wide}v{high}"
        )
    front = f"M{left} {top}h{wide}v{high}h{-wide}z"
    behind = (
        f"M{left} {top}l{dx:.1f} {-dy:.1f}h{wide}l{-dx:.1f} {dy:.1f}"
        f"m{dx:.1f} {-dy:.1f}v{high}l{-dx:.1f} {dy:.1f}"
    )
    parts.append(tag("path", d=front + behind, class_="outline"))
    labels, right = _labels(across, down, into, left, top, wide, high, dx, dy, styles)
    return svg(
        _title(name, dims, styles),
        max(left + wide + dx + right + 6, 150),
        top + high + 26,
        parts,
        labels,
        class_="block",
    )


def _title(name: str, dims: Sequence[DimView], styles: AxisStyles) -> str:
    """The picture in words, for those who cannot see it."""
    splits = [
        f"{dim.name} of {dim.size:,} in {styles.pieces(dim):,} over {' and '.join(dim.axes)}"
        for dim in dims
        if dim.axes
    ]
    return f"{name}: {'; '.join(splits) if splits else 'whole on every device'}"


def _directions(dims: Sequence[DimView]) -> tuple[DimView | None, DimView | None, DimView | None]:
    """The dims that lie across, down and into the page.

    These are dims that are split, then large ones. Of the first two the later one lies across.
    """
    ranked = sorted(range(len(dims)), key=lambda i: (not dims[i].axes, -dims[i].size))
    plane = sorted(ranked[:2])
    into = dims[ranked[2]] if len(ranked) > 2 else None
    if not plane:
        return None, None, None
    return dims[plane[-1]], dims[plane[0]] if len(plane) > 1 else None, into


def _length(dim: DimView, least: float, most: float) -> float:
    """How long the edge of a dim is drawn: it grows with the logarithm of the size."""
    return round(min(most, least + (most - least) * log2(max(dim.size, 1)) / 17))


def _pieces(dim: DimView | None, styles: AxisStyles) -> int:
    """Into how many pieces the edge of a dim is divided."""
    return min(_MOST, styles.pieces(dim)) if dim else 1


def _piece(left, top, wide, high, across, down, into, slant, styles: AxisStyles) -> list[Markup]:
    """The part of the first device, in the colours of all axes that split the tensor.

    Nothing where it is whole.
    """
    by = [axis for dim in (down, across, into) if dim for axis in dim.axes]
    if not by:
        return []
    w, h = wide / _pieces(across, styles), high / _pieces(down, styles)
    t = 1 / _pieces(into, styles)
    dx, dy = slant[0] * t, slant[1] * t
    faces = [
        f"M{left} {top:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z",
        f"M{left} {top:.1f}l{dx:.1f} {-dy:.1f}h{w:.1f}l{-dx:.1f} {dy:.1f}z",
    ]
    if w == wide:
        faces.append(f"M{left + w:.1f} {top:.1f}l{dx:.1f} {-dy:.1f}v{h:.1f}l{-dx:.1f} {dy:.1f}z")
    d = "".join(faces)
    parts = [tag("path", d=d, class_=f"piece {styles.css((by[0],))}")]
    return parts + [tag("path", d=d, fill=styles.fill(axis)) for axis in dict.fromkeys(by)]


def _dividers(dim: DimView, styles: AxisStyles, line: Callable[[float], str]) -> list[Markup]:
    """The lines between the pieces of a dim, those of its first axis strongest.

    Args:
      line: the path of the line at a share of the way along the edge.
    """
    found, pieces = [], 1
    for depth, axis in enumerate(dim.axes):
        before, pieces = pieces, min(_MOST, pieces * styles.sizes.get(axis, 1))
        drawn = set()  # by an axis before
        if before > 1 and pieces % before == 0:
            drawn = {i * pieces // before for i in range(before)}
        d = "".join(line(i / pieces) for i in range(1, pieces) if i not in drawn)
        if d:
            found.append(
                tag("path", d=d, class_=f"cut {styles.css((axis,))}" + (" minor" if depth else ""))
            )
    return found


def _labels(
    across, down, into, left, top, wide, high, dx, dy, styles: AxisStyles
) -> tuple[list[Markup], float]:
    """The names and sizes along the edges, and the room that they need on the right."""
    labels, right = [], 0.0
    if across:
        labels.append(_label(across, left, top + high + 16, styles))
        right = max(0.0, _text_width(across, styles) - wide - dx)
    if down:
        labels.append(
            _label(
                down,
                left + wide + dx + 6,
                top - dy + high / 2 - (4 if down.axes else -4),
                styles,
                stacked=True,
            )
        )
        right = max(right, 8 + max(_LETTER * len(line) for line in _label_texts(down, styles)))
    if into:
        labels.append(_label(into, left + dx, top - dy - 7, styles))
        right = max(right, _text_width(into, styles) - wide)
    return labels, right


def _label_texts(dim: DimView, styles: AxisStyles) -> tuple[str, str]:
    """A dim and its size, and into how many parts which axes split it: `d_ff 64`, ` / 4 model`."""
    split = f" / {styles.pieces(dim):,} {' '.join(dim.axes)}" if dim.axes else ""
    return f"{dim.name} {dim.size:,}", split.replace(" ", "\u00a0")


def _text_width(dim: DimView, styles: AxisStyles) -> float:
    return _LETTER * len("".join(_label_texts(dim, styles)))


def _label(
    dim: DimView, x: float, y: float, styles: AxisStyles, *, stacked: bool = False
) -> Markup:
    """The label of a dim; where it is `stacked`, the axes stand in a second line."""
    plain, split = _label_texts(dim, styles)
    split = split.lstrip("\u00a0") if stacked else split
    below = {"x": x, "dy": 15} if stacked else {}
    return tag(
        "text",
        plain,
        tag("tspan", split, class_=f"by {styles.css(dim.axes)}", **below) if split else None,
        x=x,
        y=y,
        class_="label small",
    )
