"""Runs of equations that repeat, such as those of layers that are alike, as calls of one function.

JAX differentiates a jaxpr equation by equation, but a function under `jit` only once, however often
it is called. Here a run of equations that repeats, with other operands each time, becomes such a
function, and each repetition, a *copy* of the run, becomes a call of it. The program computes the
same as before, in the same order.

Each equation carries the tag of its op, see `program.recorder`. The equations of the function carry
the tags of the first copy. So a call for a later copy stands in a name stack such as `md+58`, which
says that the numbers of its ops are larger by 58; `tag_in` adds that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex

from meshdsl.lowering.equation_keys import do_the_same, keys_of
from meshdsl.program.jaxpr import body_of, cut_from, variables_of
from meshdsl.program.recorder import later

_LEAST = 8  # fewer equations are not worth a function of their own
_PERIODS = 16  # how many lengths of a copy are tried


class _Step(NamedTuple):
    """Some equations of a jaxpr, as a function that computes some of its variables from others.

    Attributes:
      fn: the function.
      ins, outs: the variables of the jaxpr that it takes and that it computes.
      later: the number to add to the numbers of ops in its tags.
    """

    fn: Callable
    ins: list
    outs: list
    later: int = 0


def shared(closed: Any) -> Callable:
    """A closed jaxpr as a function of arrays that returns a list of arrays.

    Runs of equations that repeat are calls of one function in it.
    """
    jaxpr = body_of(closed)
    steps = list(_Steps(jaxpr).all())
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))

    def run(*args):
        env = {**consts, **dict(zip(jaxpr.invars, args, strict=True))}
        read = lambda v: v.val if isinstance(v, jex.Literal) else env[v]
        for step in steps:
            with jax.named_scope(later(step.later)) if step.later else nullcontext():
                result = step.fn(*[env[v] for v in step.ins])
            env.update(zip(step.outs, result, strict=True))
        return [read(v) for v in jaxpr.outvars]

    return run


class _Steps:
    """Finds the steps of one jaxpr: calls of functions for copies, and the equations in between."""

    def __init__(self, jaxpr: Any):
        self._jaxpr, self._equations = jaxpr, jaxpr.eqns
        self._keys = keys_of(self._equations)
        self._kinds = _numbered(k.kind for k in self._keys)
        self._alike = _numbered(k.alike for k in self._keys)
        self._counts = np.asarray([k.count for k in self._keys])
        self._last: dict[Any, int] = {}  # the last equation that uses a variable
        for i, e in enumerate(self._equations):
            self._last.update((v, i) for v in variables_of(e.invars))
        count = len(self._equations)
        self._last.update((v, count) for v in variables_of(jaxpr.outvars))

    def all(self) -> Iterator[_Step]:
        """The steps in order. Equations between two copies are one step."""
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
        """The equations from `start` to `end` as a closed jaxpr."""
        return cut_from(self._jaxpr, ins, self._equations[start:end], outs)

    def _ins(self, start: int, end: int) -> list:
        """The variables that the equations from `start` to `end` use and do not define."""
        defined: set = set()
        taken: dict = {}
        for e in self._equations[start:end]:
            taken |= dict.fromkeys(v for v in variables_of(e.invars) if v not in defined)
            defined.update(e.outvars)
        return list(taken)

    def _outs(self, start: int, end: int) -> list:
        """The variables that the equations from `start` to `end` define and later ones use.

        The results of the jaxpr count as used.
        """
        defined = [v for e in self._equations[start:end] for v in e.outvars]
        return [v for v in defined if self._last.get(v, 0) >= end]

    def _of_repeats(self) -> Iterator[tuple[int, int, _Step]]:
        """The calls of functions for copies, each with where its equations begin and end."""
        for start, period, count in self._periodic(0, len(self._equations)):
            starts = [start + i * period for i in range(count)]
            while starts:
                copies = self._wired_alike(starts, period)
                starts = starts[len(copies) :]
                if len(copies) > 1:
                    yield from self._calls(copies, period)

    def _periodic(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Where the kinds of equations repeat, between `low` and `high`.

        Of several ways to cut the equations into copies, the one is taken with which the most
        equations need not be differentiated again.

        Returns:
          For each run the start, the length of a copy, and how many copies there are.
        """
        best = start = length = copies = 0
        for period in self._periods(low, high):
            again = lambda numbers, n=period: numbers[low + n : high] == numbers[low : high - n]
            of_kind = np.concatenate([[False], again(self._kinds), [False]])
            shared = np.where(again(self._alike), self._counts[low + period : high], 0)
            edges = np.flatnonzero(of_kind[1:] != of_kind[:-1])
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                times = int(end - begin) // period
                saved = int(shared[begin : begin + times * period].sum())
                if saved > best and saved >= times * _LEAST:
                    best, start, length, copies = saved, low + int(begin), period, times + 1
        if not best:
            return []
        end = start + copies * length
        before, after = self._periodic(low, start), self._periodic(end, high)
        return [*before, (start, length, copies), *after]

    def _periods(self, low: int, high: int) -> list[int]:
        """Possible lengths of a copy: the distances between an equation and the next one like it.

        The most frequent distances come first.
        """
        before: dict[int, int] = {}
        distances: Counter[int] = Counter()
        for i, number in enumerate(self._alike[low:high].tolist()):
            if number in before:
                distances[i - before[number]] += 1
            before[number] = i
        return [distance for distance, _ in distances.most_common(_PERIODS)]

    def _wired_alike(self, starts: list[int], period: int) -> list[tuple[int, int, dict]]:
        """The copies before the first one whose equations are connected in another way.

        Args:
          starts: where each copy begins.
          period: the length of a copy.

        Returns:
          For each copy: where it begins, how much larger the numbers of its ops are than those of
          the first copy, and its variable for each variable of the first copy.
        """
        found = []
        for start in starts:
            one = self._as(starts[0], start, period)
            if one is None:
                break
            found.append((start, *one))
        return found

    def _as(self, first: int, other: int, period: int) -> tuple[int, dict] | None:
        """The last two results of `_wired_alike` for one copy; None if it is wired differently."""
        same: dict = {}
        defined: set = set()
        shifts = set()
        for i in range(period):
            a, b = self._equations[first + i], self._equations[other + i]
            key, other_key = self._keys[first + i], self._keys[other + i]
            if key.first is not None and other_key.first is not None:
                shifts.add(other_key.first - key.first)
            for v, w in zip(a.invars, b.invars, strict=True):
                if isinstance(v, jex.Literal):
                    continue
                if v not in same and w in defined:
                    return None
                if same.setdefault(v, w) is not w:
                    return None
            same.update(zip(a.outvars, b.outvars, strict=True))
            defined.update(b.outvars)
        shift = shifts.pop() if shifts else 0
        return None if shifts or shift < 0 else (shift, same)

    def _calls(self, copies: list, period: int) -> Iterator[tuple[int, int, _Step]]:
        """The calls of all copies, in the order of their equations."""
        first = copies[0][0]
        functions = []
        for begin, end in self._stretches([start for start, *_ in copies], period):
            ins, used = self._ins(first + begin, first + end), set()
            defined = [v for e in self._equations[first + begin : first + end] for v in e.outvars]
            for start, _, same in copies:
                outside = start + end
                used.update(v for v in defined if self._last.get(same[v], 0) >= outside)
            outs = [v for v in defined if v in used]
            closed = self._cut(first + begin, first + end, ins, outs)
            functions.append((begin, end, _jitted(closed), ins, outs))
        for start, shift, same in copies:
            for begin, end, fn, ins, outs in functions:
                step = _Step(fn, [same[v] for v in ins], [same[v] for v in outs], shift)
                yield start + begin, start + end, step

    def _stretches(self, starts: list[int], period: int) -> Iterator[tuple[int, int]]:
        """Where in a copy the equations are the same in all copies: begin and end of each stretch.

        Stretches of too few equations are left out.
        """
        begin = 0
        for i in range(period + 1):
            if i < period and self._is_shared(starts, i):
                continue
            if self._counts[starts[0] + begin : starts[0] + i].sum() >= _LEAST:
                yield begin, i
            begin = i + 1

    def _is_shared(self, starts: list[int], i: int) -> bool:
        first, *others = (self._keys[start + i] for start in starts)
        return all(do_the_same(first, other) for other in others)


def _numbered(keys: Iterable) -> np.ndarray:
    """A number for each key, which is the same for equal keys."""
    known: dict[Any, int] = {}
    return np.asarray([known.setdefault(key, len(known)) for key in keys], int)


def _jitted(closed: Any) -> Callable:
    run = jex.jaxpr_as_fun(closed)

    def repeated(*args):
        return run(*args)

    return jax.jit(repeated)
