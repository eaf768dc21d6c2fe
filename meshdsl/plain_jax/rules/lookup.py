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
from meshdsl.ops.arrays import chosen, within
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.index import take
from meshdsl.plain_jax.evaluate import Evaluation, is_inexact, rule
from meshdsl.plain_jax.indices import SCATTERS, Column, indexing
from meshdsl.plain_jax.positions import (
    as_positions,
    as_result,
    as_tensor,
    fits,
    regrouped,
    with_dims,
    with_positions,
)
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.plain_jax.rules.shape import element
from meshdsl.tensor import Tensor

_LARGEST_INDEX = 2**31 - 1
_SOUGHT = "looked_up__part"


@rule("gather")
def gather(at: Evaluation, e: Equation, xs: list) -> list:
    """Elements, or windows, at computed indices along some positions."""
    how, (v, ids_v), out = indexing(e), e.ins, e.outs[0]
    sought = [c for c in how.columns if c.window < c.size]
    if math.prod(c.size for c in sought) > _LARGEST_INDEX:
        return at.fall_back(e, xs)
    places = [_place(c) for c in sought]
    if len(sought) == 1:  # by its own name, so that it may stay split
        here, taken = v.dims[sought[0].position], {d.name for d in out.flat}
        places = list(here) if len(here) == 1 and here[0].name not in taken else places
    names = {i: out.dims[j] for i, j in how.windows.items()}
    names |= {i: out.dims[how.batch[k]] for i, k in how.together.items()}
    names |= {c.position: (place,) for c, place in zip(sought, places, strict=True)}
    x = with_dims(as_positions(as_tensor(xs[0], v), v, names), tuple(places))
    of_ids = {k: out.dims[i] for k, i in enumerate(how.batch)}
    starts, inside = _starts(e, xs[1], ids_v, how.columns, of_ids)
    index = None
    for c in sought:
        start = starts[c.number]
        if c.window > 1:
            start = _from(start, out.dims[how.windows[c.position]])
        index = start if index is None else with_dims(index * c.size, start.dims) + start
    if index is not None:
        dim = places[0]
        if len(sought) > 1:
            dim = Dim(_SOUGHT, math.prod(c.size for c in sought))
            x = regrouped(x, tuple(places), (dim,))
        x = take(x, index, dim)
    return [x if inside is None else _filled(x, inside, e)]


def _place(c: Column) -> Dim:
    return Dim(f"looked_up{c.number}__part", c.size)


def _starts(
    e: Equation, ids: Any, v: Value, columns: list[Column], names: dict[int, Dims]
) -> tuple[dict[int, Tensor], Tensor | None]:
    """Each column of the indices, and which indices are inside, where JAX looks at that.

    Indices that are outside are brought inside.

    Args:
      names: the dims that are wanted at each position of the indices but the last.
    """
    ids = as_tensor(ids, v)
    if ids.dtype.itemsize < 4 or jnp.issubdtype(ids.dtype, jnp.unsignedinteger):
        ids = component.cast(ids, jnp.int32)
    column = Dim("column__part", v.shape[-1])
    ids = as_positions(ids, v, {**names, len(v.shape) - 1: (column,)} if column.size > 1 else names)
    known, found, inside = e.notes.get("inside"), {}, None
    mode = str(e.params["mode"]).upper()
    for c in columns:
        start = element(ids, column, c.number) if column in ids.dims else ids
        if not known:
            if "CLIP" not in mode:
                most = c.size - c.window
                among = lambda start, most=most: within(start, most + 1)
                here = component.map(among, start, name="inside")
                if inside is not None:
                    here = FUNCTIONS["logical_and"](with_dims(inside, here.dims), here)
                inside = here
            inward = lambda start, most=c.size - c.window: lax.min(lax.max(start, 0), most)
            start = component.map(inward, start, name="clip")
        found[c.number] = start
    return found, inside


def _from(start: Tensor, dims: Dims) -> Tensor:
    """The indices of a window, along `dims`."""
    sizes = [d.size for d in dims]
    window = Tensor(jnp.arange(math.prod(sizes), dtype=start.dtype).reshape(sizes), dims)
    return with_dims(start, dims) + window


def _filled(made: Tensor, inside: Tensor, e: Equation) -> Tensor:
    """What JAX gives for an index outside.

    The nearest element where the code promises that there is no such index, as `x[ids]` does; else
    by default NaN, or the smallest whole number.
    """
    if "PROMISE" in str(e.params["mode"]).upper():  # the nearest element, and no gradient
        nearest = lambda inside, a: chosen(inside, a, lax.stop_gradient(a))
        return component.map(nearest, inside, with_dims(made, inside.dims), name="inside")
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
    choose = lambda inside, a: chosen(inside, a, fill)
    return component.map(choose, inside, with_dims(made, inside.dims), name="fill")


@rule(*SCATTERS)
def scatter(at: Evaluation, e: Equation, xs: list) -> list:
    """Updates at computed indices along some positions: the inverse of `gather`."""
    how, (v, ids_v, updates_v), out = indexing(e), e.ins, e.outs[0]
    sought = [c for c in how.columns if c.window < c.size]
    if not sought:
        return at.fall_back(e, xs)
    places = [_place_of_update(c, v, out) for c in sought]
    names = dict(enumerate(out.dims))
    names |= {c.position: (place,) for c, place in zip(sought, places, strict=True)}
    x = with_positions(xs[0], v, names)
    own = lambda i: tuple(d.alias(f"{d.name}__update") for d in updates_v.dims[i])
    of_updates = {j: own(j) for j in range(len(updates_v.shape))}
    gone = [c.position for c in sought]
    of_updates |= {j: out.dims[i] for i, j in how.windows.items() if i not in gone}
    of_updates |= {how.batch[k]: out.dims[i] for i, k in how.together.items()}
    updates = as_positions(as_tensor(xs[2], updates_v), updates_v, of_updates)
    updates = component.scale(updates, -1) if e.name == "scatter-sub" else updates
    of_ids = {k: of_updates[i] for k, i in enumerate(how.batch)}
    starts, inside = _starts(e, xs[1], ids_v, how.columns, of_ids)
    indices = []
    for c in sought:
        start = starts[c.number]
        if inside is not None:  # an update that is outside is dropped
            drop = lambda inside, start, c=c: chosen(inside, start, c.size)
            start = component.map(drop, inside, with_dims(start, inside.dims), name="drop")
        if c.window > 1:
            start = _from(start, of_updates[how.windows[c.position]])
        indices.append(start)
    made = scattering.scatter(x, tuple(indices), updates, tuple(places), how=SCATTERS[e.name])
    return [as_result(made, names, out)]


def _place_of_update(c: Column, v: Value, out: Value) -> Dim:
    """The dim of a position that is updated: its own, so that it may stay split."""
    here = out.dims[c.position]
    return here[0] if len(here) == 1 and fits([here], [v.dims[c.position]]) else _place(c)
