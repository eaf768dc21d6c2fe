"""What is known of the signs of numbers, and where they are zero."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

from meshdsl.proof.forms.sums import is_zero
from meshdsl.proof.labels import Label, Major, Minor, Part, Parts, labelled
from meshdsl.proof.terms import Term
from meshdsl.proof.values import Value, arguments_of, lacking

_ANY, _UNSIGNED, _POSITIVE = range(3)  # any number; not a negative one; a positive one
_KEEPS = {
    "ordered",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "cast",
    "over",
    "mul",
}  # the sign of arguments


def unsigned(term: Term) -> bool:
    """Whether no number of a term is negative."""
    return _sign(term) >= _UNSIGNED


def positive(term: Term) -> bool:
    """Whether all numbers of a term are larger than zero."""
    return _sign(term) == _POSITIVE


@functools.lru_cache(4096)
def _sign(term: Term) -> int:
    if term.op == "exp":
        return _POSITIVE
    if term.op == "const":
        number = term.params[1]
        if isinstance(number, (int, float)) and number >= 0:
            return _POSITIVE if number > 0 else _UNSIGNED
        return _ANY
    if term.op in _KEEPS:
        return min(map(_sign, term.args))
    if term.op == "select_n":
        return min(map(_sign, term.args[1:]))
    if term.op == "sum" and min(term.params[0]) > 0:
        signs = [_sign(arg) for arg in term.args]
        return _ANY if _ANY in signs else max(signs)
    return _ANY


def is_at_most(low: Term, high: Term) -> bool:
    """Whether no number of a term is larger than any number of another one."""
    (_, largest), (least, _) = _range(low), _range(high)
    return largest is not None and least is not None and largest <= least


def _range(term: Term) -> tuple[int | None, int | None]:
    """The least and the largest number that a term may have, where whole numbers bound it."""
    if term.op == "const" and isinstance(term.params[1], int):
        return int(term.params[1]), int(term.params[1])
    if term.op == "iota":
        return 0, term.shape[0] - 1
    if term.op == "convert_element_type" and term.params[0] == "bool":
        return 0, 1
    return None, None


# Of upper bounds, such as maxima, these make upper bounds.
_OF_BOUNDS = {"cast", "concatenate", "join", "ordered", "pad", "slice", "windows"}
_MOST = 80  # the exponential of a larger constant may be no number of a float any more


@functools.lru_cache(4096)
def bounds(term: Term) -> bool:
    """Whether a term is what exponentials may be divided by without overflow: a maximum, say.

    Over real numbers any number may be taken from all that exponentials are computed of. In floats
    it has to be about as large as the largest of them. So only maxima, logarithms of sums and small
    constants are.
    """
    if term.op in ("log", "max", "reduce_max", "variable"):
        return True
    if term.op == "const":
        number = term.params[1]
        return isinstance(number, (int, float)) and abs(number) <= _MOST
    if term.op in ("select_n", "cond"):
        return all(map(bounds, term.args[1:]))
    if term.op == "carried":
        return bounds(term.args[2])
    if term.op in ("all", "last"):
        return bounds(term.args[0])
    return term.op in _OF_BOUNDS and all(map(bounds, term.args))


def vanishes(value: Value, where: Value) -> bool:
    """Whether a value is zero wherever another one is, which is never negative.

    A sum of numbers that are not negative is zero only if each of them is. So each number that is
    a multiple of one of them is zero too.
    """
    return unsigned(where.term) and _vanishes(value, list(_zeros(where, frozenset())))


def _zeros(value: Value, lost: frozenset[Label]) -> Iterator[tuple[Value, frozenset[Label]]]:
    """What is zero wherever an unsigned value is, and the labels along all of which it is so."""
    yield value, lost
    op, args = value.term.op, arguments_of(value)
    if op in ("sum", "cast", "ordered"):
        for arg in args:
            yield from _zeros(arg, lost)
    elif op == "reduce_sum":
        yield from _zeros(args[0], lost.union(labelled(lacking(args[0], value))))
    elif op == "mul":
        for one, other in args, reversed(args):
            if positive(other.term):
                yield from _zeros(one, lost)


def _vanishes(value: Value, zeros: Collection[tuple[Value, frozenset[Label]]]) -> bool:
    if is_zero(value) or any(is_among(value, zero, lost) for zero, lost in zeros):
        return True
    op = value.term.op
    if op in ("sum", "select_n", "mul", "ordered", "reduce_sum", "cast", "over"):
        args = arguments_of(value)
        each = [_vanishes(arg, zeros) for arg in (args[1:] if op == "select_n" else args)]
        return any(each) if op in ("mul", "over") else all(each)
    return False


def is_among(value: Value, other: Value, lost: frozenset[Label]) -> bool:
    """Whether a value has elements of another one: at any indices along the parts `lost`."""
    if other.term.op == "ordered" and value.term.op != "ordered":
        return is_among(value, arguments_of(other)[0], lost)
    if value.term is not other.term:
        return False
    pairs = zip(value.parts, other.parts, strict=True)
    return all(_within(list(mine), its, lost) for mine, its in pairs)


def _within(mine: list[Part], its: Parts, lost: frozenset[Label]) -> bool:
    """Whether parts of a dim are those of another one, but for some in the place of lost ones."""
    for part in its:
        size = part.size
        if isinstance(part.label, Major) and part.label.minor.number in lost:
            two = [p.label for p in mine[:2]]
            minor = two[-1] if len(two) == 2 else None
            if not isinstance(minor, Minor) or two[0] != Major(minor):
                return False
            if minor[:2] != part.label.minor[:2]:
                return False
            del mine[:2]
            continue
        if isinstance(part.label, Minor) and part.label.number in lost:
            continue
        if part.label not in lost and mine[:1] != [part]:
            return False
        while size > 1:
            if not mine or size % mine[0].size:
                return False
            size //= mine.pop(0).size
    return True
