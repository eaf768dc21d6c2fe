"""Random bits."""

from __future__ import annotations

import jax

from meshdsl.ops import distributions
from meshdsl.plain_jax.evaluate import Evaluation, bind, constant, rule
from meshdsl.plain_jax.program import Equation


@rule("random_bits")
def random_bits(at: Evaluation, e: Equation, xs: list) -> list:
    """The bits of plain JAX: each device draws its own part."""
    (key,), out = xs, e.outs[0]
    threefry = str(jax.random.key_impl(key)) == "threefry2x32"
    by_index = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if e.params["bit_width"] != 32 or e.ins[0].shape or not threefry or not by_index:
        return [constant(out, a) for a in bind(e, [key])]  # whole, on every device
    if not out.flat:
        return bind(e, [key])
    return [distributions.bits(key, out.flat, like=at.like)]
