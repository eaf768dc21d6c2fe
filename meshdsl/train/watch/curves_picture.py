"""Draws curves as a picture, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.watch.curves import Curve, Panel

ENDINGS = (".png", ".svg", ".pdf")
"""The endings of files that a picture can be written to."""

COLOURS = ("#1b5bb8", "#b3470a", "#0b6e5f", "#86388f", "#765f00", "#3f4a8f")
_DASHES = ("-", "--", ":", "-.")
_MARKS = ("o", "s", "^", "D")  # of held-out datasets
_LINE, _MARK = 1.5, 5.5  # points: the width of a curve and of a mark
_DASH = 8.0  # the length of a dash of `interleaved_dashes`, in widths of a curve
_RING = 0.5  # how much a mark grows for each other mark that lies on it, relative to its size


def save_picture(panels: Sequence[Panel], path: Path) -> None:
    """Write a picture with the panels, one below the other.

    Args:
      path: a file whose ending is one of ENDINGS.

    Raises:
      MeshDSLError: matplotlib is not installed, or the file cannot be written.
    """
    with extra("plot", f"--out {path}"):
        from matplotlib import figure as figures
    figure = figures.Figure(figsize=(9, 4.2 * len(panels)), layout="constrained", dpi=150)
    runs = list(dict.fromkeys(curve.run for panel in panels for curve in panel.curves))
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel, runs)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None


def _draw(axes: Any, panel: Panel, runs: list[str]) -> None:
    for curve in panel.curves:
        look = _look(runs.index(curve.run))
        if curve.raw:
            axes.plot(curve.raw.x, curve.raw.y, linewidth=0.8, alpha=0.25, **look)
        alone = {"marker": "o", "markersize": 4} if len(curve.line.x) == 1 else {}
        axes.plot(curve.line.x, curve.line.y, linewidth=_LINE, label=_label(curve), **look, **alone)
    _draw_interleaved(axes, panel, runs)
    _draw_marks(axes, panel, runs)
    axes.set_xlabel(panel.x_words, parse_math=False)
    axes.set_ylabel(panel.y_words, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#d9dde2", linewidth=0.6)
    for text in axes.legend(frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)  # a `$` in the name of a run is a `$`


def _label(curve: Curve, dataset: str | None = None) -> str:
    """What the legend says of a curve, or of the marks of a held-out dataset beside the curve."""
    points, name = curve.line, curve.run
    if dataset is not None:
        points, name = curve.validation[dataset], f"{name}, validation {dataset}".rstrip()
    end = f"{points.y[-1]:.5g} at the end" if len(points.y) else "no finite value"
    return f" {name}: {end}"  # matplotlib leaves out labels that begin with an underscore


def _look(run: int) -> dict[str, str]:
    """The colour and the dashes of a run; with more runs than colours the dashes differ.

    Args:
      run: its number in the picture.
    """
    dashes = _DASHES[run // len(COLOURS) % len(_DASHES)]
    return {"color": COLOURS[run % len(COLOURS)], "linestyle": dashes}


def _draw_interleaved(axes: Any, panel: Panel, runs: list[str]) -> None:
    """Draw solid curves once more as dashes that follow each other, so that none hides another."""
    looks = [(curve, _look(runs.index(curve.run))) for curve in panel.curves]
    solid = [(curve, look["color"]) for curve, look in looks if look["linestyle"] == "-"]
    for i, (curve, colour) in enumerate(solid if len(solid) > 1 else []):
        dash, gap, begin = interleaved_dashes(i, len(solid))
        how = {"linestyle": (begin, (dash, gap)), "dash_capstyle": "butt", "linewidth": _LINE}
        axes.plot(curve.line.x, curve.line.y, color=colour, **how)


def interleaved_dashes(index: int, curves: int) -> tuple[float, float, float]:
    """The dashes with which a curve is drawn a second time, above all curves.

    The dashes of curve 0, 1, 2, ... follow each other. So curves that coincide show their colours
    in turn, for as long as they do. On a curve that lies alone the dashes cannot be seen.

    Args:
      index: of the curve.
      curves: how many there are.

    Returns:
      The length of a dash, that of a gap, and the offset at which they begin, in widths of a curve.
    """
    return _DASH, _DASH * (curves - 1), _DASH * (-index % curves)


def _draw_marks(axes: Any, panel: Panel, runs: list[str]) -> None:
    """Draw a mark for each value on held-out text; those at the same place become rings."""
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    drawn = [
        (curve, name, x, y)
        for curve in panel.curves
        for name, points in curve.validation.items()
        for x, y in zip(points.x, points.y, strict=True)
    ]
    if not drawn:
        return
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    positions = [(900 * (x - x0) / (x1 - x0), 400 * (y - y0) / (y1 - y0)) for _, _, x, y in drawn]
    labelled: set[str] = set()
    for (curve, name, x, y), size in zip(drawn, mark_sizes(positions), strict=True):
        how = {"color": _look(runs.index(curve.run))["color"], "markerfacecolor": "white"}
        how |= {"marker": _MARKS[datasets.index(name) % len(_MARKS)], "linestyle": ""}
        how |= {"markeredgewidth": 1.4}
        axes.plot(x, y, **how, markersize=_MARK * size)
        if (text := _label(curve, name)) not in labelled:  # the legend has each mark in one size
            axes.plot([], [], **how, markersize=_MARK, label=text)
            labelled.add(text)


def mark_sizes(positions: Sequence[tuple[float, float]]) -> list[float]:
    """How large each mark is, so that marks at the same place are rings around the later ones.

    Args:
      positions: of the marks, in hundredths of an inch, in the order in which they are drawn.
    """
    cells = [(round(float(x)), round(float(y))) for x, y in positions]
    later = [cells[i + 1 :].count(cell) for i, cell in enumerate(cells)]
    return [1 + _RING * count for count in later]
