"""Windows whose start is computed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.lowering.law import apply_op
from meshdsl.ops import reshape
from meshdsl.ops.slicing import windowed
from meshdsl.plain_jax.evaluate import (
    Evaluation,
    as_tensor,
    fits,
    full,
    regrouped,
    renamed,
    rule,
)
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.plain_jax.rules.shape import element
from meshdsl.tensor import Tensor


def merged(x: Any, v: Value, position: int, name: str) -> Tensor:
    """`x` with one dim called `name` at a position."""
    here = v.dims[position]
    x = full(x, v, here)
    aside = {d.name: f"{d.name}__torn" for d in here}
    x = renamed(x, aside)
    old = tuple(d.alias(aside[d.name]) for d in here)
    return regrouped(x, old, (Dim(name, v.shape[position]),))


@rule("dynamic_slice")
def dynamic_slice(_: Evaluation, e: Equation, xs: list) -> list:
    """A window whose start is computed: along its dims everything is at hand."""
    x, *starts = xs
    v, out = e.ins[0], e.outs[0]
    if v.is_key:
        raise AssertionError
    cut = [i for i in range(len(v.shape)) if v.shape[i] != out.shape[i]]
    kept = [i for i in range(len(v.shape)) if i not in cut]
    x = _out_of_the_way(as_tensor(x, v), v, kept, out)
    for i in cut:
        x = merged(x, v, i, f"whole{i}__part")
        start, known = as_tensor(starts[i], e.ins[i + 1]), e.notes["starts"][i]
        new = Dim(f"window{i}__part", out.shape[i])
        x = _window(x, start, known, f"whole{i}__part", new)
    for i in cut:
        x = regrouped(x, (Dim(f"window{i}__part", out.shape[i]),), _aside(out, i))
    return [_back(x, out, [*kept, *cut])]


def _window(x: Tensor, start: Tensor, known: Any, name: str, new: Dim) -> Tensor:
    """`new.size` elements along a dim, from a start that may be known."""
    old = x.dim(name)
    if known is not None and old.size:
        number = int(np.clip(int(known), 0, old.size - new.size))
        if new.size == 1:
            picked = element(x, old, number)
            return reshape.broadcast(picked, (*picked.dims, new))
        return windowed("slice", x, old, new, number)
    position = x.dims.index(old)
    out = dim_algebra.replace(x.dims, old, (new,))

    def local(loop, array, start):
        # Within bounds before XLA sees it: fused with what follows, it may clamp each element.
        start = jnp.clip(start, 0, old.size - new.size)
        return lax.dynamic_slice_in_dim(array, start, new.size, position)

    how = {"unsplit": (old,), "in_order": (old,), "sums": False, "fill": None}
    return apply_op("dynamic_slice", local, (x, start), loop=x.dims, out=out, **how)


@rule("dynamic_update_slice")
def dynamic_update_slice(_: Evaluation, e: Equation, xs: list) -> list:
    """A window whose start is computed, replaced: along its dims everything is at hand."""
    x, update, *starts = xs
    v, w, out = e.ins[0], e.ins[1], e.outs[0]
    cut = [i for i in range(len(v.shape)) if v.shape[i] != w.shape[i]]
    kept = [i for i in range(len(v.shape)) if i not in cut]
    x = _out_of_the_way(as_tensor(x, v), v, kept, out)
    update = _out_of_the_way(as_tensor(update, w), w, kept, out)
    if not cut:
        return [_back(full_of(update, x), out, kept)]
    for i in cut:
        x = merged(x, v, i, f"whole{i}__part")
        update = merged(update, w, i, f"window{i}__part")
    old = tuple(Dim(f"whole{i}__part", v.shape[i]) for i in cut)
    new = tuple(Dim(f"window{i}__part", w.shape[i]) for i in cut)
    rest = tuple(
        dict.fromkeys((*dim_algebra.without(x.dims, old), *dim_algebra.without(update.dims, new)))
    )
    x = _ordered(x, (*rest, *old))
    update = _ordered(update, (*rest, *new))
    at = [as_tensor(starts[i], e.ins[i + 2]) for i in cut]
    count = len(rest)

    def local(loop, array, update, *starts):
        first = [jnp.zeros((), starts[0].dtype)] * count
        most = [d.size - e.size for d, e in zip(old, new, strict=True)]
        starts = [jnp.clip(s, 0, m) for s, m in zip(starts, most, strict=True)]
        return _updated(array, update, [*first, *starts])

    how = {"unsplit": (*old, *new), "in_order": (*old, *new), "sums": False, "fill": None}
    made = apply_op(
        "dynamic_update_slice", local, (x, update, *at), loop=(*rest, *old, *new), out=x.dims, **how
    )
    for i in cut:
        made = regrouped(made, (Dim(f"whole{i}__part", v.shape[i]),), _aside(out, i))
    return [_back(made, out, [*kept, *cut])]


def _updated(array, update, starts: list):
    dtype = jnp.result_type(*starts)
    return lax.dynamic_update_slice(array, update, [s.astype(dtype) for s in starts])


def full_of(x: Tensor, y: Tensor) -> Tensor:
    """`x` with all dims of `y`, too."""
    missing = dim_algebra.without(y.dims, x.dims)
    return reshape.broadcast(x, (*missing, *x.dims)) if missing else x


def _ordered(x: Tensor, dims: Dims) -> Tensor:
    return x if x.dims == dims else reshape.broadcast(x, dims)


def _aside(out: Value, position: int) -> Dims:
    """Names for a position of the result that collide with no others."""
    return tuple(d.alias(f"{d.name}__at{position}") for d in out.dims[position])


def _out_of_the_way(x: Tensor, v: Value, at: list[int], out: Value) -> Tensor:
    """`x`, which stands for `v`, with names of its own at these positions."""
    names = {}
    for i in at:
        if fits([v.dims[i]], [out.dims[i]]):
            names |= {a.name: b.name for a, b in zip(v.dims[i], _aside(out, i), strict=True)}
        else:
            x = full(x, v, v.dims[i])
            torn = {d.name: f"{d.name}__torn" for d in v.dims[i]}
            x = renamed(x, torn)
            old = tuple(d.alias(torn[d.name]) for d in v.dims[i])
            x = regrouped(x, old, _aside(out, i))
    return renamed(x, names)


def _back(x: Tensor, out: Value, at: list[int]) -> Tensor:
    names = {}
    for i in at:
        names |= {a.name: b.name for a, b in zip(_aside(out, i), out.dims[i], strict=True)}
    return renamed(x, names)
