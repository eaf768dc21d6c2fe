"""How a run looks in every picture: a colour, and dashes where there are more runs than colours."""

from __future__ import annotations

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


def style(run: int) -> tuple[int, int]:
    """Colour and dashes of the run with that number, as indices."""
    return run % len(COLOURS), run // len(COLOURS) % len(DASHES)
