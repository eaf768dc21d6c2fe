"""How a run looks in every picture: its colour, dashes, and marks of its validation."""

from __future__ import annotations

from collections.abc import Sequence

# The same as `--axis0` and so on in base.css of the pages, on light paper.
COLOURS = ("#1b5bb8", "#b3470a", "#0b6e5f", "#86388f", "#765f00", "#3f4a8f")
# Each for matplotlib and for SVG.
DASHES = (("-", ""), ("--", "7 4"), (":", "2 3"), ("-.", "8 3 2 3"))
# Marks of held-out datasets, each for matplotlib and as an SVG path around 0, 0.
MARKS = (
    ("o", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"),
    ("s", "M-3.6-3.6h7.2v7.2h-7.2z"),
    ("^", "M0-4.6 4.4 3.4h-8.8z"),
    ("D", "M0-5 5 0 0 5-5 0z"),
)


_PIECE = 12.0  # pixels: the length of a dash of `interleaved_dashes`
_RING = 0.5  # how much a mark grows for each other mark that lies on it, relative to its size


def interleaved_dashes(index: int, curves: int) -> tuple[float, float, float]:
    """The dashes with which a curve is drawn a second time, above all curves.

    The dashes of curve 0, 1, 2, ... follow each other. So curves that coincide show their colours
    in turn, for as long as they do. On a curve that lies alone the dashes cannot be seen.

    Args:
      index: of the curve.
      curves: how many there are.

    Returns:
      The length of a dash, that of a gap, and the offset at which they begin, in pixels.
    """
    return _PIECE, _PIECE * (curves - 1), _PIECE * (-index % curves)


def mark_sizes(positions: Sequence[tuple[float, float]]) -> list[float]:
    """How large each mark is, so that marks at the same place are rings around the later ones.

    Args:
      positions: of the marks, in pixels, in the order in which they are drawn.
    """
    cells = [(round(float(x)), round(float(y))) for x, y in positions]
    later = [cells[i + 1 :].count(cell) for i, cell in enumerate(cells)]
    return [1 + _RING * count for count in later]


def style(run: int) -> tuple[int, int]:
    """The colour and the dashes of a run, as indices; with more runs than colours dashes differ.

    Args:
      run: its number in the picture.
    """
    return run % len(COLOURS), run // len(COLOURS) % len(DASHES)
