"""What a condition chooses: what its cases have in common does not depend on it.

A branch is skipped where it would add nothing. So it is taken whatever the condition says, if it
is seen that it gives the other case where the condition is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshdsl.proof.assumed import replaced
from meshdsl.proof.elements import together
from meshdsl.proof.products import Product, factors, name_of, product
from meshdsl.proof.signs import is_among
from meshdsl.proof.sums import Pairs, linear, summands
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Label, Value, alike, arguments_of, lacking, made, unchanging

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

    If the least of some numbers is larger than the largest of others, so is each of them.
    """
    if condition.term.op not in _ORDERS:
        return value
    false = Value(terms.constant(False, bool), (), ())
    order, least, largest = _ordered(condition)
    (x, lost_x), (y, lost_y) = _inner(least, "min"), _inner(largest, "max")
    dtypes = condition.term.params[:-2]

    def replace(found: Value) -> Value | None:
        its_order, one, other = _ordered(found)
        if its_order != order or found.term.params[:-2] != dtypes:
            return None
        return false if is_among(one, x, lost_x) and is_among(other, y, lost_y) else None

    return replaced(terms, value, lambda term: term.op in _ORDERS, replace)


def _ordered(value: Value) -> tuple[str, Value, Value]:
    """`le` or `lt`, and the sides of a comparison that are said to be smaller and larger."""
    args = arguments_of(value)
    order, i, j = _ORDERS[value.term.op]
    return order, args[i], args[j]


def _inner(value: Value, extreme: str) -> tuple[Value, frozenset[Label]]:
    """What a value is the least or the largest of, and the labels of the parts of all of it."""
    if value.term.op != f"reduce_{extreme}":
        return value, frozenset()
    (arg,) = arguments_of(value)
    return arg, frozenset(part.label for part in lacking(arg, value))
