"""Keys of the equations of a jaxpr: equal for two that compute the same from their operands.

Functions in the parameters of an equation, such as the rules of derivatives, can only be compared
by their identity. So can the arrays that a jaxpr has closed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex

from meshdsl.program.jaxpr import body_of
from meshdsl.program.recorder import without_numbers


class Key(NamedTuple):
    """What an equation computes, whatever its operands are.

    Attributes:
      kind: its primitive, and the types of its operands and results.
      alike: equal for two equations that compute the same, as far as `own` is the same too.
      own: functions and arrays in its parameters, which are compared by identity.
      first: the number of the first op in its name stacks; None where no op is named.
      count: the number of equations: itself, and those in its parameters.
    """

    kind: Any
    alike: Any
    own: tuple
    first: int | None
    count: int


class _Reader:
    """Reads one equation, with those in its parameters, for its key.

    Args:
      seen: the results for jaxprs without tags that were read before, by their identity.
      without: names of parameters that do not matter.

    Attributes:
      own, first: as in `Key`.
      count, tags: how many equations and tags were read.
    """

    def __init__(self, seen: dict[int, tuple], without: Sequence[str] = ()):
        self._seen, self._without = seen, without
        self.own: list = []
        self.first: int | None = None
        self.count = self.tags = 0

    def equation(self, e: Any) -> Any:
        """What the equation computes, whatever its operands are."""
        stack, numbers = without_numbers(str(e.source_info.name_stack))
        if numbers and self.first is None:
            self.first = numbers[0]
        self.tags += len(numbers)
        tags = tuple([n - (self.first or 0) for n in numbers])
        ins = tuple([_literal(v) if isinstance(v, jex.Literal) else v.aval for v in e.invars])
        outs = tuple([v.aval for v in e.outvars])
        named = e.params.items()
        params = tuple([(k, self._value(v)) for k, v in named if k not in self._without])
        self.count += 1
        return e.primitive, ins, outs, params, stack, tags, e.ctx

    def _value(self, x: Any) -> Any:
        if hasattr(body_of(x), "eqns"):
            return self.jaxpr(x)
        if isinstance(x, (tuple, list)):
            return tuple([self._value(y) for y in x])
        if isinstance(x, dict):
            return tuple([(k, self._value(y)) for k, y in x.items()])
        if x is None or isinstance(x, type):
            return x
        if _is_known_by_value(x):
            return type(x), x
        self.own.append(x)
        return type(x)

    def jaxpr(self, x: Any) -> Any:
        """What a jaxpr computes."""
        if id(x) in self._seen:
            key, own, count, _ = self._seen[id(x)]
            self.own += own
            self.count += count
            return key
        start, tags, before = len(self.own), self.tags, self.count
        jaxpr = body_of(x)
        self.own += getattr(x, "consts", ())
        places: dict = {}

        def at(v):
            return _literal(v) if isinstance(v, jex.Literal) else places.setdefault(v, len(places))

        ins = tuple([(at(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)])
        equations = []
        for e in jaxpr.eqns:
            operands = tuple([at(v) for v in e.invars])
            equations.append((self.equation(e), operands, tuple([at(v) for v in e.outvars])))
        key = ins, tuple(equations), tuple([at(v) for v in jaxpr.outvars])
        if self.tags == tags:
            self._seen[id(x)] = key, self.own[start:], self.count - before, x
        return key


def _is_known_by_value(x: Any) -> bool:
    """Whether all values that equal `x` do the same; of functions that is not known."""
    if callable(x) or hasattr(x, "call_wrapped") or type(x).__hash__ is object.__hash__:
        return False
    try:
        hash(x)
    except TypeError:
        return False
    return True


class Alike:
    """A closed jaxpr that can be compared: it equals others that compute the same.

    Args:
      without: names of parameters of equations that do not matter.
    """

    def __init__(self, closed: Any, without: Sequence[str] = ()):
        reader = _Reader({}, without)
        self.closed, self._alike = closed, reader.jaxpr(closed)
        self._own = reader.own

    def __eq__(self, other):
        if not isinstance(other, Alike) or self._alike != other._alike:
            return False
        return _are_same(self._own, other._own)

    def __hash__(self):
        return hash(self._alike)


def do_the_same(one: Key, other: Key) -> bool:
    """Whether two equations compute the same, given the same operands."""
    return one.alike == other.alike and _are_same(one.own, other.own)


def _are_same(own: Sequence, other: Sequence) -> bool:
    return all(x is y for x, y in zip(own, other, strict=True))


def _literal(v: Any) -> Any:
    return type(v.val), np.asarray(v.val).tobytes(), v.aval


def keys_of(equations: Sequence) -> list[Key]:
    """The keys of some equations."""
    seen: dict[int, tuple] = {}
    keys = []
    for e in equations:
        reader = _Reader(seen)
        alike = reader.equation(e)
        keys.append(Key(_kind(e), alike, tuple(reader.own), reader.first, reader.count))
    return keys


def _kind(e: Any) -> Any:
    ins = tuple([(type(v), v.aval) for v in e.invars])
    return e.primitive, ins, tuple([v.aval for v in e.outvars])
