"""Draws a rehearsal: goodput over the interval between checkpoints, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshdsl.errors import system_errors_say
from meshdsl.extras import extra
from meshdsl.rehearsal.options import Rehearsal, Row
from meshdsl.rehearsal.simulate import CAUSES
from meshdsl.rehearsal.text import name_of
from meshdsl.train.watch.curves_picture import COLOURS

_STEPS = "#c9d3e0"  # of steps that count, which are most of each bar


def save_rehearsal(
    rehearsal: Rehearsal,
    set_row: Row,
    rows: Sequence[Row],
    path: Path,
) -> None:
    """Write a picture of a rehearsal.

    Args:
      path: a file whose ending is one of `curves_picture.ENDINGS`.

    Raises:
      MeshDSLError: matplotlib is not installed, or the file cannot be written.
    """
    with extra("plot", f"--out {path}"):
        from matplotlib import figure as figures
    height = 3.6 + 1.4 + 0.36 * (len(rows) + 1)
    figure = figures.Figure(figsize=(9, height), layout="constrained", dpi=150)
    ratios = {"height_ratios": [3.6, height - 3.6]}
    above, below = figure.subplots(2, gridspec_kw=ratios)
    _draw_intervals(above, rehearsal)
    _draw_losses(below, rehearsal, set_row, rows)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    with system_errors_say(path):
        figure.savefig(path)


def _draw_intervals(axes: Any, rehearsal: Rehearsal) -> None:
    for colour, rows in zip(COLOURS, rehearsal.tried.values(), strict=False):
        words = _name(rehearsal, next(iter(rows.values())), as_set=False)
        minutes = [row.interval / 60 for row in rows.values()]
        axes.plot(minutes, [row.goodput for row in rows.values()], color=colour, label=words)
        low, high = zip(*(row.spread for row in rows.values()), strict=True)
        axes.fill_between(minutes, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:.1%}")
    axes.set_xlabel("minutes of steps between two checkpoints")
    axes.set_ylabel("goodput, with 5% to 95% of traces")
    axes.grid(color="#d9dde2", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_losses(axes: Any, rehearsal: Rehearsal, set_row: Row, rows: Sequence[Row]) -> None:
    named = [(_name(rehearsal, row, row is set_row), row) for row in (set_row, *rows)]
    at = range(len(named))
    left = [1 - sum(row.losses.values()) for _, row in named]
    axes.barh(at, left, color=_STEPS, label="steps that count")
    for colour, cause in zip(COLOURS, CAUSES, strict=True):
        shares = [row.losses[cause] for _, row in named]
        if any(shares):
            axes.barh(at, shares, left=left, color=colour, label=cause)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(at, [words for words, _ in named], fontsize=8)
    axes.invert_yaxis()
    least = min(1 - sum(row.losses.values()) for _, row in named)
    axes.set_xlim(max(0.0, least - 0.5 * (1 - least)), 1)
    axes.xaxis.set_major_formatter("{x:.1%}")
    axes.set_xlabel("share of the time")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.3, -0.18))


def _name(rehearsal: Rehearsal, row: Row, as_set: bool) -> str:
    """The row as the table names it: `memory, store; 1 spare; go on`."""
    state, *slices = name_of(rehearsal, row, as_set)
    if not slices:
        return state
    spares, then = slices
    return f"{state}; {spares} spare{'s' * (spares != '1')}; {then}"
