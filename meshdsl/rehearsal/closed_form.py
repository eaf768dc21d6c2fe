"""The best interval between checkpoints in closed form, where a run has one kind of fault."""

from __future__ import annotations

from math import sqrt


def young(save: float, mtbf: float) -> float:
    """Young's interval between checkpoints, in seconds of steps (Young, 1974).

    Args:
      save: seconds that a checkpoint takes from the steps.
      mtbf: mean seconds between faults.
    """
    return sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Daly's better one, his equation 37 (Daly, 2006); the arguments are those of `young`."""
    if save >= 2 * mtbf:
        return mtbf
    x = save / (2 * mtbf)
    return young(save, mtbf) * (1 + sqrt(x) / 3 + x / 9) - save
