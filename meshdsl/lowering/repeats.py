"""Runs of equations that repeat, such as layers that are alike, as calls of one function.

JAX differentiates a jaxpr equation by equation, but a function under `jit` once, however often it
is called. Here equations that come again and again, with other operands, become calls of one such
function. What is computed stays the same, and so does its order.

The equations of each layer carry the tags of its own ops, see `record.recorder`, and those of the
function carry the tags of the first layer. So every later call stands in a name stack that says by
how much the numbers of its ops are larger, which `tag_in` adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex

from meshdsl.record.jaxpr import body_of
from meshdsl.record.recorder import later, without_numbers

_LEAST = 8  # so many equations are worth a function of their own
_PERIODS = 16  # how many lengths of a repeated run are tried


class _Key(NamedTuple):
    """What an equation computes, whatever its operands are.

    Attributes:
      alike: equal for two equations that do the same, but for what `own` has.
      own: what is known by its identity alone, such as a function.
      first: the number of the first op in its name stacks; None where there is none.
      count: how many equations it is, with those in its parameters.
    """

    alike: Any
    own: tuple
    first: int | None
    count: int


class _Reader:
    """Makes the key of one equation, with those in its parameters.

    Args:
      seen: what is known of jaxprs without tags, by their identity.
      without: names of parameters that do not matter.

    Attributes:
      own, first: as those of a key.
      count: how many equations there were.
    """

    def __init__(self, seen: dict[int, tuple], without: Sequence[str] = ()):
        self._seen, self._without = seen, without
        self.own: list = []
        self.first: int | None = None
        self.count = 0

    def equation(self, e: Any) -> Any:
        """What the equation computes, whatever its operands are."""
        stack, numbers = without_numbers(str(e.source_info.name_stack))
        if numbers and self.first is None:
            self.first = numbers[0]
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
        start, first, before = len(self.own), self.first, self.count
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
        if self.first == first:  # else it has tags
            self._seen[id(x)] = key, self.own[start:], self.count - before, x
        return key


def _is_known_by_value(x: Any) -> bool:
    """Whether all that equal `x` do the same. Functions are not, nor those that JAX wraps."""
    if callable(x) or hasattr(x, "call_wrapped") or type(x).__hash__ is object.__hash__:
        return False
    try:
        hash(x)
    except TypeError:
        return False
    return True


class Alike:
    """A closed jaxpr, which equals others that compute the same.

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


def _are_same(own: Sequence, other: Sequence) -> bool:
    return all(x is y for x, y in zip(own, other, strict=True))


def _literal(v: Any) -> Any:
    return type(v.val), np.asarray(v.val).tobytes(), v.aval


def _keys(equations: Sequence) -> list[_Key]:
    seen: dict[int, tuple] = {}
    made = []
    for e in equations:
        reader = _Reader(seen)
        made.append(_Key(reader.equation(e), tuple(reader.own), reader.first, reader.count))
    return made


class _Step(NamedTuple):
    """A part of a jaxpr: a function of some of its variables that gives others.

    Attributes:
      later: how far the numbers of its ops are from those in its tags.
    """

    fn: Callable
    ins: list
    outs: list
    later: int = 0


def shared(closed: Any) -> Callable:
    """What a closed jaxpr computes, as a function of a list of arrays that gives a list of them."""
    jaxpr = body_of(closed)
    steps = list(_Steps(jaxpr).all())
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))

    def run(*args):
        env = {**consts, **dict(zip(jaxpr.invars, args, strict=True))}
        read = lambda v: v.val if isinstance(v, jex.Literal) else env[v]
        for step in steps:
            with jax.named_scope(later(step.later)) if step.later else nullcontext():
                made = step.fn(*[env[v] for v in step.ins])
            env.update(zip(step.outs, made, strict=True))
        return [read(v) for v in jaxpr.outvars]

    return run


class _Steps:
    """The steps of one jaxpr."""

    def __init__(self, jaxpr: Any):
        self._jaxpr, self._equations = jaxpr, jaxpr.eqns
        self._keys = _keys(self._equations)
        known: dict[Any, int] = {}
        self._numbers = np.asarray([known.setdefault(k.alike, len(known)) for k in self._keys])
        self._counts = np.cumsum([0, *[k.count for k in self._keys]])
        self._last: dict[Any, int] = {}  # the last equation that uses a variable
        for i, e in enumerate(self._equations):
            self._last.update((v, i) for v in e.invars if not isinstance(v, jex.Literal))
        count = len(self._equations)
        self._last.update((v, count) for v in jaxpr.outvars if not isinstance(v, jex.Literal))

    def all(self) -> Iterator[_Step]:
        """The steps in order; runs that do not repeat are one step each."""
        start = 0
        for begin, end, step in self._of_repeats():
            if start < begin:
                yield self._plain(start, begin)
            yield step
            start = end
        if start < len(self._equations):
            yield self._plain(start, len(self._equations))

    def _plain(self, start: int, end: int) -> _Step:
        ins, outs = self._ins(start, end), self._outs(start, end)
        return _Step(jex.jaxpr_as_fun(self._cut(start, end, ins, outs)), ins, outs)

    def _cut(self, start: int, end: int, ins: list, outs: list) -> Any:
        """Some of the equations, as a closed jaxpr."""
        cut = {"constvars": [], "invars": ins, "outvars": outs}
        equations = self._equations[start:end]
        return jex.ClosedJaxpr(self._jaxpr.replace(**cut, eqns=equations), [])

    def _ins(self, start: int, end: int) -> list:
        """What some equations take from others, or from outside."""
        made: set = set()
        taken: dict = {}
        for e in self._equations[start:end]:
            for v in e.invars:
                if not isinstance(v, jex.Literal) and v not in made:
                    taken[v] = None
            made.update(e.outvars)
        return list(taken)

    def _outs(self, start: int, end: int) -> list:
        """What some equations make for others, or for outside."""
        made = [v for e in self._equations[start:end] for v in e.outvars]
        return [v for v in made if self._last.get(v, 0) >= end]

    def _of_repeats(self) -> Iterator[tuple[int, int, _Step]]:
        """Calls of shared functions, with where their equations begin and end."""
        for start, period, copies in self._periodic(0, len(self._equations)):
            starts = [start + i * period for i in range(copies)]
            while starts:
                alike = self._alike(starts, period)
                starts = starts[len(alike) :]
                if len(alike) > 1:
                    yield from self._calls(alike, period)

    def _periodic(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Where equations repeat by their keys: the start, the length of a copy, and how many."""
        best = start = length = copies = 0
        for period in self._periods(low, high):
            numbers = self._numbers[low:high]
            same = np.concatenate([[False], numbers[period:] == numbers[:-period], [False]])
            edges = np.flatnonzero(same[1:] != same[:-1])
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                again = int(end - begin) // period
                first = low + int(begin)
                saved = again * self._count(first, first + period)
                if saved > best and saved >= again * _LEAST:
                    best, start, length, copies = saved, first, period, again + 1
        if not best:
            return []
        end = start + copies * length
        before, after = self._periodic(low, start), self._periodic(end, high)
        return [*before, (start, length, copies), *after]

    def _periods(self, low: int, high: int) -> list[int]:
        """How far equations with the same key are apart, the most frequent distances first."""
        before: dict[int, int] = {}
        distances: Counter[int] = Counter()
        for i, number in enumerate(self._numbers[low:high].tolist()):
            if number in before:
                distances[i - before[number]] += 1
            before[number] = i
        return [distance for distance, _ in distances.most_common(_PERIODS)]

    def _count(self, start: int, end: int) -> int:
        return int(self._counts[end] - self._counts[start])

    def _alike(self, starts: list[int], period: int) -> list[tuple[int, int, dict]]:
        """Those of the first copies that do the same as the first one of all.

        Returns:
          For each where it begins, how much larger the numbers of its ops are, and which of its
          variables are those of the first copy.
        """
        found = []
        for start in starts:
            one = self._as(starts[0], start, period)
            if one is None:
                break
            found.append((start, *one))
        return found

    def _as(self, first: int, other: int, period: int) -> tuple[int, dict] | None:
        same: dict = {}
        made: set = set()
        shifts = set()
        for i in range(period):
            a, b = self._equations[first + i], self._equations[other + i]
            key, other_key = self._keys[first + i], self._keys[other + i]
            if key.first is not None:
                shifts.add(other_key.first - key.first)
            for v, w in zip(a.invars, b.invars, strict=True):
                if isinstance(v, jex.Literal):
                    continue
                if v not in same and w in made:
                    return None
                if same.setdefault(v, w) is not w:
                    return None
            same.update(zip(a.outvars, b.outvars, strict=True))
            made.update(b.outvars)
        shift = shifts.pop() if shifts else 0
        return None if shifts or shift < 0 else (shift, same)

    def _calls(self, copies: list, period: int) -> Iterator[tuple[int, int, _Step]]:
        """The calls of all copies, in the order of their equations."""
        first = copies[0][0]
        functions = []
        for begin, end in self._stretches([start for start, *_ in copies], period):
            ins, used = self._ins(first + begin, first + end), set()
            made = [v for e in self._equations[first + begin : first + end] for v in e.outvars]
            for start, _, same in copies:
                outside = start + end
                used.update(v for v in made if self._last.get(same[v], 0) >= outside)
            outs = [v for v in made if v in used]
            closed = self._cut(first + begin, first + end, ins, outs)
            functions.append((begin, end, _jitted(closed), ins, outs))
        for start, shift, same in copies:
            for begin, end, fn, ins, outs in functions:
                step = _Step(fn, [same[v] for v in ins], [same[v] for v in outs], shift)
                yield start + begin, start + end, step

    def _stretches(self, starts: list[int], period: int) -> Iterator[tuple[int, int]]:
        """Where copies do the same, but for equations with something of their own."""
        begin = 0
        for i in range(period + 1):
            if i < period and self._is_shared(starts, i):
                continue
            if self._count(starts[0] + begin, starts[0] + i) >= _LEAST:
                yield begin, i
            begin = i + 1

    def _is_shared(self, starts: list[int], i: int) -> bool:
        first, *others = (self._keys[start + i].own for start in starts)
        return all(_are_same(first, own) for own in others)


def _jitted(closed: Any) -> Callable:
    run = jex.jaxpr_as_fun(closed)

    def repeated(*args):
        return run(*args)

    return jax.jit(repeated)
