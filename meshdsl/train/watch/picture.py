"""Curves as a PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.train.watch.curves import Panel
from meshdsl.train.watch.elsewhere import extra
from meshdsl.train.watch.style import COLOURS, DASHES, MARKS, style


def save_png(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels, one below the other.

    Raises:
      MeshDSLError: matplotlib is not installed, or the file cannot be written.
    """
    extra("matplotlib", "plot", f"--out {path}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2 * len(panels)), layout="constrained", dpi=150)
    runs = list(dict.fromkeys(curve.run for panel in panels for curve in panel.curves))
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel, runs)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MeshDSLError(f"{path}: {error.strerror}") from None


def _draw(axes, panel: Panel, runs: list[str]) -> None:
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    for curve in panel.curves:
        colour, dash = style(runs.index(curve.run))
        how = {"color": COLOURS[colour], "linestyle": DASHES[dash][0]}
        if curve.raw:
            axes.plot(curve.raw.x, curve.raw.y, linewidth=0.8, alpha=0.25, **how)
        alone = {"marker": "o", "markersize": 4} if len(curve.line.x) == 1 else {}
        axes.plot(curve.line.x, curve.line.y, linewidth=1.5, label=curve.run, **how, **alone)
        for name, points in curve.validation.items():
            mark = MARKS[datasets.index(name) % len(MARKS)][0]
            label = " ".join(filter(None, (curve.run, "validation", name)))
            axes.plot(points.x, points.y, mark, color=COLOURS[colour], markerfacecolor="white", markersize=5.5, markeredgewidth=1.4, label=label)
    axes.set_xlabel(panel.x_words)
    axes.set_ylabel(panel.y_words)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#d9dde2", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
