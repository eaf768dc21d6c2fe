"""Lookups by indices, and their inverse: JAX's general forms by `md.take` and `md.scatter`."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.ops import component
from meshdsl.ops import scatter as scattering
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.index import take
from meshdsl.plain_jax.evaluate import (
    Evaluation,
    as_tensor,
    fits,
    full,
    is_inexact,
    regrouped,
    renamed,
    rule,
)
from meshdsl.plain_jax.indices import SCATTERS, Column, Indexing, indexing
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.plain_jax.rules.index import full_of, merged
from meshdsl.plain_jax.rules.shape import element
from meshdsl.tensor import Tensor

_LARGEST_INDEX = 2**31 - 1
_SOUGHT = "looked_up__part"


@rule("gather")
def gather(at: Evaluation, e: Equation, xs: list) -> list:
    """Elements, or windows, at computed indices along some positions."""
    how, (v, ids_v), out = indexing(e), e.ins, e.outs[0]
    sought = [c for c in how.columns if c.window < c.size]
    places = [_place(c) for c in sought]
    if len(sought) == 1:  # by its own name, so that it may stay split
        here, taken = v.dims[sought[0].position], {d.name for d in out.flat}
        places = list(here) if len(here) == 1 and here[0].name not in taken else places
    names = _names_of_lookup(e, how, sought, places)
    if names is None or math.prod(c.size for c in sought) > _LARGEST_INDEX:
        return at.fall_back(e, xs)
    of_x, of_ids = names
    x = full(xs[0], v, tuple(d for c in sought for d in v.dims[c.position]))
    x = _with_places(renamed(x, of_x), v, sought, of_x, places)
    starts, inside = _starts(e, xs[1], ids_v, how.columns, of_ids)
    index = None
    for c in sought:
        start = starts[c.number]
        if c.window > 1:
            start = _from(start, out.dims[how.windows[c.position]])
        index = start if index is None else full_of(index * c.size, start) + start
    if index is not None:
        dim = places[0]
        if len(sought) > 1:
            dim = Dim(_SOUGHT, math.prod(c.size for c in sought))
            x = regrouped(x, tuple(places), (dim,))
        x = take(x, index, dim)
    return [x if inside is None else _filled(x, inside, e)]


def _names_of_lookup(
    e: Equation, how: Indexing, sought: list[Column], places: list[Dim]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """What dims of the operand and of the indices are called in the lookup.

    None where their factors do not agree with those of the result.
    """
    (v, ids), out = e.ins, e.outs[0]
    gone = [c.position for c in sought]
    of_x = _names_of_places(v, gone, places)
    of_ids: dict[str, str] = {}
    pairs = [(of_ids, ids.dims[k], out.dims[i]) for k, i in enumerate(how.batch)]
    pairs += [(of_x, v.dims[i], out.dims[j]) for i, j in how.windows.items() if i not in gone]
    pairs += [(of_x, v.dims[i], out.dims[how.batch[k]]) for i, k in how.together.items()]
    for names, have, want in pairs:
        if not fits([have], [want]):
            return None
        names.update((a.name, b.name) for a, b in zip(have, want, strict=True))
    return of_x, of_ids


def _names_of_places(v: Value, positions: list[int], places: list[Dim]) -> dict[str, str]:
    """What dims that are looked up in are called: their place, or aside where they make up one."""
    found = {}
    for i, place in zip(positions, places, strict=True):
        alone = len(v.dims[i]) == 1
        found |= {d.name: place.name if alone else f"{d.name}__torn" for d in v.dims[i]}
    return found


def _place(c: Column) -> Dim:
    return Dim(f"looked_up{c.number}__part", c.size)


def _with_places(
    x: Tensor, v: Value, sought: list[Column], names: dict[str, str], places: list[Dim]
) -> Tensor:
    """`x` with one dim, of `places`, at each position that is looked up in."""
    for c, place in zip(sought, places, strict=True):
        old = tuple(d.alias(names[d.name]) for d in v.dims[c.position])
        x = x if old == (place,) else regrouped(x, old, (place,))
    return x


def _starts(
    e: Equation, ids: Any, v: Value, columns: list[Column], names: dict[str, str]
) -> tuple[dict[int, Tensor], Tensor | None]:
    """Each column of the indices, and which indices are inside, where JAX looks at that.

    Indices that are outside are brought inside.
    """
    ids = as_tensor(ids, v)
    if ids.dtype.itemsize < 4 or jnp.issubdtype(ids.dtype, jnp.unsignedinteger):
        ids = component.cast(ids, jnp.int32)
    last = len(v.shape) - 1
    if v.shape[-1] != 1:
        ids = merged(ids, v, last, "column__part")
    known, found, inside = e.notes.get("inside"), {}, None
    mode = str(e.params["mode"]).upper()
    for c in columns:
        start = element(ids, ids.dim("column__part"), c.number) if v.shape[-1] != 1 else ids
        start = renamed(start, names)
        if not known:
            if "CLIP" not in mode:
                most = c.size - c.window
                within = lambda start, most=most: (start >= 0) & (start <= most)
                here = component.map(within, start, name="inside")
                if inside is not None:
                    here = FUNCTIONS["logical_and"](full_of(inside, here), here)
                inside = here
            start = FUNCTIONS["clip"](start, 0, c.size - c.window)
        found[c.number] = start
    return found, inside


def _from(start: Tensor, dims: Dims) -> Tensor:
    """The indices of a window, along `dims`."""
    sizes = [d.size for d in dims]
    window = Tensor(jnp.arange(math.prod(sizes), dtype=start.dtype).reshape(sizes), dims)
    return full_of(start, window) + window


def _filled(made: Tensor, inside: Tensor, e: Equation) -> Tensor:
    """What JAX gives for an index outside.

    The nearest element where the code promises that there is no such index, as `x[ids]` does; else
    by default NaN, or the smallest whole number.
    """
    if "PROMISE" in str(e.params["mode"]).upper():  # the nearest element, and no gradient
        nearest = lambda inside, a: jnp.where(inside, a, lax.stop_gradient(a))
        return component.map(nearest, inside, full_of(made, inside), name="inside")
    fill = e.params["fill_value"]
    if fill is None:
        dtype = made.dtype
        if is_inexact(dtype):
            fill = np.nan
        elif jnp.issubdtype(dtype, jnp.unsignedinteger):
            fill = int(jnp.iinfo(dtype).max)
        elif dtype == bool:
            fill = True
        else:
            fill = int(jnp.iinfo(dtype).min)
    choose = lambda inside, a: jnp.where(inside, a, jnp.asarray(fill, a.dtype))
    return component.map(choose, inside, full_of(made, inside), name="fill")


@rule(*SCATTERS)
def scatter(at: Evaluation, e: Equation, xs: list) -> list:
    """Updates at computed indices along some positions: the inverse of `gather`."""
    how, (v, ids_v, updates_v), out = indexing(e), e.ins, e.outs[0]
    sought = [c for c in how.columns if c.window < c.size]
    places = [_place_of_update(c, v, out) for c in sought]
    names = _names_of_updates(e, how, sought, places)
    if not sought or names is None:
        return at.fall_back(e, xs)
    of_x, of_ids, of_updates = names
    x = _with_places(renamed(full(xs[0], v), of_x), v, sought, of_x, places)
    updates = renamed(as_tensor(xs[2], updates_v), of_updates)
    updates = component.scale(updates, -1) if e.name == "scatter-sub" else updates
    starts, inside = _starts(e, xs[1], ids_v, how.columns, of_ids)
    indices = []
    for c in sought:
        start = starts[c.number]
        if inside is not None:  # an update that is outside is dropped
            drop = lambda inside, start, c=c: jnp.where(inside, start, jnp.full_like(start, c.size))
            start = component.map(drop, inside, full_of(start, inside), name="drop")
        if c.window > 1:
            window = updates_v.dims[how.windows[c.position]]
            start = _from(start, tuple(d.alias(of_updates[d.name]) for d in window))
        indices.append(start)
    made = scattering.scatter(x, tuple(indices), updates, tuple(places), how=SCATTERS[e.name])
    back = {}
    for c, place in zip(sought, places, strict=True):
        if out.dims[c.position] != (place,):
            made = regrouped(made, (place,), _aside(out, c.position))
            given = zip(_aside(out, c.position), out.dims[c.position], strict=True)
            back |= {d.name: o.name for d, o in given}
    return [renamed(made, back)]


def _place_of_update(c: Column, v: Value, out: Value) -> Dim:
    """The dim of a position that is updated: its own, so that it may stay split."""
    here = out.dims[c.position]
    return here[0] if len(here) == 1 and fits([here], [v.dims[c.position]]) else _place(c)


def _aside(out: Value, position: int) -> Dims:
    return tuple(d.alias(f"{d.name}__at{position}") for d in out.dims[position])


def _names_of_updates(
    e: Equation, how: Indexing, sought: list[Column], places: list[Dim]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]] | None:
    """What dims of the operand, the indices and the updates are called.

    None where factors do not agree.
    """
    (v, ids, updates), out = e.ins, e.outs[0]
    gone = [c.position for c in sought]
    of_x = _names_of_places(v, gone, places)
    of_ids: dict[str, str] = {}
    of_updates: dict[str, str] = {}
    pairs = [(of_x, v.dims[i], out.dims[i]) for i in range(len(v.shape)) if i not in gone]
    for i, j in how.windows.items():
        have = updates.dims[j]
        own = tuple(d.alias(f"{d.name}__window") for d in have)
        pairs.append((of_updates, have, own if i in gone else out.dims[i]))
    by_batch = {k: i for i, k in how.together.items()}
    for k, j in enumerate(how.batch):
        own = tuple(d.alias(f"{d.name}__update") for d in updates.dims[j])
        want = out.dims[by_batch[k]] if k in by_batch else own
        pairs += [(of_ids, ids.dims[k], want), (of_updates, updates.dims[j], want)]
    for names, have, want in pairs:
        if not fits([have], [want]):
            return None
        names.update((a.name, b.name) for a, b in zip(have, want, strict=True))
    return of_x, of_ids, of_updates
