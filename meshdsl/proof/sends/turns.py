"""Loops whose rounds are gone through one by one, and lists of what they make.

Where devices work on another part in each round, what an array means depends on the number of the
round as much as on that of the device. Rows may even lie in another order in each round. So no
term of a round says what all rounds make. Such a loop is the same as its rounds one after the
other. What they make is a *list*: a term of which nothing is known, but that it has an element for
each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshdsl.proof.indexing import indexed
from meshdsl.proof.labels import Label, Minor, Part, Parts, fresh, labelled
from meshdsl.proof.lemmas import Walk
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value, relabelled, unchanging

_FEW = 64  # a loop has no more rounds if they are looked at one by one


def few(rounds: int) -> bool:
    """Whether a loop of so many rounds may be gone through round by round."""
    return rounds <= _FEW


def one_by_one(
    walk: Walk, p: Any, consts: Sequence[Value], carried: Sequence[Value], lists: Sequence[Value]
) -> list[Value]:
    """What a `scan` makes, found round by round.

    Args:
      p: the parameters of the `scan`.

    Raises:
      NotProved: there are many rounds.
    """
    order, count = range(p["length"]), len(carried)
    if not few(len(order)):
        raise NotProved(f"parts are sent on in each of {len(order)} rounds")
    given = [elements_of(walk, x) for x in lists]
    made: list[list[Value]] = [[] for _ in order]
    for i in reversed(order) if p["reverse"] else order:
        found = walk.run(p["jaxpr"], [*consts, *carried, *(each[i] for each in given)])
        carried, made[i] = found[:count], found[count:]
    return [*carried, *(listed(walk, each) for each in zip(*made, strict=True))]


def elements_of(walk: Walk, x: Value) -> list[Value]:
    """What is at each index of the first dim."""
    found = in_list(walk.terms, x)
    return [indexed(walk, x, i) for i in range(x.shape[0])] if found is None else found


def listed(walk: Walk, values: Sequence[Value]) -> Value:
    """What rounds have made, along a new first dim.

    It may be another array on each device, and in each round of the loops that are around.

    Raises:
      NotProved: the rounds of one of these lie in another order.
    """
    first, count = values[0], len(values)
    if all(value.same_as(first) for value in values):
        return first.at([*unchanging([count]), *first.dims])
    around: dict[Label, int] = {}
    for value in values:
        local = labelled(part for dim in value.dims for part in dim)
        around |= {label: n for label, n in value.labels.items() if label not in local}
    if any(isinstance(label, Minor) for label in around):
        raise NotProved("a round that lies in another order makes a list")
    outer = [Part(n, axis) for axis, n in walk.sizes.items() if n > 1]
    outer += [Part(n, label) for label, n in around.items() if isinstance(label, int)]
    dims = [(Part(n, fresh()),) if n > 1 else () for n in (count, *first.shape)]
    parts = [*((part,) for part in outer), *filter(None, dims)]
    free = frozenset[Any]().union(*(value.term.free for value in values))
    shape = tuple(part.size for (part,) in parts)
    term = walk.terms.term("list", (fresh(),), shape=shape, uses=free)
    found = Value(term, tuple(parts), tuple(dims))
    walk.terms.lists[term] = found, tuple(values)
    return found


def in_list(terms: Terms, x: Value) -> list[Value] | None:
    """The elements of a list, whose other dims may have been put in another order meanwhile."""
    like, values = terms.lists.get(x.term, (None, ()))
    if like is None or any(len(dim) != 1 for dim in x.parts):
        return None
    names = dict(zip(like.labels, x.labels, strict=True))
    if any(old != new and not isinstance(old, int) for old, new in names.items()):
        return None
    local = {p.label: d for d, dim in enumerate(like.dims) for p in dim if p.label is not None}
    dims: dict[Parts, int] = {(Part(like.labels[p], names[p]),): d for p, d in local.items()}
    place = [dims.get(dim) for dim in x.dims]
    whole = all(dim == () or d is not None for dim, d in zip(x.dims, place, strict=True))
    if not whole or place[0] != 0 or not set(dims.values()) <= set(place):
        return None
    outer = {old: new for old, new in names.items() if old not in local and old != new}
    found = []
    for value in values:
        mine = {old: new for old, new in outer.items() if old in value.labels}
        of = (() if d is None else value.dims[d - 1] for d in place[1:])
        found.append(relabelled(value.at(of), mine))
    return found
