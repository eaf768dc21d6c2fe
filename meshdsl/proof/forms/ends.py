"""Arrays whose padding nobody knows, such as what a loop carries from round to round.

A round computes on the padding of what it carries too. What it makes of the elements, without the
padding, it makes of the elements before: then a loop carries those alone, and what is after them is
*unknown*. An unknown is an array of its own, which equals no other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from meshdsl.proof.forms.padding import Beyond, restricted
from meshdsl.proof.labels import Part, Parts, fresh, size_of
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, made


class End(NamedTuple):
    """Where a dim of a local array ends.

    Attributes:
      dim: of the local array.
      n: how many elements there are.
      parts: those of the axes, and of the local dim, with the padding.
    """

    dim: int
    n: int
    parts: Parts

    def index(self, value: Value) -> int | None:
        """The dim of the term of a value that ends there."""
        local = {*value.dims[self.dim]}
        return next((i for i, run in enumerate(value.parts) if local & {*run}), None)


class Ends(NamedTuple):
    """Where dims of a local array end, and what is sure to be after that.

    Attributes:
      after: 0: zeros. 1: real numbers. 2: anything.
    """

    each: tuple[End, ...] = ()
    after: int = 0

    def of(self, terms: Terms, value: Value) -> bool:
        """Whether a value has after its ends what is sure to be there."""
        found = [Beyond.of(terms, value.term, end.index(value), end.n) for end in self.each]
        if self.after == 0:
            return all(beyond.number == 0 for beyond in found)
        return self.after > 1 or all(beyond.real for beyond in found)


CARRIED = Ends(after=3)  # of what is carried with its padding, on which elements depend


def ends_of(value: Value) -> tuple[End, ...]:
    """The ends of those split dims of a value that may be padded; one for each such dim."""
    found: dict[int, End] = {}
    for index, n in sorted(value.term.pads, reverse=True):  # the least number of each comes last
        parts = value.parts[index]
        local = tuple(part for part in parts if not isinstance(part.label, str))
        if local != parts and local in value.dims and n > 1:
            found[index] = End(value.dims.index(local), n, parts)
    return tuple(found.values())


def narrowed(terms: Terms, value: Value, ends: Ends) -> Value | None:
    """The elements of a value before its ends; None if they are not in one run of it."""
    for end in ends.each:
        axes = {part.label for part in end.parts if isinstance(part.label, str)}
        index, new, dims = end.index(value), Part(end.n, None), list(value.dims)
        if index is not None:
            run = value.parts[index]
            local = tuple(part for part in run if not isinstance(part.label, str))
            if size_of(run) != size_of(end.parts) or local != dims[end.dim]:
                return None
            axes = axes.difference(part.label for part in run)
            new = Part(end.n, fresh())
            value = restricted(terms, value, index, new)
        if axes & value.labels.keys():
            return None
        dims[end.dim] = (new,)
        value = value.at(dims)
    return value


def widened(terms: Terms, value: Value, ends: Ends, uses: Sequence[Hashable]) -> Value:
    """A value with what is after its ends.

    Args:
      uses: the variables of loops that what is unknown depends on.
    """
    for dim, n, parts in ends.each:
        (old,), more = value.dims[dim], Part(size_of(parts) - n, fresh())
        beyond, run = Value(terms.constant(0, ""), (), ()), []
        if ends.after:
            run = [(more,)] if more.size > 1 else [()]
            has = (*(p for p in value.parts if p != (old,)), *filter(None, run))
            params = fresh(), ends.after == 1
            shape = tuple(map(size_of, has))
            beyond = Value(terms.term("unknown", params, shape=shape, uses=uses), has, ())
        local = tuple(part for part in parts if not isinstance(part.label, str))
        dims = [local if d == dim else p for d, p in enumerate(value.dims)]
        params, along = (((0, more.size, 0),),), [[(old,)], run]
        value = made(terms, "pad", params, [value, beyond], dims, along=along, new=[parts])
    return value
