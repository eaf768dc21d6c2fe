"""What a condition chooses: what its cases have in common does not depend on it.

A branch is skipped where it would add nothing. So it is taken whatever the condition says, if it
is seen that it gives the other case where the condition is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from meshdsl.proof.elements import together
from meshdsl.proof.forms.assumed import replaced
from meshdsl.proof.forms.products import Product, factors, name_of, product
from meshdsl.proof.forms.signs import is_among
from meshdsl.proof.forms.sums import Pairs, linear, summands
from meshdsl.proof.labels import Label, labelled
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import Value, alike, arguments_of, lacking, made, unchanging

_ORDERS = {"le": ("le", 0, 1), "lt": ("lt", 0, 1), "ge": ("le", 1, 0), "gt": ("lt", 1, 0)}


def by_case(terms: Terms, which: Value, cases: Sequence[Value]) -> Value:
    """The case that a condition chooses, of values in which the same parts have the same labels."""
    if len(cases) == 2:
        no, yes = cases
        if _always(terms, which, no, yes):
            return yes
        shared, rest = _apart(no, yes)
        if shared:
            each = [linear(terms, pairs, ()) for pairs in rest]
            return linear(terms, [*shared, (1, by_case(terms, which, each))], ())
    return made(terms, "cond", (), [which, *cases], ())


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
