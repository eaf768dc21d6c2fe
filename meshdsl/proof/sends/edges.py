"""Neighbours that exchange the edges of what they have.

Forward, a device puts rows that it got from its neighbours before and after its own: windows of all
rows. Backward, it has gradients of such rows. It sends those of its neighbours' rows back, and each
adds what it got to that of its own rows: then a row has the sum of what is computed for it anywhere
(`overlaps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from meshdsl.proof.forms.known import numbers_along
from meshdsl.proof.forms.sums import ADDITIVE, elementwise, is_zero, later, linear, total
from meshdsl.proof.forms.windows import Spec, made_of, moved, specs_of, taken
from meshdsl.proof.labels import Part, Parts, fresh, size_of
from meshdsl.proof.lemmas import EDGES, Walk, lemma
from meshdsl.proof.moves import sent
from meshdsl.proof.places import axes_of
from meshdsl.proof.sends.rings import settled
from meshdsl.proof.terms import NotProved, Term, Terms
from meshdsl.proof.values import Value, made, opened, own_dims


class Edge(NamedTuple):
    """Rows of a neighbour, or of this device: `base[a - by, j + start]`, or zeros.

    Attributes:
      base: what has the rows.
      axis, rows: the parts of it that are devices and rows.
      by: how many places the neighbour is before this device.
      start: the number of the first row.
      zeros: whether there are zeros on every device, and in every row, for which there is no row.
    """

    base: Value
    axis: Part
    rows: Parts
    by: int
    start: int
    zeros: bool


def edge(value: Value, axis: Part, rows: Parts) -> Edge:
    """What a value is along an axis and rows."""
    by = start = 0
    here, last, count = axis, rows, size_of(rows)
    masks: list[tuple[int, Sequence[int]]] = []
    ranges: list[tuple[int, int]] = []
    while True:
        args, along = opened(value)
        own = [dim for dim in own_dims(value, args) if dim]
        op, params = value.term.op, value.term.params
        if op == "select_n" and len(args) == 3 and is_zero(args[1]):
            table = numbers_along(args[0], here)
            if table is None:
                break
            masks.append((by, table.tolist()))
            value = args[2]
        elif op == "sum" and set(params[0]) == {1}:
            inside = lambda a: all(0 <= a - at < axis.size and t[a - at] for at, t in masks)
            alive = [a - by for a in range(axis.size) if inside(a)]
            some = [arg for arg in args if not _zero_on(arg, here, alive)]
            if len(some) != 1:
                break
            (value,) = some
        elif own == [(here,)] and shifts(value.term):
            by -= params[0][0][1]
            (here,) = along[0][0]
            masks.append((by, [True] * axis.size))
            value = args[0]
        elif op in ("slice", "pad") and own == [dim for dim in [last] if dim]:
            low, _, step = params[0][0]
            if (op == "slice" and step != 1) or (op == "pad" and (step or not is_zero(args[1]))):
                break
            start += low if op == "slice" else -low
            (last,) = along[0]
            ranges.append((start, size_of(last)))
            value = args[0]
        else:
            break
    found = [j for j in range(count) if 0 <= j + start < size_of(last)]
    sent = [a for a in range(axis.size) if 0 <= a - by < axis.size]
    zeros = all(0 <= j + at < n for at, n in ranges for j in found)
    inside = lambda a, table: 0 <= a < axis.size and table[a]
    zeros = zeros and all(inside(a - at, table) for at, table in masks for a in sent)
    return Edge(value, here, last, by, start, zeros)


def _zero_on(value: Value, axis: Part, devices: Sequence[int]) -> bool:
    """Whether a value is zeros on devices along an axis, because none is where it asks."""
    if not shifts(value.term) or own_dims(value, opened(value)[0]) != [(axis,)]:
        return False
    return not any(0 <= a + value.term.params[0][0][1] < axis.size for a in devices)


def shifts(term: Term) -> bool:
    """Whether a term is what devices along an axis have of others at one distance."""
    if term.op != "windows" or len(term.params[0]) != 1 or not term.params[-2][0]:
        return False
    every, _, steps = term.params[0][0]
    return every == 1 and steps == (1,) and len(term.params[-2][0][0]) == 1


def _on(table: np.ndarray | None, devices: Sequence[int]) -> int | None:
    """What is the same on some devices."""
    found = set() if table is None else {int(table[a]) for a in devices}
    return found.pop() if len(found) == 1 else None


@lemma("ppermute")
def _ppermute(walk: Walk, eqn, *values: Value) -> list[Value]:
    """Devices along an axis send what they have to others: parts of it, or edges to neighbours."""
    axes = [(str(axis), size) for axis, size in axes_of(walk, eqn, "axis_name") if size > 1]
    sources = {target: source for source, target in eqn.params["perm"]}
    if not axes and sources:
        return [*values]
    if len(axes) != 1:
        raise NotProved("there is no lemma for `ppermute`")
    ((axis, size),), found = axes, []
    for x in values:
        if walk.sends == EDGES:
            one = _from_neighbours(walk, x, axis, size, sources)
        else:
            one = settled(walk.terms, _from_some(walk, x, Part(size, axis), sources))
        if one is None:
            raise NotProved("there is no lemma for `ppermute`")
        found.append(one)
    return found


def _from_some(walk: Walk, x: Value, axis: Part, sources: Mapping[int, int]) -> Value:
    """What each device along an axis gets from another one, and zeros where it gets nothing.

    Where a device gets nothing, it chooses zeros, and what it does not choose is that of any other.
    """
    rest = iter(sorted({*range(axis.size)} - {*sources.values()}))
    places = [sources[i] if i in sources else next(rest) for i in range(axis.size)]
    found = sent(x, str(axis.label), places)
    if len(sources) == axis.size:
        return found
    gets = np.array([i in sources for i in range(axis.size)])
    key = str(gets.dtype), gets.shape, gets.tobytes()
    which = Value(walk.terms.term("array", key, shape=gets.shape), ((axis,),), ())
    zero = Value(walk.terms.constant(0, ""), (), ())
    return elementwise(walk.terms, "select_n", (), [which, zero, found], x.dims)


def _from_neighbours(
    walk: Walk, x: Value, axis: str, size: int, sources: Mapping[int, int]
) -> Value | None:
    """What devices at some distances have, each of which is that of all devices that are there.

    None where it is something else, as what goes round among more than two devices.
    """
    if axis not in x.labels:
        return None
    distances: dict[int, list[int]] = {}
    for target, source in sorted(sources.items()):
        distances.setdefault(target - source, []).append(source)
    if size > 2 and any(by - size in distances for by in distances):
        return None
    found = []
    for by, devices in sorted(distances.items()):
        if not by or len(devices) < size - abs(by):
            return None
        value = _on_devices(walk, x, Part(size, axis), devices)
        found.append((1, moved(walk.terms, value, axis, size, by).at(x.dims)))
    return linear(walk.terms, found, x.dims)


def _on_devices(walk: Walk, x: Value, axis: Part, devices: Sequence[int]) -> Value:
    """A value that is the same as `x` on some devices along an axis, as simple as possible."""
    args, along = opened(x)
    if x.term.op == "sum":
        args = [_on_devices(walk, arg, axis, devices) for arg in args]
        return linear(walk.terms, zip(x.term.params[0], args, strict=True), x.dims)
    if x.term.op == "select_n":
        which = _on(numbers_along(args[0], axis), devices)
        return x if which is None else _on_devices(walk, args[1 + which], axis, devices)
    if x.term.op == "dynamic_slice" and len(args) == 2 and len(along[0]) == 1:
        start, own = _on(numbers_along(args[1], axis), devices), own_dims(x, args)
        (run,), (size,) = along[0], x.term.params[0]
        if start is not None and run and run[0].label is not None:
            start = min(max(start, 0), size_of(run) - size)
            params = (((start, start + size, 1),),)
            return made(walk.terms, "slice", params, args[:1], x.dims, along=[[run]], new=own)
    return x


def placed(terms: Terms, value: Value, dim: int, start: Value, size: int) -> Value | None:
    """Zeros along a local dim of this size, but for a value that begins at `start`.

    What comes from one distance may begin elsewhere than what comes from another one.
    """
    if len(start.parts) != 1 or len(start.parts[0]) != 1:
        return None
    (axis,), rows, new = start.parts[0], value.dims[dim], Part(size, fresh())
    table, found = numbers_along(start, axis), []
    for factor, arg in _added(value):
        here = [a for a in range(axis.size) if not _zero_on(arg, axis, [a])]
        at = _on(table, here)
        if at is None or any(part.label is None for part in rows):
            return None
        low = min(max(at, 0), size - size_of(rows))
        params, zero = (((low, size - size_of(rows) - low, 0),),), terms.constant(0, "")
        both = [arg, Value(zero, (), ())]
        along = [[rows], []]
        found.append((factor, made(terms, "pad", params, both, (), along=along, new=[(new,)])))
    return linear(terms, found, [(new,) if d == dim else p for d, p in enumerate(value.dims)])


def _added(value: Value) -> list[tuple[Fraction | int, Value]]:
    """What is added up to a value, each with its factor."""
    if value.term.op != "sum":
        return [(1, value)]
    return list(zip(value.term.params[0], opened(value)[0], strict=True))


def _without(base: Value, *dims: Parts) -> tuple:
    """The rest of what is known of a value, beside some of its dims."""
    return base.term, tuple(None if parts in dims else parts for parts in base.parts)


def put_together(terms: Terms, values: Sequence[Value], dim: int) -> Value | None:
    """Rows of neighbours one after the other along a local dim, as windows of all rows."""
    if not any(shifts(v.term) or v.term.op == "select_n" for v in values):
        return None
    sizes = [value.shape[dim] for value in values]
    labels = {p for v in values for parts in v.parts for p in parts if isinstance(p.label, str)}
    for axis in sorted(labels):
        edges = [edge(value, axis, value.dims[dim]) for value in values]
        first = edges[0]
        count = size_of(first.rows)
        begin = [sum(sizes[:i]) for i in range(len(sizes))]
        starts = {e.start - e.by * count - b for e, b in zip(edges, begin, strict=True)}
        bases = {_without(e.base, (e.axis, *e.rows)) for e in edges}
        fits = all(
            e.zeros and e.start >= 0 and e.start + n <= count and (e.axis, *e.rows) in e.base.parts
            for e, n in zip(edges, sizes, strict=True)
        )
        if fits and len(starts) == len(bases) == 1:
            new = (Part(sum(sizes), fresh()),)
            run, pieces = (first.axis, *first.rows), ((count, (axis,)), (1, new))
            found = taken(terms, first.base, Spec(run, 1, starts.pop(), pieces))
            if found is not None:
                return found.at(new if d == dim else p for d, p in enumerate(values[0].dims))
    return None


Pairs = list[tuple[Fraction, Value]]


@later
def overlaps(terms: Terms, pairs: Pairs) -> Pairs:
    """A sum in which rows that overlap are added up, as what is computed of all rows."""
    for _, value in pairs:
        args, _ = opened(value)
        own, inner = own_dims(value, args), value
        if value.term.op == "pad":
            inner = args[0]
        elif shifts(value.term):
            own = own_dims(args[0], opened(args[0])[0])
        if not shifts(inner.term) or len(own) > 1:
            continue
        (axis,), *_ = own_dims(inner, opened(inner)[0])
        found = _of_edges(terms, pairs, axis, own[0] if own else ())
        if found is not None:
            return found
    return pairs


def _of_edges(terms: Terms, pairs: Pairs, axis: Part, rows: Parts) -> Pairs | None:
    edges = [(pair, edge(pair[1], axis, rows)) for pair in pairs]
    count = size_of(rows)
    of = lambda pair, e: (pair[0], _without(e.base, (e.axis,), e.rows), e.start - e.by * count)
    for (factor, _), one in edges:
        if (one.axis,) not in one.base.parts or one.rows not in one.base.parts:
            continue
        key = of((factor, None), one)
        mine = [(pair, e) for pair, e in edges if of(pair, e) == key]
        start, last = key[2], size_of(one.rows)
        reach = range(-axis.size + 1, axis.size)
        needed = [by for by in reach if -count < start + by * count < last]
        if sorted(e.by for _, e in mine) != needed or len(needed) < 2:
            continue
        if not all(e.zeros for _, e in mine):
            continue
        found = _overlapped(terms, one, one.base, start, (axis, *rows))
        if found is not None:
            rest = [pair for pair in pairs if not any(pair is other for other, _ in mine)]
            return [*rest, (factor, found)]
    return None


def _overlapped(terms: Terms, of: Edge, value: Value, start: int, new: Parts) -> Value | None:
    """The sum, over all devices a and rows j, of what is put at `a * size + j - start`.

    Args:
      of: whose axis and rows they are.
      value: what is computed of the base, or the base.
      new: the parts of the dim that the result has instead of them; `size` is without the axis.
    """
    op, params = value.term.op, value.term.params[:-2]
    args, _ = opened(value)
    labels = {of.axis.label, *(part.label for part in of.rows)}
    if op == "windows":
        return _all_windows(terms, of, value, start, new)
    if op not in ("reduce_sum", "mul", "sum") and op not in ADDITIVE:
        return None
    done: list[Value] = []
    for arg in args:
        if op == "mul" and not labels & arg.labels.keys():
            done.append(arg)
            continue
        found = _overlapped(terms, of, arg, start, new) if labels <= arg.labels.keys() else None
        if found is None:
            return None
        done.append(found)
    if op == "reduce_sum":
        lost = {k: n for k, n in args[0].labels.items() if k not in value.labels}
        return total(terms, done[0], lost, lost, ())
    if op == "sum":
        return linear(terms, zip(params[0], done, strict=True), ())
    if op == "mul" and all(labels <= arg.labels.keys() for arg in args):
        return None
    return elementwise(terms, op, params, done, ())


def _all_windows(terms: Terms, of: Edge, value: Value, start: int, new: Parts) -> Value | None:
    """Windows of the rows of each device, which overlap, as windows of all rows.

    No window may find less than all that there is.
    """
    x, specs = specs_of(value)
    for i, spec in enumerate(specs):
        beside = tuple(piece for piece in spec.pieces if piece != (1, of.rows))
        index = next((k for k, p in enumerate(x.parts) if p == (of.axis, *spec.run)), None)
        if len(beside) == len(spec.pieces) or index is None:
            continue
        count, whole = size_of(spec.run), Part(size_of(x.parts[index]), fresh())
        rest = spec._replace(pieces=beside)
        inside = rest.end <= 0 and spec.every * (count - 1) - spec.start < size_of(of.rows)
        if not inside or spec.every * count * of.axis.size != size_of(new):
            return None
        spec = Spec((whole,), spec.every, spec.start + start, (*beside, (1, new)))
        parts = tuple((whole,) if k == index else p for k, p in enumerate(x.parts))
        return made_of(terms, Value(x.term, parts, ()), [*specs[:i], spec, *specs[i + 1 :]])
    return None
