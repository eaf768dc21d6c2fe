"""Windows whose start is computed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering.law import apply_op
from meshdsl.ops import reshape
from meshdsl.ops.slicing import windowed
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import as_positions, as_result, as_tensor, in_order, with_dims
from meshdsl.plain_jax.program import Equation
from meshdsl.plain_jax.rules.shape import element, names_around
from meshdsl.tensor import Tensor


@rule("dynamic_slice")
def dynamic_slice(_: Evaluation, e: Equation, xs: list) -> list:
    """A window whose start is computed: along its dims everything is at hand."""
    x, *starts = xs
    v, out = e.ins[0], e.outs[0]
    cut = [i for i in range(len(v.shape)) if v.shape[i] != out.shape[i]]
    names = names_around(v, cut, out)
    x = as_positions(as_tensor(x, v), v, names)
    have = dict(enumerate(out.dims))
    for i in cut:
        (old,), new = names[i], Dim(f"window{i}__part", out.shape[i])
        have[i] = (new,)
        if old in x.dims:
            start = as_tensor(starts[i], e.ins[i + 1])
            x = _window(x, start, e.notes["starts"][i], old, new)
    return [as_result(x, have, out)]


def _window(x: Tensor, start: Tensor, known: Any, old: Dim, new: Dim) -> Tensor:
    """`new.size` elements along a dim, from a start that may be known."""
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
    names = names_around(v, cut, out)
    old = tuple(d for i in cut for d in names[i])
    new = tuple(Dim(f"window{i}__part", w.shape[i]) for i in cut)
    windows = {i: (d,) for i, d in zip(cut, new, strict=True)}
    x = as_positions(as_tensor(x, v), v, names)
    update = as_positions(as_tensor(update, w), w, {**names, **windows})
    if not cut:
        return [with_dims(update, x.dims)]
    rest = dim_algebra.without(tuple(dict.fromkeys((*x.dims, *update.dims))), (*old, *new))
    x = in_order(with_dims(x, (*rest, *old)), (*rest, *old))
    update = in_order(with_dims(update, (*rest, *new)), (*rest, *new))
    at = [as_tensor(starts[i], e.ins[i + 2]) for i in cut]

    def local(loop, array, update, *starts):
        dtype = jnp.result_type(*starts)
        within = [
            jnp.clip(s, 0, d.size - n.size).astype(dtype)
            for s, d, n in zip(starts, old, new, strict=True)
        ]
        return lax.dynamic_update_slice(array, update, [jnp.zeros((), dtype)] * len(rest) + within)

    how = {"unsplit": (*old, *new), "in_order": (*old, *new), "sums": False, "fill": None}
    made = apply_op(
        "dynamic_update_slice", local, (x, update, *at), loop=(*rest, *old, *new), out=x.dims, **how
    )
    return [as_result(made, names, out)]
