"""Random bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshdsl.lowering.law import apply_op
from meshdsl.ops import threefry
from meshdsl.plain_jax.evaluate import Evaluation, bind, constant, rule
from meshdsl.plain_jax.program import Equation

_WORDS = (8, 16, 32)  # bits of a number that JAX takes from one word


@rule("random_bits")
def random_bits(at: Evaluation, e: Equation, xs: list) -> list:
    """The bits of plain JAX: each device draws its own part, of one key or of each of several."""
    (key,), out = xs, e.outs[0]
    is_threefry = str(jax.random.key_impl(key)) == "threefry2x32"
    by_index = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if e.params["bit_width"] not in _WORDS or not is_threefry or not by_index:
        return [constant(out, a) for a in bind(e, [key])]  # whole, on every device
    if not out.flat:
        return bind(e, [key])
    count = len(e.ins[0].shape)
    keys, drawn = (
        tuple(d for dims in at for d in dims) for at in (out.dims[:count], out.dims[count:])
    )
    words = jax.random.key_data(key).reshape(*[d.size for d in keys], 2)

    def local(loop):
        own = words
        for i, d in enumerate(keys):  # beyond the end of the dim any key will do
            own = jnp.take(own, loop.indices(d), axis=i, mode="clip")
        made = jax.vmap(lambda key: threefry.bits(loop, key, drawn))(own.reshape(-1, 2))
        return made.reshape([loop.size(d) for d in out.flat]).astype(out.dtype)

    how = {"in_order": (), "like": at.like}
    return [apply_op("random.bits", local, (), loop=out.flat, out=out.flat, **how)]
