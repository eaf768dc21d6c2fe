"""The wires that come with meshdsl, registered through the door that is open to everybody.

Of a block of numbers `int8` and `fp8` send the values and one scale. The scale is a bfloat16, so a
value times its scale is exact in float32: what arrives does not depend on how a compiler multiplies
and adds. It is rounded up, so that the largest number is within the format. A block with a NaN or
an infinity has an infinite scale, and arrives as NaN and infinities.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering.wires import register_wire
from meshdsl.ops.precision.formats import E4M3, INT8, Format, rounded, scale_of


def _register(name: str, format: Format) -> None:
    def encode(x, largest) -> tuple[jax.Array, jax.Array]:
        # A cast to bfloat16 alone might be left out by a compiler where it is cast back.
        scale = lax.reduce_precision(scale_of(largest, format) * (1 + 2.0**-8), 8, 7)
        values = rounded(x, scale, format, jnp.float32)
        return values.astype(format.dtype), scale.astype(jnp.bfloat16)

    def decode(sent, width: int) -> jax.Array:
        values, scale = sent
        return values.astype(jnp.float32) * scale.astype(jnp.float32)

    register_wire(name, encode, decode)


_register("int8", INT8)
_register("fp8", E4M3)  # the scale gives the range, so the bits are better spent on precision
register_wire(
    "bfloat16",
    lambda x, largest: x.astype(jnp.bfloat16),
    lambda sent, width: sent.astype(jnp.float32),
)
