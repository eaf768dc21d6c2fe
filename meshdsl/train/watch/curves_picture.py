"""Draws curves as a picture, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshdsl.errors import system_errors_say
from meshdsl.extras import extra
from meshdsl.train.watch.curves import Curve, Panel

ENDINGS = (".png", ".svg", ".pdf")
"""The endings of files that a picture can be written to."""

COLOURS = ("#1b5bb8", "#b3470a", "#0b6e5f", "#86388f", "#765f00", "#3f4a8f")
_DASHES = ("-", "--", ":", "-.")
_MARKS = ("o", "s", "^", "D")  # of held-out datasets
_LINE, _MARK = 1.5, 5.5  # points: the width of a curve and of a mark
_DASH = 8.0  # the length of a dash of curves that coincide, in widths of a curve
_RING = 0.3  # how much a mark grows for each dataset that is drawn after it, relative to its size


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
    with system_errors_say(path):
        figure.savefig(path)


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
    """Draw solid curves once more as dashes that follow each other, so that none hides another.

    Curves that coincide show their colours in turn, for as long as they do.
    """
    looks = [(curve, _look(runs.index(curve.run))) for curve in panel.curves]
    solid = [(curve, look["color"]) for curve, look in looks if look["linestyle"] == "-"]
    for i, (curve, colour) in enumerate(solid if len(solid) > 1 else []):
        dashes = (_DASH * (-i % len(solid)), (_DASH, _DASH * (len(solid) - 1)))
        how = {"linestyle": dashes, "dash_capstyle": "butt", "linewidth": _LINE}
        axes.plot(curve.line.x, curve.line.y, color=colour, **how)


def _draw_marks(axes: Any, panel: Panel, runs: list[str]) -> None:
    """Draw a mark for each value on held-out text; earlier ones are rings around later ones."""
    datasets = list(dict.fromkeys(name for curve in panel.curves for name in curve.validation))
    drawn = [(curve, name) for curve in panel.curves for name in curve.validation]
    for later, (curve, name) in zip(reversed(range(len(drawn))), drawn, strict=True):
        how = {"color": _look(runs.index(curve.run))["color"], "markerfacecolor": "white"}
        how |= {"marker": _MARKS[datasets.index(name) % len(_MARKS)], "linestyle": ""}
        how |= {"markeredgewidth": 1.4, "markersize": _MARK * (1 + _RING * min(later, 4))}
        points = curve.validation[name]
        axes.plot(points.x, points.y, **how, label=_label(curve, name))
