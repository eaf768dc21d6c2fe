"""Names for the axes that a search adds, by what they split, as shipped layouts name theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from meshdsl.layout import Layout, shipped
from meshdsl.layout_search.plan import Line

_FIRST = ("context", "fsdp-sequence")  # layouts whose names go before those of others
_DATA, _MODEL = "data", "model"
_MORE = {"experts": "expert"}  # dims that no shipped layout splits
_SECOND = {_DATA: ("replica", "shard")}  # of data: where all is kept whole, and where it is not


@cache
def _shipped_names() -> dict[str, str]:
    """For each dim of a shipped layout the axis that it is split over."""
    found: dict[str, str] = {}
    for name in dict.fromkeys((*_FIRST, *shipped())):
        for rule in Layout.load(shipped()[name]).parsed:
            found.setdefault(rule.dim, rule.axis)
    return found


@cache
def known_dims() -> frozenset[str]:
    """The dims of shipped layouts: a model could have them."""
    return frozenset({*_shipped_names(), *_MORE})


@cache
def known_axes() -> frozenset[str]:
    """The axes of shipped layouts, and the names that a search gives to others."""
    axes = {axis for path in shipped().values() for axis in Layout.load(path).mesh}
    return frozenset(
        {*axes, *_MORE.values(), *(name for names in _SECOND.values() for name in names)}
    )


def axis_name(lines: Sequence[Line], stored: Collection[str], taken: Collection[str]) -> str:
    """A name for the axis of these lines: of the first rule, or where there is none, the first.

    Args:
      stored: the dims that parameters have.
      taken: names of other axes.
    """
    first = next((x for x in lines if x.level == "rules"), lines[0])
    known = _shipped_names() | _MORE
    if first.level != "rules":
        name = _DATA
    else:
        name = known.get(first.dim, _MODEL if first.dim in stored else _DATA)
    if name not in taken:
        return name
    if name in _SECOND:
        name = _SECOND[name][any(x.level != "rules" for x in lines)]
    free = [name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))]
    return next(one for one in free if one not in taken)
