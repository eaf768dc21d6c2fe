"""What devices pass on to each other outside of loops, by a few `ppermute`s.

The equations that put together what has arrived are followed as in a loop (`followed`). If all of
an array is known then to be of one array, in another order, that is what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshdsl.proof.labels import Parts
from meshdsl.proof.lemmas import Walk
from meshdsl.proof.moves import gathered, given_out
from meshdsl.proof.sends.followed import MOVES, axes_of, held_of, unknown
from meshdsl.proof.sends.routes import Held, Moved
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, cut, unchanging


@dataclass(frozen=True, eq=False)
class Box:
    """What devices along an axis have of an array, while it is put together."""

    axis: str
    moved: Moved


def passed(walk: Walk, eqn, values: Sequence[Value]) -> list[Value] | None:
    """What an equation makes that passes something on, or moves what was; None if it does not."""
    name = eqn.primitive.name
    boxes = [_box(walk, x) for x in values]
    axes = {box.axis for box in boxes if box is not None}
    if name == "ppermute":
        axes.update(axes_of(eqn))
    if not axes or name not in MOVES or len(axes) > 1:
        return None
    (axis,) = axes
    found = _followed(walk, axis, eqn, values)
    if found is None:
        return None
    return [_value(walk, axis, x) for x in found]


def note(walk: Walk, eqn, values: Sequence[Value], results: Sequence[Value]) -> None:
    """Notes how results were made, as they may be passed on."""
    if eqn.primitive.name not in MOVES or not results[0].axes:
        return
    for i, result in enumerate(results):
        if all(x.term.number < result.term.number for x in values):  # so that there is no circle
            walk.pieces.note(result, (eqn, values, i))


def _followed(walk: Walk, axis: str, eqn, values: Sequence[Value]) -> list[Moved] | None:
    """What an equation makes, by where each element comes from; None if that is unknown."""
    held: list[Held] = []
    for x, var in zip(values, eqn.invars, strict=True):
        box, made = _box(walk, x), walk.pieces.made(x)
        found = None if box is None else [box.moved]
        number = 0
        if found is None and made is not None:
            eqn_, operands, number = made
            found = _followed(walk, axis, eqn_, operands)
        held.append(held_of(walk, axis, x, var.aval) if found is None else found[number])
    found = MOVES[eqn.primitive.name](walk.pieces, eqn, *held)
    return [found] if isinstance(found, Moved) else found if isinstance(found, list) else None


def _box(walk: Walk, x: Value) -> Box | None:
    box = x.term.params[0] if x.term.op == "unknown" else None
    return box if isinstance(box, Box) and x.same_as(unknown(walk, x.shape, box)) else None


def _value(walk: Walk, axis: str, x: Moved) -> Value:
    try:
        return _opened(walk, axis, x)
    except NotProved:
        return unknown(walk, x.shape, Box(axis, x))


def _opened(walk: Walk, axis: str, x: Moved) -> Value:
    """What an array means that has all elements of another one, or none.

    Raises:
      NotProved: it is not that, or in no order that is one of parts.
    """
    if not x.ids.any():
        return Value(walk.terms.constant(0, ""), (), unchanging(x.shape))
    dims = [d for d, n in enumerate(x.shape) if x.ids.shape[d + 1] == n > 1]
    pieces = [walk.pieces[int(i)] for i in x.ids.ravel()]
    atoms = [each[0] for each in pieces if len(each) == 1]
    numbers = {atom.source for atom in atoms}
    if len(atoms) < len(pieces) or len(numbers) != 1 or len(dims) != 1:
        raise NotProved("what was passed on is not put together yet")
    (dim,), source = dims, walk.pieces.sources[numbers.pop()]
    value, devices = source.owner, walk.sizes[axis]
    whole = all(a.index[d] < 0 for a in atoms for d in range(len(x.shape)) if d != dim)
    if not isinstance(value, Value) or axis not in value.labels or not whole:
        raise NotProved("what was passed on is not put together yet")
    if source.shape != x.shape or any(atom.tick >= 0 for atom in atoms):
        raise NotProved("what was passed on is only a part of what there is")
    places = np.array([atom.device * x.shape[dim] + atom.index[dim] for atom in atoms])
    digits = _digits(places)
    order = sorted(range(len(digits)), key=lambda i: -digits[i][1])
    value = gathered(value, dim, [(axis, devices)])
    value, runs = cut(value, dim, [digits[i][0] for i in order])
    parts: Parts = tuple(p for i in range(len(digits)) for p in runs[order.index(i)])
    value = value.at(parts if d == dim else each for d, each in enumerate(value.dims))
    return given_out(value, dim, [(axis, devices)])


def _digits(places: np.ndarray) -> list[tuple[int, int]]:
    """How places are counted: the sizes of digits, major first, and the step of each.

    Raises:
      NotProved: they are not counted by digits, or not all places are there once.
    """
    found: list[tuple[int, int]] = []
    size, count = 1, len(places)
    while size < count:
        step, n = int(places[size] - places[0]), 1
        block = places[:size]
        while (n + 1) * size <= count and (
            places[n * size : (n + 1) * size] == block + n * step
        ).all():
            n += 1
        while count % (n * size):
            n -= 1
        if n == 1:
            raise NotProved("elements were passed on in no order of parts")
        found.insert(0, (n, step))
        size *= n
    steps = 1
    for n, step in sorted(found, key=lambda each: each[1]):
        if step != steps:
            raise NotProved("elements were passed on in no order of parts")
        steps *= n
    if steps != count or places[0] != 0:
        raise NotProved("not all elements were passed on")
    return found
