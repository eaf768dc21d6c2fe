"""How a run looks in every picture: a colour, and dashes where there are more runs than colours."""

from __future__ import annotations

from collections.abc import Sequence

# As `--axis0` and so on of the pages' base.css, on light paper.
COLOURS = ("#1b5bb8", "#b3470a", "#0b6e5f", "#86388f", "#765f00", "#3f4a8f")
DASHES = (("-", ""), ("--", "7 4"), (":", "2 3"), ("-.", "8 3 2 3"))  # for matplotlib, for SVG
# Marks of held-out datasets: for matplotlib, and as an SVG path around 0, 0.
MARKS = (
    ("o", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"),
    ("s", "M-3.6-3.6h7.2v7.2h-7.2z"),
    ("^", "M0-4.6 4.4 3.4h-8.8z"),
    ("D", "M0-5 5 0 0 5-5 0z"),
)


_PIECE = 12.0  # length of a piece of a curve that others may cover, in pixels
_RING = 0.5  # by how much of its size a mark grows for each one that lies on it


def pieces(place: int, curves: int) -> tuple[float, float, float]:
    """The part of a curve that is drawn again, above all: a dash, a gap, and where they begin.

    Each of so many `curves` has every so many-th piece of its length, so that curves that coincide
    show their colours in turn, for as long as they do. On a curve that lies alone nothing is seen.
    """
    return _PIECE, _PIECE * (curves - 1), _PIECE * (-place % curves)


def mark_sizes(places: Sequence[tuple[float, float]]) -> list[float]:
    """How large each mark is drawn, one after another: rings around those that come later there.

    Args:
      places: where the marks are, in pixels.
    """
    cells = [(round(float(x)), round(float(y))) for x, y in places]
    later = [cells[i + 1 :].count(cell) for i, cell in enumerate(cells)]
    return [1 + _RING * count for count in later]


def style(run: int) -> tuple[int, int]:
    """Colour and dashes of the run with that number, as indices."""
    return run % len(COLOURS), run // len(COLOURS) % len(DASHES)
