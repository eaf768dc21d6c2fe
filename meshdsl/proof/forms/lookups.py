"""Rows of a table by their numbers, where each device has some of the rows.

A device takes the row of each number that is among its own, and zeros for the others; the sum over
the devices is the row. Backward, a device adds what belongs to a row to it, if it has that row. The
program of one device does the same, with all rows. These are patterns of several equations:

    lookup(table, v)    select(0 <= v < n, 0, gather(table, v)), where the table has n rows
    spread(v, x)        scatter-add of select(0 <= v < n, 0, x) to n rows at v

Where each number is there once, in whatever order devices have them, the rows are the table itself:

    gather(table, iota(n))                  table
    sum over all i of put(iota(n)[i], x)    x

In `lookup` and `spread`, `v` is the number of a row less `n` times the place of the device, if
devices have parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from meshdsl.proof.forms.sums import (
    elementwise,
    inwards,
    is_zero,
    linear,
    of_linear,
    summands,
    total,
    unpadded,
)
from meshdsl.proof.labels import Part, Parts, fresh, labelled, size_of
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, alike, arguments_of, made, opened


def in_range(which: Value) -> tuple[Value, int] | None:
    """`v` and `n`, where `which` says that `0 <= v < n`."""
    if which.term.op != "and":
        return None
    sides = {side.term.op: arguments_of(side) for side in arguments_of(which)}
    if set(sides) != {"ge", "lt"} or not all(sides.values()):
        return None
    (v, low), (w, high) = sides["ge"], sides["lt"]
    if not is_zero(low) or high.term.op != "const" or not alike(v, w):
        return None
    return v, high.term.params[1]


def _masked(value: Value) -> tuple[Value, int, Value] | None:
    """`v`, `n` and `x`, where `value` is `x` where `0 <= v < n`, and elsewhere 0."""
    if value.term.op != "select_n" or len(value.term.args) != 3:
        return None
    which, zero, x = arguments_of(value)
    found = in_range(which)
    return (*found, x) if found and is_zero(zero) else None


def looked_up(terms: Terms, values: Sequence[Value], dims: Sequence[Parts]) -> Value | None:
    """The term `lookup`, if a `select_n` of these values is one."""
    which, zero, *rows = values
    found = in_range(which)
    if found is None or len(rows) != 1 or not is_zero(zero) or rows[0].term.op != "gather":
        return None
    (row,) = rows
    if row.term.params[:4] != ("clip", (0,), (), (0,)):
        return None
    (table, at), ((numbers,), _) = opened(row)
    if size_of(numbers) != found[1] or not alike(at, found[0]):
        return None
    return _lookup(terms, table, at, numbers, dims)


def same_number(terms: Terms, params: tuple, values: Sequence[Value]) -> Value | None:
    """Whether an integer is one that is counted, in one form: `v - n * i == j` as `v == n * i + j`.

    It is exact, also where integers wrap around. Where a condition puts a negative number in the
    place of others, that is never one that is counted.
    """
    for one, count in values, reversed(values):
        if count.term.op == "iota" and one.term.op == "select_n" and len(one.term.args) == 3:
            which, other, number = arguments_of(one)
            if other.term.op == "const" and other.term.params[1] < 0:
                same = same_number(terms, params, [number, count])
                found = same or elementwise(terms, "eq", params, [number, count], ())
                return elementwise(terms, "and", (), [which, found], ())
    one, other = values
    difference = linear(terms, [(1, one), (-1, other)], ())
    counted = [(-n, v) for n, v in summands(difference) if v.term.op in ("iota", "const")]
    rest = [(n, v) for n, v in summands(difference) if v.term.op not in ("iota", "const")]
    if not rest or not any(v.term.op == "iota" for _, v in counted):
        return None
    sign = 1 if rest[0][0] > 0 else -1
    sides = [linear(terms, [(sign * n, v) for n, v in side], ()) for side in (rest, counted)]
    return elementwise(terms, "eq", params, sides, ())


def _lookup(terms: Terms, table: Value, at: Value, rows: Parts, dims: Sequence[Parts]) -> Value:
    """The term `lookup`. What is not among the rows is zero, so rows of zeros at the end may go."""
    table, left = unpadded(terms, table, labelled(rows), lambda number: number == 0)
    have = table.labels
    rows = tuple(Part(n, label if label in have else None) for label, n in left.items()) or rows
    return made(terms, "lookup", (), [table, at], dims, along=[[rows], []])


def _of_part(terms: Terms, at: Value, n: int) -> tuple[Value, Parts] | None:
    """The number of a row of the whole, and the axes, where `at` is that of a row of a part."""
    if at.term.op != "sum":
        return None
    factors: tuple[Fraction, ...] = at.term.params[0]
    pairs = list(zip(factors, arguments_of(at), strict=True))
    for i, (factor, place) in enumerate(pairs):
        if place.term.op != "iota" or factor != -n:
            continue
        axes = place.parts[0]
        rest = linear(terms, pairs[:i] + pairs[i + 1 :], at.dims)
        if all(isinstance(p.label, str) and p.label not in rest.labels for p in axes):
            return rest, axes
    return None


@inwards("lookup")
def _of_lookup(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """The sum over devices of the rows that are among those of each."""
    (table, at), ((rows,), _) = opened(value)
    found = _of_part(terms, at, size_of(rows))
    if found is None or {part.label for part in found[1]} != set(labels):
        return None
    number, axes = found
    run = (*axes, *rows)
    for parts in table.parts:
        if any(parts[i : i + len(run)] == run for i in range(len(parts))):
            return _lookup(terms, table, number, run, value.dims)
    return None


def spread(
    terms: Terms, at: Value, updates: Value, rows: int, dims: Sequence[Parts | None]
) -> Value | None:
    """The term `spread`, before the sum over numbers, if a scatter of these values is one.

    Args:
      dims: of the result; None stands for the rows.
    """
    found = _masked(updates)
    if found is None or found[1] != rows or not alike(found[0], at):
        return None
    _, _, x = found
    axes: Parts = ()
    part = _of_part(terms, at, rows)
    if part is not None and not any(p.label in x.labels for p in part[1]):
        at, axes = part
    row = Part(rows, fresh())
    out = [(row,) if dim is None else dim for dim in dims]
    return made(terms, "spread", (), [at, x], out, new=[(*axes, row)])


def in_place_of(value: Value, old: Parts, new: Parts) -> Value | None:
    """`value` with other parts for neighbouring ones, along which it may also be the same.

    None: it has only some of them, or has the new ones already.
    """
    have = value.labels
    if not labelled(new).keys().isdisjoint(have):
        return None
    if labelled(old).keys().isdisjoint(have):
        return value
    count = len(old)
    for number, dim in enumerate(value.parts):
        for i in range(len(dim) - count + 1):
            if dim[i : i + count] == old:
                parts = (*dim[:i], *new, *dim[i + count :])
                return Value(
                    value.term, (*value.parts[:number], parts, *value.parts[number + 1 :]), ()
                )
    return None


def all_rows(table: Value, at: Value) -> Value | None:
    """The rows of a table at their numbers, if these are all numbers, each of which is there once.

    Args:
      table: with as many rows, which are its first dim.
    """
    if at.term.op != "iota" or at.term.shape[0] != table.shape[0]:
        return None
    found = in_place_of(table, table.dims[0], at.parts[0])
    return found and found.at([*at.dims, *table.dims[1:]])


@inwards("put")
def _of_put(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """The sum of what is put to each row, if the rows are counted."""
    (at, x), along = opened(value)
    rows, whole = value.term.params[1:3], at.term.op == "iota" and not any(map(any, along))
    if whole and rows == ((0,), at.term.shape) and labelled(at.parts[0]).keys() <= set(labels):
        found = in_place_of(x, at.parts[0], value.parts[-1])
        if found is not None:
            rest = set(labels) - labelled(at.parts[0]).keys()
            return total(terms, found, rest, sizes, value.dims)
    return of_linear(terms, value, labels, sizes)
