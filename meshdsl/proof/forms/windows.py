"""Windows of a dim: what convolutions take of an array, and what neighbours send each other.

`windows` is an array that is taken at places which are counted along several new dims, and zeros
where no element is. Along a dim of x,

    windows(x)[i, j, ...] = x[(start + s * i + t * j + ...) / every]

where that is a whole number, and the number of an element. A convolution is a sum over the taps of
its kernel: of windows of x along the result and the taps, times the kernel. Rows of which each
device has some, with those of its neighbours before and after, are windows too: one new dim is the
axis, with as large a step as a device has rows. Windows of windows are windows; and new dims with
steps of 6 and of 1, the latter of size 6, are one dim. So a device that takes windows of its rows
and of its neighbours' has its part of the windows of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshdsl.proof.labels import Label, Part, Parts, fresh, size_of
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, made, opened, own_dims, relabelled

Pieces = tuple[tuple[int, Parts], ...]  # new dims, each with its step


class Spec(NamedTuple):
    """What is taken along one dim.

    Attributes:
      run: the dim, or a part of it.
      every: 1, or that by which a place is divided.
      start: the place that all new dims begin with.
      pieces: the new dims.
    """

    run: Parts
    every: int
    start: int
    pieces: Pieces

    @property
    def end(self) -> int:
        """The last place of all."""
        return self.start + sum(step * (size_of(parts) - 1) for step, parts in self.pieces)


def taken(terms: Terms, value: Value, new: Spec, of: Parts = ()) -> Value | None:
    """Windows of a value along parts of it, in a local array of no dims; None: no such parts.

    Args:
      of: where each device has one index of a dim, and `new.run` is empty, the axis.
    """
    if any(part.label is None for part in new.run):
        return None
    x, specs = specs_of(value)
    for i, spec in enumerate(specs if new.run else ()):
        split = _apart(spec.pieces, new.run)
        if split is not None:
            found = _composed(spec, split, new)
            specs[i] = found or spec
            return made_of(terms, x, specs) if found else _of_part(terms, value, [], new)
    for i, parts in enumerate(x.parts):
        alone = (1, ((1, parts),)) if parts == of else None
        split = _apart(((1, parts),), new.run) if new.run else alone
        if split is None:
            continue
        if any({*spec.run} & {*parts} for spec in specs):
            return _of_part(terms, value, [], new)
        run = (Part(size_of(parts), fresh()),)
        found = _composed(Spec(run, 1, 0, ((1, parts),)), split, new)
        if found is None:
            return _of_part(terms, x, specs, new)
        whole = Value(x.term, (*x.parts[:i], run, *x.parts[i + 1 :]), ())
        return made_of(terms, whole, [*specs, found])
    return None if new.run else _of_part(terms, x, specs, new)


def _of_part(terms: Terms, x: Value, specs: Sequence[Spec], new: Spec) -> Value:
    """Windows along a part of a dim, which find nothing in other parts of it."""
    names: dict[Label, Label] = {p.label: fresh() for p in new.run if p.label is not None}
    run = tuple(Part(size, names[label]) for size, label in new.run if label is not None)
    x = relabelled(Value(x.term, x.parts, ()), names)
    return made_of(terms, x, [*specs, new._replace(run=run)])


def specs_of(value: Value) -> tuple[Value, list[Spec]]:
    """What windows are taken of, and how; a value that is none is taken as it is."""
    if value.term.op != "windows":
        return value, []
    args, along = opened(value)
    own = iter(own_dims(value, args))
    found = []
    for run, (every, start, steps) in zip(along[0], value.term.params[0], strict=True):
        found.append(Spec(run, every, start, tuple((step, next(own)) for step in steps)))
    return args[0], found


def _apart(pieces: Pieces, run: Parts) -> tuple[int, Pieces] | None:
    """The step of a run of parts among new dims, and the new dims beside it."""
    for i, (step, parts) in enumerate(pieces):
        for k in range(len(parts)):
            if parts[k : k + len(run)] == run:
                before, after = parts[:k], parts[k + len(run) :]
                of_run = step * size_of(after)
                rest = (of_run * size_of(run), before), (step, after)
                return of_run, (*pieces[:i], *rest, *pieces[i + 1 :])
    return None


def _composed(spec: Spec, split: tuple[int, Pieces], new: Spec) -> Spec | None:
    """Windows along a new dim of windows, as windows of what these are taken of.

    They are none if `new` finds no element where `spec` would find one.
    """
    (step, rest), count = split, size_of(new.run)
    beside = Spec(spec.run, spec.every, spec.start, rest)
    first, last = -(-new.start // new.every), new.end // new.every
    if first < 0 and beside.end - step >= 0:
        return None
    if last >= count and beside.start + step * count <= spec.every * (size_of(spec.run) - 1):
        return None
    if math.gcd(step, new.every) != 1:
        return None
    pieces = *((step * s, p) for s, p in new.pieces), *((new.every * s, p) for s, p in rest)
    start = spec.start * new.every + step * new.start
    return Spec(spec.run, spec.every * new.every, start, pieces)


def made_of(terms: Terms, x: Value, specs: Sequence[Spec]) -> Value:
    """The term, in one form: new dims that are one are joined, and what is as it was is left."""
    kept = []
    for spec in map(_joined, specs):
        if (
            spec.end < 0
            or spec.start > spec.every * (size_of(spec.run) - 1)
            or (spec.start % math.gcd(spec.every, *(step for step, _ in spec.pieces)))
        ):
            return Value(terms.constant(0, ""), (), ())
        same = [(1, size_of(spec.run))] == [(step, size_of(parts)) for step, parts in spec.pieces]
        if same and spec.start == 0 and spec.every == 1 and spec.run in x.parts:
            parts = tuple(spec.pieces[0][1] if p == spec.run else p for p in x.parts)
            x = Value(x.term, parts, ())
        else:
            kept.append(spec)
    if not kept:
        return x
    place = {part.label: i for i, part in enumerate(p for parts in x.parts for p in parts)}
    kept.sort(key=lambda spec: place[spec.run[0].label] if spec.run else -1)
    params = tuple((s.every, s.start, tuple(step for step, _ in s.pieces)) for s in kept)
    new = [parts for spec in kept for _, parts in spec.pieces]
    along = [[spec.run for spec in kept]]
    return made(terms, "windows", (params,), [x], (), along=along, new=new)


def _joined(spec: Spec) -> Spec:
    """`spec` with one new dim for any that are one. Of two that may be joined, the first is."""
    pieces = [(step, parts) for step, parts in spec.pieces if parts]
    for i, (major, a) in enumerate(pieces):
        for j, (minor, b) in enumerate(pieces):
            if i != j and major == minor * size_of(b):
                rest = [piece for k, piece in enumerate(pieces) if k not in (i, j)]
                return _joined(spec._replace(pieces=((minor, (*a, *b)), *rest)))
    pieces.sort(key=lambda piece: (-piece[0], -size_of(piece[1])))
    every, steps = spec.every, [step for step, _ in pieces]
    common = math.gcd(every, spec.start, *steps)
    pieces = [(step // common, parts) for step, parts in pieces]
    return Spec(spec.run, every // common, spec.start // common, tuple(pieces))


def moved(terms: Terms, x: Value, axis: Label, size: int, by: int) -> Value:
    """What devices along an axis have of those `by` places before them, which differ along it."""
    label = fresh()
    inner = relabelled(x, {axis: label})
    spec = Spec((Part(size, label),), 1, -by, ((1, (Part(size, axis),)),))
    return made_of(terms, Value(inner.term, inner.parts, ()), [spec])
