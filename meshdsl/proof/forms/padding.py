"""Dims that are padded: what is computed of their elements alone, without the padding.

Where `n` indices do not divide over the devices, a dim has more of them, and those from `n` on are
padding: a `pad`, or a `select_n` that says which indices are less than `n`. A term knows at which
numbers of elements it may be padded (`Term.pads`). It is *restricted* to the first `n` indices of a
dim by restricting what it is computed of. That ends in the array that was padded:

    pad(x)[:n]        x, of n elements
    f(y, z)[:n]       f(y[:n], z[:n]), where f does the same with each element of the dim

A sum is that of the first `n` where there are zeros from `n` on, and a maximum where there is
nothing that is larger. What is there follows from what is put there at first (`Beyond`): only
numbers that are sure to be there count, and zero times something is zero only where that is sure
to be a number (`is_real`), which a quotient, say, may not be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from meshdsl.proof.elements import decided
from meshdsl.proof.forms.sums import (
    ADDITIVE,
    COMMUTATIVE,
    FORMS,
    LINEAR_IN,
    elementwise,
    extreme,
    later,
    linear,
    total,
)
from meshdsl.proof.labels import Label, Part, Parts, fresh, labelled, size_of
from meshdsl.proof.terms import Term, Terms, counted_to
from meshdsl.proof.values import Value, made, opened, own_dims, relabelled, whole

Number = bool | int | float
_INFINITE = math.inf, -math.inf
_COMPARISONS = {"eq", "ge", "gt", "le", "lt", "ne", "is_finite"}
# What these functions are of a number, exactly.
_EXACT: dict[str, dict[Number, Number]] = {
    "abs": {0: 0, 1: 1},
    "erf": {0: 0},
    "exp": {0: 1, -math.inf: 0},
    "log": {1: 0},
    "log1p": {0: 0},
    "logistic": {-math.inf: 0},
    "expm1": {0: 0},
    "rsqrt": {1: 1},
    "sin": {0: 0},
    "sqrt": {0: 0, 1: 1},
    "square": {0: 0, 1: 1},
    "tanh": {0: 0},
}
# Of all real numbers these make real numbers; and the others of all that are positive.
_TOTAL = {
    *("abs", "and", "cast", "ceil", "clamp", "concatenate", "convert_element_type", "cos", "erf"),
    *("erfc", "exp", "expm1", "floor", "logistic", "max", "min", "mul", "not", "or", "pad"),
    *("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "round", "select_n"),
    *("all", "log", "log1p", "over", "rsqrt", "sign", "sin", "slice", "sqrt", "square", "sum"),
    "tanh",
}
# And these of all that are more than -1 or 0; see `least`.
_OF_MORE_THAN = {"log": 0, "log1p": -1, "rsqrt": 0, "sqrt": -1}
# Of numbers that are not negative these make such numbers, and of positive ones positive ones.
_KEEPS_SIGN = {
    *("all", "cast", "div", "min", "mul", "over", "pad", "reduce_max", "reduce_min", "reduce_sum"),
    *("rsqrt", "slice", "sqrt"),
}


def _number(term: Term) -> Number | None:
    """The number that a constant is, if it is an ordinary one."""
    found = term.params[1] if term.op == "const" else None
    if found == "-0.0":
        return 0
    return found if isinstance(found, (bool, int, float)) else None


class Beyond:
    """What a term is wherever an index of it is `n` or more.

    Args:
      index: None: all of the term, which does not change along the index that is meant. Such terms
        are taken for real numbers, because elements are computed of them too.
    """

    def __init__(self, terms: Terms, term: Term, index: int | None, n: int):
        self._terms, self._term, self._index, self._n = terms, term, index, n

    @classmethod
    def of(cls, terms: Terms, term: Term, index: int | None, n: int) -> Beyond:
        key = cls, term.number, index, n
        found = terms.memo.get(key)
        if found is None:
            found = terms.memo[key] = cls(terms, term, index, n)
        return found

    @property
    def _padded(self) -> bool:
        return any(i == self._index and m <= self._n for i, m in self._term.pads)

    @functools.cached_property
    def _args(self) -> list[Beyond] | None:
        """The same of the arguments; None where the index is only a part of a dim of one."""
        found = []
        for arg, view in zip(self._term.args, self._term.views, strict=True):
            have = [d for d, indices in enumerate(view or ()) if self._index in indices]
            if have and view is not None and view[have[0]] != (self._index,):
                return None
            found.append(Beyond.of(self._terms, arg, have[0] if have else None, self._n))
        return found

    @property
    def changes(self) -> bool:
        return self._index is not None

    @functools.cached_property
    def number(self) -> Number | None:
        """The number that it is, if it is the same one everywhere there, and known."""
        term = self._term
        if term.op == "const":
            return _number(term)
        if not self._padded:
            return None
        if counted_to(term) is not None:
            return False
        if term.op == "pad" and self._index == len(term.shape) - 1:
            return _number(term.args[1])
        args = self._args
        return None if args is None else _computed(term.op, term.params, args)

    @functools.cached_property
    def real(self) -> bool:
        """Whether it is sure to be real numbers."""
        term, op = self._term, self._term.op
        if self.number is not None:
            return math.isfinite(self.number)
        if op in ("const", "empty"):
            return False
        if not self.changes:
            return True
        if op in ("argument", "iota") or op in _COMPARISONS:
            return True
        if op == "unknown":
            return term.params[1]
        if op == "pad" and self._index == len(term.shape) - 1:
            fill = term.args[1]
            known = Beyond.of(self._terms, fill, None, self._n)
            return fill.params[1] if fill.op == "unknown" else known.real
        args = self._args
        if args is None or not args:
            return False
        if op == "select_n" and args[0].number is not None:
            return args[1 + int(args[0].number)].real
        if op in ("div", "over") and not all(map(_divides, args[1:])):
            return False
        if op in _OF_MORE_THAN and args[0].least <= _OF_MORE_THAN[op]:
            return False
        return (op in _TOTAL or op in LINEAR_IN) and all(arg.real for arg in args)

    @functools.cached_property
    def least(self) -> int:
        """1 if it is sure to be more than 0, 0 if it is sure not to be less, and else -1."""
        term, op = self._term, self._term.op
        if self.number is not None:
            return (self.number > 0) - (self.number < 0)
        args = self._args
        if not args:
            return -1
        least = [arg.least for arg in args]
        if op == "select_n":
            return least[2] if least[1] == 0 and _is_zero_instead(term) else min(least[1:])
        if op in ("exp", "logistic"):
            return 1
        if op in ("abs", "square"):
            return 0
        if op == "mul" and term.args[0] is term.args[1] and term.views[0] == term.views[1]:
            return 0
        if op == "sum" and min(term.params[0]) > 0:
            return max(least) if min(least) >= 0 else -1
        if op == "max":
            return max(least)
        return min(least) if op in _KEEPS_SIGN else -1


def _is_zero_instead(term: Term) -> bool:
    """Whether a `select_n` is x where x is not 0, and something else where it is."""
    which, x, *rest = term.args
    if len(rest) != 1 or which.op != "eq" or x not in which.args:
        return False
    at = which.args.index(x)
    of_eq, of_x = term.views[0], which.views[at]
    if _number(which.args[1 - at]) != 0 or of_eq is None or of_x is None:
        return False
    return tuple(tuple(i for e in dim for i in of_eq[e]) for dim in of_x) == term.views[1]


def _divides(below: Beyond) -> bool:
    """Whether a quotient by this is sure to be a real number."""
    return not below.changes or below.least > 0


def _computed(op: str, params: tuple, args: Sequence[Beyond]) -> Number | None:
    """The number that an operation makes of what its arguments are."""
    found = [arg.number for arg in args]
    known = [number for number in found if number is not None]
    if op == "select_n":
        which, *cases = found
        if which is not None:
            return cases[int(which)]
        return cases[0] if all(case == cases[0] for case in cases) else None
    if op in ("and", "or") and any(number is (op == "or") for number in found):
        return op == "or"
    if op == "sum" and not {*known}.isdisjoint(_INFINITE):
        infinite = {f * x for f, x in zip(params[0], found, strict=True) if x in _INFINITE}
        real = all(arg.real or arg.number in _INFINITE for arg in args)
        return infinite.pop() if real and len(infinite) == 1 else None
    if op == "pad":
        return found[0] if found[0] == found[1] else None
    if op in LINEAR_IN and any(found[i] == 0 for i in LINEAR_IN[op]):
        real = all(arg.real for arg in args) and (op != "div" or _divides(args[1]))
        return 0 if real else None
    if op == "over" and found[0] == 0:
        return 0 if all(map(_divides, args[1:])) else None
    if op == "not" and isinstance(found[0], bool):
        return not found[0]
    if op in ("all", "cast", "reduce_max", "reduce_min", "reduce_and", "reduce_or"):
        return found[0]
    if op == "reduce_sum":
        return 0 if found[0] == 0 else None
    if len(known) < len(found):
        return None
    if op == "sum":
        return float(sum(f * x for f, x in zip(params[0], known, strict=True)))
    if op in ("max", "min"):
        return max(known) if op == "max" else min(known)
    return _EXACT[op].get(known[0]) if op in _EXACT else None


def restricted(terms: Terms, value: Value, index: int, new: Part) -> Value:
    """`value`, of the first indices of a dim alone, which are the part `new`."""
    key = "restricted", value.term.number, index, new.size
    if key not in terms.memo:
        base, part = whole(value.term), Part(new.size, fresh())
        found = _restricted(terms, base, base.parts[index][0], part)
        terms.memo[key] = base, part, found
    base, part, found = terms.memo[key]
    runs: dict[Label | None, Parts] = {part.label: (new,)}
    runs.update({a.label: b for (a,), b in zip(base.parts, value.parts, strict=True)})
    parts = tuple(tuple(p for part in dim for p in runs[part.label]) for dim in found.parts)
    return Value(found.term, parts, ())


def _restricted(terms: Terms, value: Value, old: Part, new: Part) -> Value:
    term = value.term
    args, along = opened(value)
    own = value.parts[-1] == (old,)
    if term.op == "iota":
        return Value(terms.iota(new.size), ((new,),), ())
    if term.op == "spread" and own:  # what belongs to no row is left out
        return made(terms, "spread", (), args, (), along=along, new=[(new,)])
    if term.op == "pad" and own and (found := _of_pad(terms, args, along[0][0], new)):
        return found
    inside = {part.label for each in along for dim in each for part in dim}
    mapped = any(old.label in arg.labels for arg in args) and old.label not in inside
    if not mapped or term.op in ("carried", "last"):
        return _sliced(terms, value, old, new)
    made_dims = own_dims(value, args)
    args = [_narrowed(terms, arg, old, new) for arg in args]
    return _remade(terms, value, args, along, made_dims, new)


def _narrowed(terms: Terms, arg: Value, old: Part, new: Part) -> Value:
    """An argument, of the first indices of a part alone."""
    if arg.term.op == "iota" and arg.parts[0][0] == old:
        parts = (new, *arg.parts[0][1:])
        return Value(terms.iota(size_of(parts)), (parts,), ())
    if (old,) in arg.parts:
        return restricted(terms, arg, arg.parts.index((old,)), new)
    return _sliced(terms, arg, old, new) if old.label in arg.labels else arg


def _sliced(terms: Terms, value: Value, old: Part, new: Part) -> Value:
    params = (((0, new.size, 1),),)
    return made(terms, "slice", params, [value], (), along=[[(old,)]], new=[(new,)])


def _of_pad(terms: Terms, args: Sequence[Value], run: Parts, new: Part) -> Value | None:
    """The first elements of what is padded at its end."""
    x, fill = args
    if size_of(run) >= new.size and all(part.label is None for part in run):
        return x
    if len(run) != 1:
        return None
    if run[0].size < new.size:
        if fill.term.op != "const":
            return None
        more = ((0, new.size - run[0].size, 0),)
        return made(terms, "pad", (more,), [x, fill], (), along=[[run], []], new=[(new,)])
    if run[0].size > new.size:
        return _narrowed(terms, x, run[0], new)
    names: dict[Any, Any] = {run[0].label: new.label}
    return relabelled(x, names)


def _remade(terms: Terms, value: Value, args: list[Value], along, own, new: Part) -> Value:
    """The operation of a value on other arguments, which have `new` instead of another part."""
    op, params = value.term.op, value.term.params[:-2]
    inside = {part.label for each in along for dim in each for part in dim}
    kept = {*value.labels, *inside, new.label}
    have = labelled(part for arg in args for parts in arg.parts for part in parts)
    over = {label: size for label, size in have.items() if label not in kept}
    if op == "sum":
        return linear(terms, zip(params[0], args, strict=True), ())
    if op == "reduce_sum":
        return total(terms, args[0], over, over, ())
    if op.startswith("reduce_"):
        return extreme(terms, op.removeprefix("reduce_"), params, args[0], over, ())
    if (found := decided(terms, op, args)) is not None:
        return found.at(())
    if op in COMMUTATIVE or op in ADDITIVE or op in FORMS:
        return elementwise(terms, op, params, args, ())
    binds = frozenset[Hashable]().union(*(arg.free for arg in value.term.args)) - value.term.free
    if binds and not any(arg.term.free & binds for arg in args):
        return args[0]
    beside = value.term.args[len(args) :]
    how = {"over": over, "along": along, "new": own, "beside": beside, "binds": binds}
    return made(terms, op, params, args, (), **how)


@later
def unpadded(
    terms: Terms, value: Value, labels: Collection[Label], fits: Callable[[Number], bool]
) -> tuple[Value, dict[Label, int]]:
    """`value` without the padding of those of its dims that have these labels alone.

    Args:
      fits: whether a number may be left out.

    Returns:
      The value; and the labels of the dims that it has instead, with their sizes.
    """
    for index, n in sorted(value.term.pads, key=lambda pad: pad[::-1]):
        run = value.parts[index]
        if n < 2 or not all(part.label in labels for part in run):
            continue
        number = Beyond.of(terms, value.term, index, n).number
        if number is not None and fits(number):
            new = fresh()
            rest = {*labels, new}.difference(part.label for part in run)
            value = restricted(terms, value, index, Part(n, new))
            found, sizes = unpadded(terms, value, rest, fits)
            return found, {new: n, **sizes}
    return value, {}


def unpadded_to(terms: Terms, x: Value, dim: int, start: int, limit: int, stride: int) -> Value:
    """`x` before a range of a local dim is taken, without padding that is not in the range.

    So a range that starts with the first index is taken of what `x` is computed of.
    """
    if x.dims[dim] not in x.parts:
        return x
    index = x.parts.index(x.dims[dim])
    ends = [n for i, n in x.term.pads if i == index]
    ends = [limit] if ends and (start, stride) == (0, 1) else [n for n in ends if n >= limit]
    if not ends or min(ends) < 2:
        return x
    new = Part(min(ends), fresh())
    found = restricted(terms, x, index, new)
    return found.at((new,) if d == dim else parts for d, parts in enumerate(x.dims))
