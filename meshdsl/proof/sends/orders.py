"""Rows that devices exchange so that each has pieces of the whole which are not neighbours.

What a device has of such a piece is the piece of the whole that a table says for its place along
the axis (`labels.Sent`). Pieces that are put together are the whole in another order, if each is
there once (`labels.Minor`). Only numbers that are known for each place say which piece it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from meshdsl.proof.forms.known import numbers_along, numbers_of
from meshdsl.proof.labels import Label, Major, Minor, Part, Parts, Sent, axis_of, fresh, size_of
from meshdsl.proof.moves import moved_label
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import Value, aligned, alike, cut, opened, own_dims, relabelled


def row_of_order(
    x: Value, dim: int, start: int | np.ndarray, size: int, axis: str = ""
) -> Value | None:
    """One of the pieces of a local dim that lies in another order, if the range is that of one.

    Args:
      start: of the range, or for each device along `axis`.
    """
    first, *rest = x.dims[dim] or (Part(1, None),)
    minor = first.label
    if not isinstance(minor, Minor) or size != size_of(rest) or axis not in ("", minor.axis):
        return None
    starts = np.broadcast_to(start, len(minor.table))
    if (starts % size).any() or starts.min() < 0 or starts.max() >= size * first.size:
        return None
    table = [row[at] for row, at in zip(minor.table, (starts // size).tolist(), strict=True)]
    found = _piece(x, (Part(len(table), Major(minor)), first), minor.axis, table)
    return found and found.at(tuple(rest) if d == dim else p for d, p in enumerate(x.dims))


def _piece(x: Value, pair: Parts, axis: str, table: Sequence[int]) -> Value | None:
    """`x` with the piece that a device has by a table in place of two parts."""
    size = size_of(pair)
    label = moved_label(axis, table, size)
    if label in x.labels or not any(pair == p[i : i + 2] for p in x.parts for i in range(len(p))):
        return None
    parts = []
    for dim in x.parts:
        at = next((i for i in range(len(dim)) if dim[i : i + 2] == pair), None)
        new = dim if at is None else (*dim[:at], Part(size, label), *dim[at + 2 :])
        parts.append(new)
    return Value(x.term, tuple(parts), x.dims)


def _of_slice(value: Value) -> Value:
    """A slice of what a device has of a dim, as a piece of the whole, if it is one of several."""
    if value.term.op != "slice" or len(value.term.params[0]) != 1:
        return value
    (x,), ((run,),) = opened(value)
    own, (start, limit, step) = own_dims(value, [x]), value.term.params[0][0]
    found = None
    if step == 1 and len(own) < 2:
        found = _piece_of(x, run, own[0] if own else (), limit - start, lambda axis: start)
    return value if found is None else found.at(value.dims)


def _piece_of(
    x: Value, run: Parts, own: Parts, size: int, start: Callable[[str], np.ndarray | int | None]
) -> Value | None:
    """What devices have of a dim from a start on, as a piece of the whole, if it is one of several.

    Args:
      run: the parts of the dim, which lie in one with those of the devices.
      own: the parts that the result has in their place.
      start: gives for an axis the start on each device along it. None: it is not known.
    """
    count = size_of(run)
    if len(run) != 1 or count % size or [p for d in x.parts for p in d].count(run[0]) != 1:
        return None
    for i, dim in enumerate(x.parts):
        at = dim.index(run[0]) if run[0] in dim else 0
        axis = axis_of(dim[at - 1].label) if at else ""
        if not axis or isinstance(dim[at - 1].label, Major):
            continue
        devices, label = dim[at - 1]
        places = label.table if isinstance(label, Sent) else range(devices)
        begin = start(axis)
        if begin is None:
            continue
        begin = np.broadcast_to(begin, len(places))
        if (begin % size).any() or begin.min() < 0 or begin.max() > count - size:
            continue
        both = zip(places, (begin // size).tolist(), strict=True)
        table = [place * (count // size) + first for place, first in both]
        whole = devices * count // size
        part = Part(whole, moved_label(axis, table, whole))
        if part.label in x.labels and part.label != label:
            continue
        new = (*dim[: at - 1], part, *own, *dim[at + 1 :])
        return Value(x.term, tuple(new if j == i else p for j, p in enumerate(x.parts)), ())
    return None


def _on(value: Value, axis: Part, device: int) -> Value | None:
    """What a device along an axis chooses, by its number."""
    while value.term.op == "select_n":
        which, *cases = opened(value)[0]
        known = numbers_along(which, axis)
        if known is None:
            return None
        value = cases[int(known[device])]
    return _of_slice(value)


def _tables(values: Sequence[Value], axis: str) -> tuple[Value, Sent, list[Sequence[int]]] | None:
    """Values that are alike but for the piece that each has.

    Returns:
      The first, its label along the axis, and for each value its table.
    """
    here, tables, wholes, labels = fresh(), [], [], []
    for value in values:
        found = [label for label in value.labels if isinstance(label, Sent) and label.axis == axis]
        if len(found) != 1:
            return None
        labels += found
        tables.append(found[0].table)
        wholes.append(relabelled(value, {found[0]: here}))
    if not all(alike(one, wholes[0]) for one in wholes):
        return None
    return values[0], labels[0], tables


def chosen(values: Sequence[Value]) -> Value | None:
    """A `select_n` that each device decides by its number, of pieces of one whole."""
    which, *cases = values
    axes = [Part(size, label) for label, size in which.labels.items() if isinstance(label, str)]
    known = numbers_along(which, axes[0]) if len(axes) == 1 else None
    if known is None:
        return None
    numbered = enumerate(known)
    each = [_on(cases[int(n)], axes[0], device) for device, n in numbered]
    kept = [value for value in each if value is not None]
    axis = axis_of(axes[0].label)
    found = _tables(kept, axis) if len(kept) == len(each) else None
    if found is None:
        return None
    value, label, tables = found
    table = [row[device] for device, row in enumerate(tables)]
    return relabelled(value, {label: moved_label(axis, table, value.labels[label])})


def _own_piece(x: Value, dim: int, axis: Part, start: np.ndarray, size: int) -> Value | None:
    """What a device takes, by its number, of the rows that it has."""
    if (row := row_of_order(x, dim, start, size, axis_of(axis.label))) is not None:
        return row
    new = (Part(size, fresh()),) if size > 1 else ()
    found = _piece_of(x, x.dims[dim], new, size, lambda of: start if of == axis.label else None)
    return found and found.at(new if d == dim else p for d, p in enumerate(x.dims))


def of_place(x: Value, dim: int, start: Value, size: int) -> Value | None:
    """What a device takes of a dim that is whole, if its number says which piece that is."""
    axes = [Part(n, label) for label, n in start.labels.items() if isinstance(label, str)]
    known = numbers_along(start, axes[0]) if len(axes) == 1 else None
    if known is not None and (own := _own_piece(x, dim, axes[0], known, size)) is not None:
        return own
    whole = x.shape[dim]
    if known is None or whole % size or (known % size).any():
        return None
    if known.min() < 0 or known.max() > whole - size:
        return None
    try:
        value, ((head, *more), rest) = cut(x, dim, [whole // size, size])
    except NotProved:
        return None
    label = moved_label(axis_of(axes[0].label), (known // size).tolist(), whole // size)
    if more or not isinstance(head.label, int) or label in value.labels:
        return None
    value = value.at(rest if d == dim else parts for d, parts in enumerate(value.dims))
    return relabelled(value, {head.label: label})


def _counted(terms: Terms, value: Value, dim: int, pieces: int) -> Value:
    """What counts the rows of a piece, as that piece of all numbers."""
    run = value.dims[dim]
    (size, row), *more = run or (Part(1, None),)
    axes = [label for label in value.labels if axis_of(label)]
    axis = axis_of(axes[0]) if axes else ""
    if more or isinstance(row, Minor) or {*map(axis_of, axes)} != {axis}:
        return value
    found = numbers_of(value, {axis: 0, row: 1}, 2) if axis else None
    if found is None or found.shape[1] != size:
        return value
    first, total = found[:, :1], pieces * len(found)
    right = (found == first + np.arange(size)).all() and not (first % size).any()
    if not right or first.min() < 0 or first.max() >= total * size:
        return value
    part = Part(total, moved_label(axis, (first // size).ravel().tolist(), total))
    return Value(terms.iota(total * size), ((part, *run),), value.dims)


class OfEachRound(NotProved):
    """Numbers that say where rows are depend on the round of a loop, which may be looked at alone.

    Attributes:
      labels: of the rounds.
    """

    def __init__(self, labels: Collection[Label]):
        super().__init__("in each round of a loop rows lie in another order")
        self.labels = frozenset(labels)


def _check_rounds(terms: Terms, values: Sequence[Value]) -> None:
    """Raise `OfEachRound` if it is known what values count, in each round and on each device."""
    labels = {label for value in values for label in value.labels}
    each = enumerate({axis_of(label) or label for label in labels})
    places: dict[Label | None, int] = {label: i for i, label in each}
    rounds, axes = labels & terms.rounds, {*map(axis_of, labels)} - {""}
    known = (numbers_of(value, places, len(places)) for value in values)
    if rounds and len(axes) == 1 and all(numbers is not None for numbers in known):
        raise OfEachRound(rounds)


def put_together(terms: Terms, values: Sequence[Value], dim: int, *, counts: bool) -> Value | None:
    """Pieces one after the other along a local dim, as the whole in another order.

    Args:
      counts: whether they are integers of 32 bits.
    """
    if len({value.shape for value in values}) != 1:
        return None
    if counts:
        values = [_counted(terms, value, dim, len(values)) for value in values]
    try:
        ranks = range(len(values[0].dims))
        values = aligned([_of_slice(value) for value in values], [[d] * len(values) for d in ranks])
    except NotProved:
        return None
    axes = {label.axis for label in values[0].labels if isinstance(label, Sent)}
    for axis in sorted(axes):
        found = _tables(values, axis)
        if found is not None and (one := _in_order(*found, dim)) is not None:
            return one
    if counts:
        _check_rounds(terms, values)
    return None


def _in_order(value: Value, label: Sent, tables: Sequence[Sequence[int]], dim: int) -> Value | None:
    rows = tuple(zip(*tables, strict=True))
    size, run = value.labels[label], value.dims[dim]
    if sorted(i for row in rows for i in row) != list(range(size)) or len(tables) < 2:
        return None
    minor: Label = Minor(label.axis, rows, fresh())
    major: Label = Major(minor)
    if [i for row in rows for i in row] == list(range(size)):
        major, minor = label.axis, fresh()
    if major in value.labels:
        return None
    pair = Part(len(rows), major), Part(len(tables), minor)
    each = lambda p: pair if p.label == label else (p,)
    parts = tuple(tuple(q for p in d for q in each(p)) for d in value.parts)
    dims = [(pair[1], *run) if d == dim else p for d, p in enumerate(value.dims)]
    return Value(value.term, parts, ()).at(dims)
