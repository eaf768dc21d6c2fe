"""What each row is of a matrix of its own, which its key chooses: the expert of a token, say.

A row that is multiplied with the matrix of its group is a *sum over groups*,

    sum over groups g of  one_hot(key == g) * z[g]

of numbers that are 0 for all groups but that of the row. So it is linear in the rows and in the
matrices, and groups may be on several devices as any other dim may. It has one form: whatever is
multiplied by `one_hot` is what it is for rows of this group. For these

    a sum over groups                   is its z[g]
    select(0 <= key < groups, 0, x)     is x

and in a product with a sum over groups all other factors go into that sum. A row that is of no
group is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshdsl.proof.forms.assumed import again, given
from meshdsl.proof.forms.lookups import in_range, same_number
from meshdsl.proof.forms.products import Product, factors, product
from meshdsl.proof.forms.sorted_rows import within
from meshdsl.proof.forms.sums import FORMS, elementwise, form, is_zero, total
from meshdsl.proof.labels import Label, Parts, labelled, size_of
from meshdsl.proof.terms import Term, Terms
from meshdsl.proof.values import (
    Value,
    alike,
    arguments_of,
    lacking,
    made,
    opened,
    own_dims,
    relabelled,
)

_OF_SOME = {"reduce_sum", "reduce_max", "reduce_min"}


def one_hot(terms: Terms, key: Value, groups: Parts, dtype: str) -> Value:
    """For each key and each group 1 if the key is its number, and else 0."""
    found, count = within(key), size_of(groups)
    if found is not None and found.size >= count <= found.other:
        key = found.number
    same = _same(terms, key, groups, dtype)
    return made(terms, "one_hot", (), [same], ())


def _same(terms: Terms, key: Value, groups: Parts, dtype: str) -> Value:
    number = Value(terms.iota(size_of(groups)), (groups,) if groups else (), ())
    found = same_number(terms, (dtype,), [key, number])
    return found or elementwise(terms, "eq", (dtype,), [key, number], ())


class Grouped(NamedTuple):
    """A sum over groups.

    Attributes:
      mask: `one_hot`.
      each: what it is times.
      groups: the parts of the sum.
    """

    mask: Value
    each: Value
    groups: Parts


def grouped(value: Value) -> Grouped | None:
    """A value as a sum over groups; None if it is none."""
    if value.term.op != "reduce_sum" or value.term.args[0].op != "mul":
        return None
    (inner,) = arguments_of(value)
    groups = lacking(inner, value)
    for mask, each in (args := arguments_of(inner)), reversed(args):
        if mask.term.op == "one_hot" and labelled(groups).keys() <= mask.labels.keys():
            return Grouped(mask, each, groups)
    return None


def _has_groups(terms: Terms, term: Term) -> bool:
    key = _has_groups, term.number
    if key not in terms.memo:
        found = term.op == "one_hot" or any(_has_groups(terms, arg) for arg in term.args)
        terms.memo[key] = found
    return terms.memo[key]


def of_group(terms: Terms, value: Value, mask: Value) -> Value:
    """What a value is wherever a `one_hot` is 1; anything where that is 0."""
    if value.term.op == "select_n" and len(value.term.args) == 3:
        which, other, some = arguments_of(value)
        if is_zero(other) and _implies(terms, mask, which):
            return of_group(terms, some.at(value.dims), mask)
    if not _has_groups(terms, value.term):
        return value
    sums = grouped(value)
    if sums is not None:
        names = _renamed(sums, mask)
        if names is not None:
            return relabelled(Value(sums.each.term, sums.each.parts, ()), names).at(value.dims)
    args, along = opened(value)
    known = value.term.op in _OF_SOME or (args and not value.term.params[-1])
    if not known or any(map(any, along)) or None in value.term.views or own_dims(value, args):
        return value
    new = [of_group(terms, arg, mask) for arg in args]
    changed = any(a is not b for a, b in zip(args, new, strict=True))
    return again(terms, value, args, new) if changed else value


def _renamed(sums: Grouped, mask: Value) -> dict[Label, Label] | None:
    """New labels for the groups of a sum, with which its `one_hot` is another one; None: none."""
    if sums.mask.term is not mask.term:
        return None
    pairs = list(zip(sums.mask.parts, mask.parts, strict=True))
    if any([p.size for p in mine] != [p.size for p in its] for mine, its in pairs):
        return None
    names: dict[Label, Label] = {}
    for mine, its in pairs:
        for a, b in zip(mine, its, strict=True):
            if a.label is not None and b.label is not None and a != b:
                names[a.label] = b.label
    twice = sums.each.labels.keys() & set(names.values())
    return names if not twice and names.keys() <= labelled(sums.groups).keys() else None


def _implies(terms: Terms, mask: Value, which: Value) -> bool:
    """Whether a condition is true wherever a `one_hot` is 1: that the key is within the groups."""
    known = in_range(which)
    if known is None:
        return False
    key, count = known
    (same,) = arguments_of(mask)
    dtype = same.term.params[0]
    for number in arguments_of(same):
        for i in range(len(number.parts[0]) if number.term.op == "iota" else 0):
            groups = number.parts[0][i:]
            if size_of(groups) == count:
                return alike(_same(terms, key, groups, dtype), same)
    return False


def _mul(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """A product with a sum over groups, if other factors have such sums too."""
    if not all(_has_groups(terms, value.term) for value in values):
        return None
    for one, other in (values, values[::-1]):
        outer = factors(one)
        sums = None if outer.factor is None else grouped(outer.factor)
        if sums is None:
            continue
        inner = of_group(terms, other, sums.mask)
        if inner is other:
            continue
        each = elementwise(terms, "mul", (), [sums.each, inner], ())
        found = summed_over_groups(terms, sums.mask, each, sums.groups)
        return product(terms, factors(found), Product(None, outer.power, outer.divisors))
    return None


def summed_over_groups(terms: Terms, mask: Value, each: Value, groups: Parts) -> Value:
    """The sum over groups of what is multiplied by `one_hot`."""
    sizes = labelled(groups)
    return total(terms, elementwise(terms, "mul", (), [mask, each], ()), sizes, sizes, ())


@form("cast")
def _cast(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """A sum over groups in another dtype: only one of what it adds up is not zero."""
    sums = grouped(values[0])
    if sums is None:
        return None
    each = elementwise(terms, op, params, [sums.each], ())
    return summed_over_groups(terms, sums.mask, each, sums.groups)


def _select(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """A sum over groups, where zeros are put in the place of rows that are of no group."""
    which, *cases = values
    if len(cases) != 2 or not is_zero(cases[0]) or in_range(which) is None:
        return None
    some = given(terms, cases[1], which, True)
    sums = grouped(factors(some).factor or some)
    return some if sums is not None and _implies(terms, sums.mask, which) else None


# Before the forms of products, which take exponentials out of them.
FORMS["mul"].insert(0, _mul)
FORMS["select_n"].insert(0, _select)
