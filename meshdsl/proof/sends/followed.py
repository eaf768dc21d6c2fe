"""Goes through the ticks of a loop, and follows what devices hand on to each other.

The results of an equation that moves elements, or chooses among them by numbers that are known, are
elements that there were before. Those of any other equation are new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from meshdsl.program.jaxpr import scan_counts
from meshdsl.proof.elements import SAME
from meshdsl.proof.forms.known import computed, is_number, numbers_along, numbers_of
from meshdsl.proof.forms.sums import is_zero
from meshdsl.proof.labels import Part, labelled
from meshdsl.proof.lemmas import CALLS, Walk
from meshdsl.proof.sends.routes import Held, Moved, Pieces, exchanges, zeros
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, relabelled, unchanging

_unknown = itertools.count()


class Made(NamedTuple):
    """An equation that computes something, and what it is given at each tick."""

    eqn: Any
    given: dict[int, list[Held]]


@dataclass(frozen=True, eq=False)
class Grid:
    """What a loop makes at each tick, on each device along an axis."""

    axis: str
    held: dict[int, Held]
    shape: tuple[int, ...]

    def value(self, walk: Walk) -> Value:
        """All of it, along a first dim of ticks, as a value that only this file can look into."""
        return unknown(walk, (len(self.held), *self.shape), self)


class Followed:
    """A loop in which devices along an axis hand on what they carry.

    Attributes:
      made: the equations that compute something, in their order.
      last: what is carried after all ticks.
      each: what else the ticks make: for each result what it is at each tick.
    """

    def __init__(self, walk: Walk, eqn, values: Sequence[Value], axis: str):
        self.walk, self.eqn, self.axis, self.pieces = walk, eqn, axis, walk.pieces
        self.devices = range(walk.sizes[axis])
        self.made: list[Made] = []
        self._literals: dict[int, Held] = {}
        self._zeros: dict[tuple[int, frozenset[int]], set[int]] = {}
        self._tick = self._count = 0
        self._go_through(values)

    # The ticks, one after another.

    def _go_through(self, values: Sequence[Value]) -> None:
        p = self.eqn.params
        consts, carries = scan_counts(p)
        ticks, count = range(p["length"]), consts + carries
        pairs = list(zip(values, p["jaxpr"].in_avals, strict=True))
        held = [held_of(self.walk, self.axis, x, aval) for x, aval in pairs[:count]]
        fixed, state = held[:consts], held[consts:]
        listed = [self._listed(x, aval, len(ticks)) for x, aval in pairs[count:]]
        outs: dict[int, list[Held]] = {}
        for self._tick in reversed(ticks) if p["reverse"] else ticks:
            self._count = 0
            own = [x[self._tick] for x in listed]
            found = self._through(p["jaxpr"], [*fixed, *state, *own])
            state, outs[self._tick] = found[:carries], found[carries:]
        self.last = state
        self.each = [{t: outs[t][i] for t in ticks} for i in range(len(outs[0]))]

    def _listed(self, x: Value, aval: Any, length: int) -> Sequence[Held] | dict[int, Held]:
        """What a tick is given of a list, for each tick."""
        grid = x.term.params[0] if x.term.op == "unknown" else None
        if isinstance(grid, Grid) and grid.axis == self.axis and x.same_as(grid.value(self.walk)):
            return grid.held
        if is_number(aval) and len(x.dims[0]) == 1:
            known = numbers_of(x, {self.axis: 0, x.dims[0][0].label: 1}, 2)
            if known is not None:
                known = np.broadcast_to(known, (len(self.devices), length)).astype(aval.dtype)
                return [known[:, t] for t in range(length)]
        if not labelled(x.dims[0]):
            return [held_of(self.walk, self.axis, x.at(x.dims[1:]), aval)] * length
        source = self.pieces.source(x, (), aval.shape)
        return [self.pieces.of(source, self.devices, t) for t in range(length)]

    def _through(self, jaxpr: Any, args: Sequence[Held]) -> list[Held]:
        consts = getattr(jaxpr, "consts", ())
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        known: dict[Any, Held] = dict(zip(jaxpr.invars, args, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            known[var] = self._literal(var, const)

        def read(atom: Any) -> Held:
            return self._literal(atom, atom.val) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            found = self._results(eqn, [read(atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, found, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _literal(self, atom: Any, x: Any) -> Held:
        if id(atom) not in self._literals:
            self._literals[id(atom)] = held_of(
                self.walk, self.axis, self.walk.constant(x, atom.aval), atom.aval
            )
        return self._literals[id(atom)]

    def _results(self, eqn: Any, held: list[Held]) -> Sequence[Held]:
        name = eqn.primitive.name
        if name in CALLS:
            return self._through(eqn.params[CALLS[name]], held)
        if name in SAME:
            return held
        elsewhere = name == "ppermute" and axes_of(eqn) != (self.axis,)
        rule = None if elsewhere else MOVES.get(name)
        found = rule(self.pieces, eqn, *held) if rule is not None else None
        if found is None and name == "axis_index" and axes_of(eqn) == (self.axis,):
            found = np.arange(len(self.devices), dtype=np.int32)
        known = [x for x in held if isinstance(x, np.ndarray)]
        avals = [var.aval for var in eqn.outvars]
        if found is None and 0 < len(known) == len(held) and list(map(is_number, avals)) == [True]:
            found = known[0] if name == "convert_element_type" else computed(name, known)
            found = None if found is None else found.astype(avals[0].dtype)
        if found is None:
            return self._computed(eqn, held)
        return found if isinstance(found, list) else [found]

    def _computed(self, eqn: Any, held: list[Held]) -> list[Held]:
        """What an equation computes: arrays of its own, but for those that are sure to be zero."""
        effects = [e for e in eqn.effects if getattr(e, "name", "") not in self.walk.sizes]
        if exchanges(eqn, self.axis) or effects:
            raise NotProved(f"there is no lemma for `{eqn.primitive.name}` in a loop of this kind")
        number, self._count = self._count, self._count + 1
        if number == len(self.made):
            self.made.append(Made(eqn, {}))
        self.made[number].given[self._tick] = held
        found = []
        for i, var in enumerate(eqn.outvars):
            source = self.pieces.source(self, (number, i), var.aval.shape)
            found.append(self.pieces.of(source, self.devices, self._tick))
        for device in self.devices:
            moved = [(j, x) for j, x in enumerate(held) if isinstance(x, Moved)]
            none = frozenset(j for j, x in moved if not x.ids[device].any())
            for i in self._zero_results(number, none):
                found[i].ids[device] = 0
        return found

    def _zero_results(self, number: int, none: frozenset[int]) -> set[int]:
        """Which results of an equation are zero, whatever its other operands, if some are zero."""
        key = number, none
        if none and key not in self._zeros:
            walk, eqn = self.walk, self.made[number].eqn
            values = [self._anything(v.aval, j in none) for j, v in enumerate(eqn.invars)]
            depth, walk.zeros_stay = walk.depth, True
            try:
                found = walk.step(eqn, lambda: walk.applied(eqn, values))
            except NotProved:
                found = []
            walk.depth, walk.zeros_stay = depth, False
            self._zeros[key] = {i for i, value in enumerate(found) if is_zero(value)}
        return self._zeros[key] if none else set()

    def _anything(self, aval: Any, zero: bool) -> Value:
        """A value of which nothing is known, or only that it is zero."""
        if zero:
            term = self.walk.constant(np.zeros((), aval.dtype), aval.update(shape=())).term
            return Value(term, (), unchanging(aval.shape))
        return unknown(self.walk, aval.shape)


def held_of(walk: Walk, axis: str, x: Value, aval: Any) -> Held:
    """What each device along an axis has of a value."""
    devices = range(walk.sizes[axis])
    known = numbers_along(x, Part(len(devices), axis)) if is_number(aval) else None
    if known is not None:
        return known.astype(aval.dtype)
    if is_zero(x):
        return zeros(len(devices), aval.shape)
    return walk.pieces.of(walk.pieces.source(x, (), aval.shape), devices, -1)


def unknown(walk: Walk, shape: tuple[int, ...], name: Any = None) -> Value:
    """A value of which nothing is known. Each device may have another one."""
    sizes = tuple(walk.sizes.values())
    params = (next(_unknown) if name is None else name,)
    value = walk.leaf("unknown", params, (*sizes, *shape))
    names = zip(walk.sizes, value.dims, strict=False)
    labels = {part.label: axis for axis, dim in names for part in dim if part.label is not None}
    return relabelled(Value(value.term, value.parts, value.dims[len(sizes) :]), labels)


def axes_of(eqn) -> tuple[str, ...]:
    axes = eqn.params["axis_name"]
    return axes if isinstance(axes, tuple) else (axes,)


def _handed(pieces: Pieces, eqn, x: Held) -> Held:
    """What others have sent to each device; zeros on those to which none has."""
    found = np.zeros_like(x if isinstance(x, np.ndarray) else x.ids)
    for source, target in eqn.params["perm"]:
        found[target] = x[source] if isinstance(x, np.ndarray) else x.ids[source]
    return found if isinstance(x, np.ndarray) else Moved(found, x.shape)


def _chosen(pieces: Pieces, eqn, which: Held, *cases: Held) -> Held | None:
    moved = [case for case in cases if isinstance(case, Moved)]
    if not isinstance(which, np.ndarray) or which.dtype != bool or len(moved) != len(cases):
        return None
    moved = pieces.alike(*moved)
    each = which.astype(int).reshape(-1, *[1] * len(moved[0].shape))
    return Moved(np.choose(each, [case.ids for case in moved]), moved[0].shape)


def _starts(starts: Sequence[Held], shape: Sequence[int], sizes: Sequence[int]) -> dict | None:
    """For each dim that is cut, where each device starts; None if that is not known."""
    cut = [d for d in range(len(shape)) if shape[d] != sizes[d]]
    known = {d: x for d, x in enumerate(starts) if d in cut and isinstance(x, np.ndarray)}
    if len(known) < len(cut):
        return None
    return {d: np.clip(start, 0, shape[d] - sizes[d]) for d, start in known.items()}


def _taken(pieces: Pieces, eqn, x: Held, *starts: Held) -> Held | None:
    if not isinstance(x, Moved):
        return None
    sizes = eqn.params["slice_sizes"]
    found = _starts(starts, x.shape, sizes)
    if found is None:
        return None
    ids = pieces.each(x, found).ids
    each = [ids[(device, *_range(found, sizes, device))] for device in range(len(ids))]
    return Moved(np.stack(each), tuple(sizes))


def _put(pieces: Pieces, eqn, x: Held, new: Held, *starts: Held) -> Held | None:
    if not isinstance(x, Moved) or not isinstance(new, Moved):
        return None
    found = _starts(starts, x.shape, new.shape)
    if found is None:
        return None
    cut = {d for each in (x, new) for d, n in enumerate(each.shape) if each.ids.shape[d + 1] == n}
    x, new = pieces.each(x, {*found, *cut}), pieces.each(new, {*found, *cut})
    ids = x.ids.copy()
    for device in range(len(ids)):
        ids[(device, *_range(found, new.shape, device))] = new.ids[device]
    return Moved(ids, x.shape)


def _range(starts: dict, sizes: Sequence[int], device: int) -> list[slice]:
    """The indices along each dim that a device takes."""
    at = lambda d: slice(starts[d][device], starts[d][device] + sizes[d])
    return [at(d) if d in starts else slice(None) for d in range(len(sizes))]


def _sliced(pieces: Pieces, eqn, x: Held) -> Held | None:
    if not isinstance(x, Moved):
        return None
    p = eqn.params
    strides = p["strides"] or [1] * len(x.shape)
    limits = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    shape = eqn.outvars[0].aval.shape
    cut = [d for d, n in enumerate(shape) if n != x.shape[d]]
    at = [slice(*each) if d in cut else slice(None) for d, each in enumerate(limits)]
    return Moved(pieces.each(x, cut).ids[(slice(None), *at)], shape)


def _split(pieces: Pieces, eqn, x: Held) -> list[Moved] | None:
    if not isinstance(x, Moved):
        return None
    dim = eqn.params["axis"]
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    parts = np.split(pieces.each(x, [dim]).ids, ends, dim + 1)
    return [Moved(ids, var.aval.shape) for ids, var in zip(parts, eqn.outvars, strict=True)]


def _added(pieces: Pieces, eqn, x: Held, y: Held) -> Held | None:
    real = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    if not real or not isinstance(x, Moved) or not isinstance(y, Moved) or x.shape != y.shape:
        return None
    return pieces.added(x, y)


def _joined(pieces: Pieces, eqn, *each: Held) -> Held | None:
    moved = [x for x in each if isinstance(x, Moved)]
    if len(moved) < len(each):
        return None
    dim = eqn.params["dimension"]
    cut = {d for x in moved for d, n in enumerate(x.shape) if x.ids.shape[d + 1] == n} | {dim}
    ids = [pieces.each(x, cut).ids for x in moved if x.shape[dim]]
    return Moved(np.concatenate(ids, dim + 1), eqn.outvars[0].aval.shape)


def _padded(pieces: Pieces, eqn, x: Held, fill: Held) -> Held | None:
    """An array with zeros before and after it."""
    config = eqn.params["padding_config"]
    zero = isinstance(fill, Moved) and not fill.ids.any()
    if not isinstance(x, Moved) or not zero or any(min(each) < 0 or each[2] for each in config):
        return None
    cut = [d for d, each in enumerate(config) if any(each)]
    widths = [(0, 0), *((int(low), int(high)) for low, high, _ in config)]
    return Moved(np.pad(pieces.each(x, cut).ids, widths), eqn.outvars[0].aval.shape)


def _spread(pieces: Pieces, eqn, x: Held, *_: Held) -> Held | None:
    if not isinstance(x, Moved) or x.ids.any():
        return None
    return zeros(len(x.ids), eqn.outvars[0].aval.shape)


MOVES: dict[str, Callable[..., Held | list[Moved] | None]] = {
    "add": _added,
    "add_any": _added,
    "broadcast_in_dim": _spread,
    "concatenate": _joined,
    "dynamic_slice": _taken,
    "dynamic_update_slice": _put,
    "pad": _padded,
    "ppermute": _handed,
    "select_n": _chosen,
    "slice": _sliced,
    "split": _split,
}
