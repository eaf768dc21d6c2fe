"""Rows in an order that data decide, such as tokens that are sorted by their expert.

Two terms say what a stable sort does, of rows whose number is a run of parts of any dims:

    sorted(x, key)    the rows of x in the order of their keys, which are integers, along a new dim
    rank(key)         for each row its place in that order

The order of rows goes outwards: an operation of each element, of rows in one order, is that order
of the operation on the rows as they were. It ends where rows are put back, because

    sorted(x, key)[rank(key)]         is x
    sum(sorted(x, key))               is sum(x), over all rows

So what devices do with their rows, each in an order of its own, is what it is without any order.
No rule needs to know how many rows have a key, or what happens where keys are equal: both terms are
of one and the same permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshdsl.proof.elements import together
from meshdsl.proof.forms.lookups import in_range
from meshdsl.proof.forms.sums import (
    TOGETHER,
    Pairs,
    elementwise,
    form,
    inwards,
    later,
    linear,
    summed_over,
    total,
)
from meshdsl.proof.labels import Minor, Part, Parts, fresh, labelled, size_of
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import (
    Value,
    aligned,
    alike,
    arguments_of,
    joined,
    made,
    opened,
    unchanging,
)


class Order(NamedTuple):
    """An order of rows.

    Attributes:
      key: what they are sorted by; its one local dim has the rows.
      rows: the parts of the rows as they were. The key may lack some, along which it is the same.
      dtype: of the key, on which it depends which of two is smaller.
      new: the dim of the rows in that order.
    """

    key: Value
    rows: Parts
    dtype: str
    new: Parts


def in_order(terms: Terms, x: Value, order: Order) -> Value:
    """`x` in an order of its rows, whose parts have the labels of the order; without local dims."""
    if x.labels.keys().isdisjoint(labelled(order.rows)):
        return Value(x.term, x.parts, ())
    values = [value.at([order.rows]) for value in (x, order.key)]
    along = [[*value.dims] for value in values]
    return made(terms, "sorted", (order.dtype,), values, (), along=along, new=[order.new])


def as_they_were(values: Sequence[Value]) -> tuple[list[Value], Order] | None:
    """Values without the order that rows have in some of them.

    Returns:
      The values, each with the rows as its one local dim; and the order. None: there is none, or
      rows are in different orders, or in no order that is known in one that has them.
    """
    first = next(v for v in values if v.term.op == "sorted")
    new = first.parts[-1]
    ordered = [v.term.op == "sorted" and v.parts[-1] == new for v in values]
    rows = labelled(new).keys()
    if any(v.labels.keys() & rows for v, known in zip(values, ordered, strict=True) if not known):
        return None
    pieces: list[Value] = []
    for value, known in zip(values, ordered, strict=True):
        if known:
            args, along = opened(value)
            pairs = zip(args, along, strict=True)
            pieces += (Value(arg.term, arg.parts, run) for arg, (run,) in pairs for run in [(run,)])
    pieces = aligned(pieces, [[0] * len(pieces)])
    keys, dtype = pieces[1::2], first.term.params[0]
    dtypes = {v.term.params[0] for v, known in zip(values, ordered, strict=True) if known}
    if len(dtypes) > 1 or not all(alike(key, keys[0]) for key in keys):
        return None
    run = joined(piece.dims[0] for piece in pieces)
    found = iter(pieces[::2])
    inner = [
        (next(found) if known else v).at([run]) for v, known in zip(values, ordered, strict=True)
    ]
    return inner, Order(keys[0].at([run]), run, dtype, new)


def without_order(values: Sequence[Value], rows: Parts) -> list[Value] | None:
    """Values whose rows are a local dim of each, as they were before these were put in one order.

    None: they are in no order, or in several.

    Args:
      rows: the parts of that dim, in order.
    """
    if not any(value.term.op == "sorted" for value in values):
        return None
    found = as_they_were(values)
    if found is None or found[1].new != rows:
        return None
    pairs = zip(found[0], values, strict=True)
    return [
        one.at(one.dims[0] if parts == rows else parts for parts in old.dims) for one, old in pairs
    ]


# -- the order goes outwards -----------------------------------------------------------------------


@later
def each_in_order(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """An operation of each element, of values some of which are rows in an order."""
    found = as_they_were(values)
    if found is None:
        return None
    inner, order = found
    result = elementwise(terms, op, params, inner, ())
    return in_order(terms, result, order)


def _sum_in_order(terms: Terms, pairs: Pairs) -> Value | None:
    """A sum of values some of which are rows in an order."""
    values = [value for _, value in pairs]
    found = as_they_were(values) if any(v.term.op == "sorted" for v in values) else None
    if found is None:
        return None
    inner, order = found
    numbers = [number for number, _ in pairs]
    result = linear(terms, zip(numbers, inner, strict=True), ())
    return in_order(terms, result, order)


TOGETHER.append(_sum_in_order)


@inwards("sorted")
def _of_sorted(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum over all rows has no order; one along another dim, and of no key, is taken of a row."""
    (x,), order = as_they_were([value]) or ([value], None)
    if order is None:
        return None
    rows, beside = labelled(order.new).keys(), {*labels} - order.key.labels.keys()
    if rows <= {*labels}:
        found = summed_over(terms, x, x.dims[0], ())
        rest = {*labels} - rows
        return total(terms, found, rest, sizes) if rest else found
    ready = beside - rows
    if not ready:
        return None
    found = in_order(terms, total(terms, x, ready, sizes, x.dims), order)
    return total(terms, found, {*labels} - ready, sizes)


# -- what sorts make -------------------------------------------------------------------------------


def counts(value: Value, run: Parts) -> bool:
    """Whether a value is the number of each index of a run."""
    return value.term.op == "iota" and value.parts == (run,)


def sorts(terms: Terms, values: Sequence[Value], dtype: str) -> list[Value] | None:
    """What a stable sort makes of arrays of one dim, by the first of them; None: no such terms.

    Args:
      dtype: of the first one.
    """
    values = aligned(values, [[0] * len(values)])
    key, run = values[0], joined(value.dims[0] for value in values)
    if key.labels.keys().isdisjoint(labelled(run)) or counts(key, run):
        return values
    if key.term.op == "sorted":
        found = [put_back(terms, value, key) for value in values]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None
    order = Order(key.at([run]), run, dtype, (Part(size_of(run), fresh()),))
    return [in_order(terms, value, order).at([order.new]) for value in values]


def put_back(terms: Terms, x: Value, at: Value) -> Value | None:
    """What has `x[i]` at place `at[i]`, if `at` are numbers of all rows, in an order.

    Args:
      x, at: of one local dim, with the same labels.
    """
    if counts(at, at.dims[0]):
        return x
    if at.term.op != "sorted" or at.dims != (at.parts[-1],):
        return None
    known = as_they_were([at])
    assert known is not None
    (numbers,), order = known
    if not counts(numbers, order.rows):
        return None
    if counts(x, at.dims[0]):
        new, along = (Part(size_of(order.rows), fresh()),), [[*order.key.dims]]
        return made(terms, "rank", (order.dtype,), [order.key], [new], along=along, new=[new])
    if x.labels.keys().isdisjoint(labelled(at.dims[0])):
        return x
    found = as_they_were([at, x])
    if found is None or x.term.op != "sorted":
        return None
    return found[0][1]


def rows_at(
    terms: Terms, x: Value, at: Value, other: Callable[[Value], Value | None]
) -> Value | None:
    """`x[at]`, of rows of `x`, without the order that either of them has; None if that stays.

    Args:
      x: its first local dim are the rows.
      other: `x[at]` for numbers of which nothing else is known.
    """
    (rows, *features), op, args = x.dims, at.term.op, arguments_of(at)
    if op == "iota" and at.term.shape == (size_of(rows),):
        return _placed(x, at)
    if op == "rank" and at.term.shape[-1] == size_of(rows):
        return _in_places(x, at)
    if op == "select_n" and len(args) == 3:
        which, *cases = args
        found = [
            other(case) if case.term.op == "const" else rows_at(terms, x, case, other)
            for case in cases
        ]
        known = [value for value in found if value is not None]
        if len(known) < len(found) or all(case.term.op == "const" for case in cases):
            return None
        each = unchanging(map(size_of, features))
        values, dims = together([which.at([*at.dims, *each]), *known])
        return elementwise(terms, "select_n", (), values, dims)
    if op == "sorted" and tuple(p for parts in at.dims for p in parts) == at.parts[-1]:
        known = as_they_were([at])
        assert known is not None
        (inner,), order = known
        one = rows_at(terms, x, inner, other) or other(inner)
        if one is None:
            return None
        one, key = aligned([one, order.key], [[0, 0]])
        run = joined([one.dims[0], key.dims[0]])
        found = in_order(terms, one, order._replace(key=key, rows=run))
        return found.at([*at.dims, *one.dims[1:]])
    return None


def _placed(x: Value, at: Value) -> Value | None:
    """`x[at]`, where the first local dim of `x` are rows, and `at` has the numbers of all."""
    run = at.parts[-1]
    if not labelled(run).keys() <= labelled(p for parts in at.dims for p in parts).keys():
        return None
    x, at = aligned([x, Value(at.term, at.parts, (run, *at.dims))], [[0, 0]])
    return x.at([*at.dims[1:], *x.dims[1:]])


def _in_places(x: Value, at: Value) -> Value | None:
    """`x[rank]`, where `x` is in the order that the rank is of."""
    if x.labels.keys().isdisjoint(labelled(x.dims[0])):
        return x.at([*unchanging(map(size_of, at.dims)), *x.dims[1:]])
    if x.term.op != "sorted" or x.parts[-1] != x.dims[0]:
        return None
    known = as_they_were([x])
    assert known is not None
    (inner,), order = known
    (key,), ((run,),) = opened(at)
    key, own = aligned([Value(key.term, key.parts, (run,)), order.key], [[0, 0]])
    if not alike(key, own) or at.term.params[0] != order.dtype:
        return None
    inner = inner.at([inner.dims[0], *x.dims[1:]])
    return _placed(inner, at)


def first_ranks(terms: Terms, x: Value, dim: int, limit: int) -> Value | None:
    """The first places of all, if the keys are 0, 1, ... `limit - 1` and then others.

    The number j is behind the j numbers that are less, and behind the other keys that are.
    """
    if x.parts[-1] != x.dims[dim] or len(x.dims) > 1:
        return None
    (key,), ((run,),) = opened(x)
    if key.term.op != "concatenate" or len(key.term.args) != 2 or key.parts[-1] != run:
        return None
    (numbers, others), ((mine,), (rest,)) = opened(key)
    if size_of(mine) != limit or not counts(numbers, mine):
        return None
    new = (Part(limit, fresh()),)
    number = Value(terms.iota(limit), (new,), ())
    less = count_below(terms, others.at([rest]), number, x.term.params[0])
    return linear(terms, [(1, number), (1, less)], [new])


# -- keys ------------------------------------------------------------------------------------------


def count_below(terms: Terms, key: Value, number: Value, dtype: str) -> Value:
    """For each number how many keys are less; the keys are one local dim."""
    less = elementwise(terms, "lt", (dtype,), [key, number], ())
    each = elementwise(terms, "convert_element_type", ("bool", "int32"), [less], ())
    return summed_over(terms, each, key.dims[0], ())


class Within(NamedTuple):
    """A number if that is 0 or more and less than `size`, and else the number `other`."""

    number: Value
    size: int
    other: int


def within(value: Value) -> Within | None:
    if value.term.op != "select_n" or len(value.term.args) != 3:
        return None
    which, other, number = arguments_of(value)
    known = in_range(which)
    if known is None or other.term.op != "const" or not alike(known[0], number):
        return None
    return Within(number, known[1], other.term.params[1])


def none_negative(key: Value) -> bool:
    """Whether all keys are sure to be 0 or more."""
    found = within(key)
    return key.term.op == "iota" or (found is not None and found.other >= 0)


# -- comparisons -----------------------------------------------------------------------------------


def _bounds(value: Value) -> tuple[int, int] | None:
    """The least and the largest of integers, where they are known."""
    op, term = value.term.op, value.term
    if op == "const" and isinstance(term.params[1], int):
        return term.params[1], term.params[1]
    if op == "rank":  # its last dim has all rows that are ranked together
        return 0, term.shape[-1] - 1
    return (0, term.shape[0] - 1) if op == "iota" else None


@form("lt")
def _less(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """Whether integers are less than a number, where their bounds say so for each case of them."""
    x, y = values
    if not params or y.term.op != "const" or not isinstance(y.term.params[1], int):
        return None
    number, bounds = y.term.params[1], _bounds(x)
    if bounds is not None and (bounds[1] < number or bounds[0] >= number):
        return Value(terms.constant(bounds[1] < number, bool), (), ())
    found = within(x)
    if found is not None and found.size == number <= found.other:
        return arguments_of(x)[0]
    if x.term.op == "select_n" and len(x.term.args) == 3:
        which, *cases = arguments_of(x)
        each = [elementwise(terms, op, params, [case, y], ()) for case in cases]
        if [case.term for case in each] == [terms.constant(b, bool) for b in (False, True)]:
            return which
    return None


@form("ne")
def _unequal(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """Of truth values that are known."""
    known = [v.term.params[1] for v in values if v.term.op == "const"]
    truths = [truth for truth in known if isinstance(truth, bool)]
    return Value(terms.constant(truths[0] != truths[1], bool), (), ()) if truths[1:] else None


@form("rem")
def _remainder(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """The number of an index of a run, divided by the size of its last parts."""
    x, y = values
    if x.term.op != "iota" or y.term.op != "const":
        return None
    parts, size = x.parts[0], 1
    if any(isinstance(part.label, Minor) for part in parts):
        return None  # what lies in another order is not in parts of its own
    for i in reversed(range(len(parts))):
        size *= parts[i].size
        if size == y.term.params[1]:
            return Value(terms.iota(size), (parts[i:],), ())
    return None
