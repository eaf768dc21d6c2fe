"""Names for the axes that a search adds, by what they split, as shipped layouts name theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from meshdsl.layout import Layout, Rule, shipped

_FIRST = ("context", "fsdp-sequence")  # layouts whose names go before those of others
_DATA, _MODEL = "data", "model"
_MORE = {"experts": "expert"}  # dims that no shipped layout splits
_SECOND = {_DATA: ("replica", "shard")}  # of data: where all is kept whole, and where it is not


@cache
def axes_of_dims() -> dict[str, str]:
    """For each dim of a shipped layout the axis that it is split over: a model could have them."""
    found: dict[str, str] = {}
    for name in dict.fromkeys((*_FIRST, *shipped())):
        for rule in Layout.load(shipped()[name]).parsed:
            found.setdefault(rule.dim, rule.axis)
    return found | _MORE


@cache
def known_axes() -> frozenset[str]:
    """The axes of shipped layouts, and the names that a search gives to others."""
    axes = {axis for path in shipped().values() for axis in Layout.load(path).mesh}
    return frozenset({*axes, *_MORE.values(), *_SECOND[_DATA]})


def axis_name(rules: Sequence[Rule], stored: Collection[str], taken: Collection[str]) -> str:
    """A name for the axis of these rules: by what it splits first.

    Args:
      stored: the dims that parameters have.
      taken: names of other axes.
    """
    first = next((x for x in rules if x.level == "rules"), None)
    name = _DATA
    if first is not None:
        name = axes_of_dims().get(first.dim, _MODEL if first.dim in stored else _DATA)
    if name in taken and name in _SECOND:
        name = _SECOND[name][any(x.level != "rules" for x in rules)]
    free = [name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))]
    return next(one for one in free if one not in taken)
