"""`move = "exchange"`: vectors travel to the devices that look them up, and not the table.

An embedding's table is split at rest by `d_model -> data`, and `batch -> data` splits the indices.
By the law the table would be gathered. With `{ rule = "d_model -> data", move = "exchange" }` its
vectors stay split: each device gets the indices of all, looks them up in its part of every vector,
and the law brings the result from `d_model` to `batch`, which is one all_to_all. In the backward
pass that is an all_to_all of the cotangents, and the gradient of the table needs no sum over
`data`.
"""

from __future__ import annotations

from typing import NamedTuple

from meshdsl.dims import Dim
from meshdsl.lowering.copies import copy_of
from meshdsl.tensor import Tensor


class Kept(NamedTuple):
    """A dim that stays split in a loop as it is at rest, and the rule that says so."""

    dim: Dim
    axes: tuple[str, ...]
    why: str


def kept_in_lookup(table: Tensor, indices: Tensor, dim: Dim) -> tuple[Kept, ...]:
    """The dims of `table` whose split a rule keeps while `indices` are looked up along `dim`.

    An axis that splits `dim`, or a dim that the two share, splits nothing else. A table of which a
    whole copy is at hand has nothing to exchange.
    """
    at_rest, given = table.placement, indices.placement
    if at_rest is None or given is None or given.scope is not at_rest.scope:
        return ()
    if given.level != "rules" or table.pending or copy_of(table) is not None:
        return ()
    if not table.size or not indices.size:
        return ()
    scope, found = at_rest.scope, []
    loop = tuple(dict.fromkeys((*table.dims, *indices.dims)))
    law = dict(zip(loop, scope.split(loop, "rules"), strict=True))
    for d, axes in zip(table.dims, at_rest.axes, strict=True):
        if d == dim or d in indices.dims or not set(law[d]) <= set(axes):
            continue
        spent = {a for other in table.dims if other != d for a in law[other]}
        rules = {a: scope.rule(table.dims, at_rest.level, a) for a in axes}
        stays = {
            a: str(rule)
            for a, rule in rules.items()
            if rule and rule.move == "exchange" and rule.dim == d.name and a not in spent
        }
        split = tuple(a for a in axes if a in stays or a in law[d])
        if split != law[d]:
            found.append(Kept(d, split, "; ".join(dict.fromkeys(stays.values()))))
    return tuple(found)
