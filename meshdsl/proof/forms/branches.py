"""What a condition chooses: what its cases have in common does not depend on it.

A branch is skipped where it would add nothing. So it is taken whatever the condition says, if it
is seen that it gives the other case where the condition is false.

Where numbers decide that are known before the program runs, as that of a layer, all cases may be
computed, and one of them be chosen afterwards. That is the same, also in gradients: what is linear
in a case that may be zero goes into the cases, and what the same condition decides is one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from meshdsl.proof.elements import together
from meshdsl.proof.forms.assumed import replaced
from meshdsl.proof.forms.products import Product, factors, name_of, product
from meshdsl.proof.forms.signs import is_among
from meshdsl.proof.forms.sums import (
    ADDITIVE,
    TOGETHER,
    Pairs,
    elementwise,
    form,
    inwards,
    is_zero,
    later,
    linear,
    summands,
    total,
)
from meshdsl.proof.labels import Label, labelled
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import Value, alike, arguments_of, lacking, made, unchanging

_ORDERS = {"le": ("le", 0, 1), "lt": ("lt", 0, 1), "ge": ("le", 1, 0), "gt": ("lt", 1, 0)}


def by_case(terms: Terms, which: Value, cases: Sequence[Value]) -> Value:
    """The case that a condition chooses, of values in which the same parts have the same labels."""
    if len(cases) == 2:
        which, no, yes = _plain(which, *cases)
        if which.term.planned:
            no, yes = _within(no, which, 0), _within(yes, which, 1)
        cases = no, yes
        if _always(terms, which, no, yes):
            return yes
        shared, rest = _apart(no, yes)
        if shared:
            each = [linear(terms, pairs, ()) for pairs in rest]
            return linear(terms, [*shared, (1, by_case(terms, which, each))], ())
    return made(terms, "cond", (), [which, *cases], ())


@form("cond")
def _again(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value:
    """A condition and its cases, of other values than before."""
    return by_case(terms, values[0], values[1:])


def _plain(which: Value, no: Value, yes: Value) -> tuple[Value, Value, Value]:
    """A condition that is no number and no negation, with the cases that it then chooses from."""
    term, params = which.term, which.term.params[:-2]
    args = arguments_of(which)
    if term.op == "convert_element_type" and params[0] == "bool":
        return _plain(args[0], no, yes)
    if term.op == "not" and not params:
        return _plain(args[0], yes, no)
    if term.op in ("eq", "ne"):
        for number, other in (args, reversed(args)):
            said = number.term.params[1] if number.term.op == "const" else None
            convert = other.term.op == "convert_element_type" and other.term.params[0] == "bool"
            if isinstance(said, bool) or (convert and params == ("int32",) and said in (0, 1)):
                same = bool(said) == (term.op == "eq")
                return _plain(other, *((no, yes) if same else (yes, no)))
    return which, no, yes


@later
def by_round(terms: Terms, values: Sequence[Value]) -> Value | None:
    """A `select_n` that numbers decide for each round of a loop, as that of a layer."""
    which, *cases = values
    here = labelled(part for dim in which.dims for part in dim)
    rounds = [label for label in which.labels if isinstance(label, int)]
    if here or not rounds or len(cases) != 2 or not which.term.planned:
        return None
    return by_case(terms, which, cases)


def _within(value: Value, which: Value, case: int) -> Value:
    """What a value is in a case, if the same condition has chosen it."""
    if value.term.op != "cond":
        return value
    condition, *cases = arguments_of(value)
    return _within(cases[case], which, case).at(value.dims) if alike(condition, which) else value


def inside(value: Value, which: Value, case: int, count: int) -> Value:
    """What a value is in a branch, if it is that of the same branch of an earlier condition.

    Args:
      count: of branches.
    """
    if count == 2:
        numbers = [Value(value.term, (), ()) for _ in range(count)]
        which, first, _ = _plain(which, *numbers)
        case = case if first is numbers[0] else 1 - case
    same = value.term.op == "cond" and len(value.term.args) == 1 + count
    return _within(value, which, case) if same else value


def planned(value: Value) -> tuple[Value, list[Value]] | None:
    """A condition that numbers decide, and what it chooses from; None if a value is no such."""
    if value.term.op != "cond" or not value.term.args[0].planned:
        return None
    which, *cases = arguments_of(value)
    return (which, cases) if len(cases) == 2 else None


# Operations that are linear in some of their arguments, each by itself: the numbers of these.
_LINEAR = {"mul": (0, 1), "div": (0,), "over": (0,), "select_n": (1, 2)} | dict.fromkeys(
    ADDITIVE, (0,)
)


@later
def of_cases(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """What is linear in a value that a condition chooses goes into the cases, if one is zero."""
    of = lambda *values: elementwise(terms, op, params, values, ())
    numbers = (i for i in _LINEAR.get(op, ()) if i < len(values))
    found = (in_cases(terms, i, of, *values) for i in numbers)
    return next((one for one in found if one is not None), None)


@later
def in_cases(terms: Terms, i: int, of: Callable[..., Value], *values: Value) -> Value | None:
    """A function that is linear in one of its arguments, of what a condition chooses there.

    None: it is no such, or no case is zero.

    Args:
      i: the number of the argument.
      of: the function.
    """
    found = planned(values[i])
    if found is None or not any(map(is_zero, found[1])):
        return None
    which, _ = found
    each = [of(*(_within(value, which, case) for value in values)) for case in range(2)]
    return by_case(terms, which, each) if any(map(is_zero, each)) else None


def _together(terms: Terms, pairs: Pairs) -> Value | None:
    """What the same condition chooses is added up case by case."""
    groups: dict[Hashable, Pairs] = {}
    rest: Pairs = []
    for number, value in pairs:
        found = planned(value)
        group = groups.setdefault(name_of(found[0]), []) if found else rest
        group.append((number, value))
    if all(len(group) < 2 for group in groups.values()):
        return None
    for group in groups.values():
        each = [(number, arguments_of(value)) for number, value in group]
        added = (linear(terms, [(n, args[1 + i]) for n, args in each], ()) for i in range(2))
        rest.append((Fraction(1), by_case(terms, each[0][1][0], list(added))))
    return linear(terms, rest, ())


TOGETHER.insert(0, _together)


@inwards("cond")
def _of_cond(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into the cases, where numbers decide that are the same all along it."""
    if (chosen := planned(value)) is None:
        return None
    which, cases = chosen
    ready = {label for label in labels if label not in which.labels}
    if not ready:
        return None
    found = by_case(terms, which, [total(terms, case, ready, sizes) for case in cases])
    return total(terms, found.at(value.dims), set(labels) - ready, sizes)


def times_exp(terms: Terms, x: Value, power: Value, sign: int) -> Value:
    """`x * exp(sign * power)`, where the first dims of `x` are those of `power`."""
    more = unchanging(x.shape[len(power.dims) :])
    (x, power), dims = together([x, power.at([*power.dims, *more])])

    def times(x: Value, power: Value) -> Value:
        if x.term.op == power.term.op == "cond":
            (which, *cases), (same, *powers) = arguments_of(x), arguments_of(power)
            if alike(which, same):
                return by_case(terms, which, list(map(times, cases, powers)))
        pairs = [(sign * number, value) for number, value in summands(power)]
        return product(terms, factors(x), Product(None, pairs, []))

    return times(x, power).at(dims)


def _apart(one: Value, other: Value) -> tuple[Pairs, tuple[Pairs, Pairs]]:
    """What two values have in common of what each of them adds up, and the rest of both."""
    key = lambda pair: (pair[0], name_of(pair[1]))
    first, second = summands(one), summands(other)
    both = {key(pair) for pair in first} & {key(pair) for pair in second}
    left = lambda pairs: [pair for pair in pairs if key(pair) not in both]
    return [pair for pair in first if key(pair) in both], (left(first), left(second))


def _always(terms: Terms, which: Value, no: Value, yes: Value) -> bool:
    """Whether `yes` is `no` wherever the condition is false, for whichever of its parts that is."""
    conditions = list(_conditions(which))
    return bool(conditions) and all(alike(_without(terms, yes, c), no) for c in conditions)


def _conditions(which: Value) -> Iterator[Value]:
    """The conditions that have to be true all together."""
    if which.term.op == "convert_element_type" and which.term.params[0] == "bool":
        yield from _conditions(arguments_of(which)[0])
    elif which.term.op == "and":
        for one in arguments_of(which):
            yield from _conditions(one)
    else:
        yield which


def _without(terms: Terms, value: Value, condition: Value) -> Value:
    """`value` where a condition is false.

    If the least of some numbers is not smaller than the largest of others, no number is smaller
    than another one. The same holds for sums of such, and for their absolute values.
    """
    if condition.term.op not in _ORDERS:
        return value
    false = Value(terms.constant(False, bool), (), ())
    order, least, largest = _ordered(condition)
    low, high = _of_all(least, "min", "max"), _of_all(largest, "max", "min")
    dtypes = condition.term.params[:-2]
    counts = all(_is_counted(one.value.term) for one in (*low, *high))
    if dtypes and len(low) + len(high) > 2 and not counts:  # they may wrap around
        return value

    def replace(found: Value) -> Value | None:
        its_order, one, other = _ordered(found)
        if its_order != order or found.term.params[:-2] != dtypes or not _are_among(other, high):
            return None
        either = [one]
        if one.term.op == "abs":
            (inner,) = arguments_of(one)
            either = [inner, linear(terms, [(-1, inner)], ())]
        return false if any(_are_among(each, low) for each in either) else None

    return replaced(terms, value, lambda term: term.op in _ORDERS, replace)


def _is_counted(term: Term) -> bool:
    """Whether numbers count elements, in whatever order."""
    return term.op in ("const", "iota") or (term.op == "ordered" and _is_counted(term.args[0]))


def _ordered(value: Value) -> tuple[str, Value, Value]:
    """`le` or `lt`, and the sides of a comparison that are said to be smaller and larger."""
    args = arguments_of(value)
    order, i, j = _ORDERS[value.term.op]
    return order, args[i], args[j]


class _All(NamedTuple):
    """What is added up of all numbers along some parts.

    Attributes:
      number: that each of them is times.
      value: the numbers.
      lost: the labels of the parts.
    """

    number: Fraction
    value: Value
    lost: frozenset[Label]


def _of_all(value: Value, extreme: str, other: str) -> list[_All]:
    """What a value is the least of, or the largest; `other` is of what is subtracted."""
    found = []
    for number, one in summands(value):
        lost: frozenset[Label] = frozenset()
        if one.term.op == f"reduce_{extreme if number > 0 else other}":
            (arg,) = arguments_of(one)
            lost = frozenset(labelled(lacking(arg, one)))
            one = arg
        found.append(_All(number, one, lost))
    return found


def _are_among(value: Value, each: Sequence[_All]) -> bool:
    """Whether what a value adds up are elements of these, one of each."""
    left = list(each)
    if len(left) == 1 and left[0].number == 1 and is_among(value, left[0].value, left[0].lost):
        return True
    for number, one in summands(value):
        same = (a for a in left if a.number == number and is_among(one, a.value, a.lost))
        found = next(same, None)
        if found is None:
            return False
        left.remove(found)
    return not left
