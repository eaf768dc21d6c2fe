"""Rows in another order, such as zigzag: sums and maxima over those that a device has.

Where each device has rows that are not next to each other, a value says so by its labels (`Minor`),
and its term is that of all rows in their own order. So whatever is computed of each row by itself
is the term of one device. A sum over the rows of a device depends on which ones it has:

    ordered(x)[k, j, ...]    x[table[k][j], ...], where each index is in the table once

A sum over all places k and all j is the sum over all rows of x, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from meshdsl.proof.labels import Label, Major, Minor, Part, Parts, fresh, labelled
from meshdsl.proof.moves import moved_label
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value, made, opened


def ordered(terms: Terms, value: Value, minor: Minor) -> Value:
    """The same array with the index of a device, and of its rows, in place of a part in order.

    Raises:
      NotProved: devices along the axis differ for another reason too.
    """
    if minor not in value.labels:
        return value
    rows = sorted(minor.table)
    label = moved_label(minor.axis, [rows.index(row) for row in minor.table], len(rows))
    pair = Part(len(rows), Major(minor)), Part(len(rows[0]), minor)
    if label in value.labels:
        raise NotProved(f"what lies in another order along `{minor.axis}` meets what does not")
    chunk = Part(len(rows) * len(rows[0]), fresh())
    inner = Value(value.term, tuple(_replaced(dim, pair, (chunk,)) for dim in value.parts), ())
    new = Part(len(rows), label), Part(len(rows[0]), minor.number)
    dims = [_replaced(dim, pair[1:], new[1:]) for dim in value.dims]
    return made(terms, "ordered", (tuple(rows),), [inner], dims, along=[[(chunk,)]], new=[new])


def _replaced(dim: Parts, old: Parts, new: Parts) -> Parts:
    for i in range(len(dim) - len(old) + 1):
        if dim[i : i + len(old)] == old:
            return (*dim[:i], *new, *dim[i + len(old) :])
    return dim


def of_places(
    terms: Terms, value: Value, labels: Collection[Label]
) -> tuple[Value, Collection[Label]]:
    """A value and the labels of some of its parts, none of which lies in another order."""
    for minor in [label for label in labels if isinstance(label, Minor)]:
        value = ordered(terms, value, minor)
        labels = {*labels} - {minor} | {minor.number}
    return value, labels


def of_rows(value: Value, labels: Collection[Label]) -> tuple[Value, Part] | None:
    """What is ordered, in its own order, and the part of it, if labels are those of all of it."""
    if value.term.op != "ordered" or not all(p.label in labels for p in value.parts[-1]):
        return None
    (arg,), _ = opened(value)
    gone = [p for dim in arg.parts for p in dim if p.label not in value.labels]
    chunk = Part(value.term.params[-1][0], fresh())
    parts = tuple(_replaced(dim, tuple(gone), (chunk,)) for dim in arg.parts)
    return Value(arg.term, parts, arg.dims), chunk


def each_row(terms: Terms, value: Value, change: Callable[[Value], Value]) -> Value:
    """What is made of each row of a value that is ordered, in the same order."""
    found = of_rows(value, labelled(value.parts[-1]))
    assert found is not None
    arg, part = found
    arg = change(arg)
    if part.label not in arg.labels:
        return arg.at(value.dims)
    along, new = [[(part,)]], [value.parts[-1]]
    return made(terms, "ordered", value.term.params[:-2], [arg], value.dims, along=along, new=new)
