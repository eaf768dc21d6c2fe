"""How a mesh axis lies on the machine, as a small picture beside the words that say it."""

from __future__ import annotations

from math import cos, pi, sin

from meshdsl.report.page.markup import Markup, svg, tag


def link_picture(words: str, size: int) -> Markup | None:
    """A ring, a line, a block of the torus or a switch that joins devices; None for other links.

    Args:
      words: how the axis lies on the machine, as `Network.words` tells it; their beginning decides.
      size: of the axis. At most 16 devices are drawn.
    """
    first = words.partition(";")[0]
    kind = next((kind for word, kind in _KINDS if word in first), None)
    if kind is None or size < 2:
        return None
    n = min(size, 16 if kind == "block" else 12)
    points = _DRAWN[kind](n)
    lines = [(points[i], points[i + 1]) for i in range(n - 1)]
    if kind == "ring" and n > 2:
        lines.append((points[-1], points[0]))
    if kind == "switch":
        lines = [((26, 26), point) for point in points]
    if kind == "block":
        lines = [
            (a, b)
            for a in points
            for b in points
            if a < b
            and (a[0] == b[0]) != (a[1] == b[1])
            and abs(a[0] - b[0]) + abs(a[1] - b[1]) < 16
        ]
    path = "".join(f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in lines)
    dots = [tag("circle", cx=x, cy=y, r=3.2, class_="node") for x, y in points]
    hub = (
        tag("rect", x=20, y=20, width=12, height=12, rx=2, class_="hub")
        if kind == "switch"
        else None
    )
    return svg(
        f"{size:,} devices on a {kind}",
        52,
        52,
        tag("path", d=path, class_="arrow"),
        dots,
        hub,
        class_="links",
    )


def _around(n: int) -> list[tuple[float, float]]:
    return [(26 + 20 * sin(2 * pi * i / n), 26 - 20 * cos(2 * pi * i / n)) for i in range(n)]


def _along(n: int) -> list[tuple[float, float]]:
    return [(4 + 44 * i / (n - 1), 26.0) for i in range(n)]


def _grid(n: int) -> list[tuple[float, float]]:
    return [(4.0 + 14.5 * (i % 4), 4.0 + 14.5 * (i // 4)) for i in range(n)]


_DRAWN = {"ring": _around, "line": _along, "block": _grid, "switch": _around}
_KINDS = (
    (" by ", "block"),
    ("torus that", "block"),
    ("ring of", "ring"),
    ("line of", "line"),
    ("NVLink", "switch"),
    ("network", "switch"),
    ("InfiniBand", "switch"),
)
