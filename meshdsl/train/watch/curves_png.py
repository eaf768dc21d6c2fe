"""Draws curves as a PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.watch.curves import Panel
from meshdsl.train.watch.style import (
    COLOURS,
    DASHES,
    MARKS,
    interleaved_dashes,
    mark_sizes,
    style,
)

_LINE, _MARK = 1.5, 5.5  # points: the width of a curve and of a mark


def save_png(panels: Sequence[Panel], path: Path) -> None:
    """Write a PNG with the panels, one below the other.

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
        colour, dash = style(runs.index(curve.run))
        how = {"color": COLOURS[colour], "linestyle": DASHES[dash][0]}
        if curve.raw:
            axes.plot(curve.raw.x, curve.raw.y, linewidth=0.8, alpha=0.25, **how)
        alone = {"marker": "o", "markersize": 4} if len(curve.line.x) == 1 else {}
        axes.plot(curve.line.x, curve.line.y, linewidth=_LINE, label=curve.run, **how, **alone)
    _draw_interleaved(axes, panel, runs)
    _draw_marks(axes, panel, runs)
    axes.set_xlabel(panel.x_words)
    axes.set_ylabel(panel.y_words)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#d9dde2", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)


def _draw_interleaved(axes: Any, panel: Panel, runs: list[str]) -> None:
    """Draw solid curves once more as dashes that follow each other, so that none hides another."""
    solid = [curve for curve in panel.curves if not style(runs.index(curve.run))[1]]
    for i, curve in enumerate(solid if len(solid) > 1 else []):
        colour, _ = style(runs.index(curve.run))
        # Matplotlib counts dashes in widths of the line.
        dash, gap, begin = (length / _LINE for length in interleaved_dashes(i, len(solid)))
        how = {"linestyle": (begin, (dash, gap)), "dash_capstyle": "butt", "linewidth": _LINE}
        axes.plot(curve.line.x, curve.line.y, color=COLOURS[colour], **how)


def _draw_marks(axes: Any, panel: Panel, runs: list[str]) -> None:
    """Draw a mark for each value on held-out text; those at the same place become rings."""
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    drawn = [
        (curve.run, name, x, y)
        for curve in panel.curves
        for name, points in curve.validation.items()
        for x, y in zip(points.x, points.y, strict=True)
    ]
    if not drawn:
        return
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    positions = [(900 * (x - x0) / (x1 - x0), 400 * (y - y0) / (y1 - y0)) for _, _, x, y in drawn]
    labelled: set[str] = set()
    for (run, name, x, y), size in zip(drawn, mark_sizes(positions), strict=True):
        mark = MARKS[datasets.index(name) % len(MARKS)][0]
        text = " ".join(filter(None, (run, "validation", name)))
        how = {"color": COLOURS[style(runs.index(run))[0]], "markerfacecolor": "white"}
        how |= {"marker": mark, "linestyle": "", "markeredgewidth": 1.4}
        axes.plot(x, y, **how, markersize=_MARK * size)
        if text not in labelled:  # the legend has each mark once, in one size
            axes.plot([], [], **how, markersize=_MARK, label=text)
            labelled.add(text)
