"""Products of numbers with a scale for each block, on GPUs that multiply such numbers.

These are GPUs of the Blackwell generation, for mxfp8 and nvfp4. Products in blocks of other sizes,
or of which a device has half a block, are computed in bfloat16 there, as everywhere else. Both give
the same up to the order of sums.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshdsl.dims import Dims, without
from meshdsl.lowering.kernels import Product, opaque
from meshdsl.ops.precision.formats import Format, power_of_two

KINDS = ("NVIDIA B200",)  # what JAX calls them


class Side(NamedTuple):
    """An operand: its values, the scales of blocks of one dim, and the dims of both."""

    values: jax.Array
    scale: jax.Array
    dims: Dims


def multiplied(a: Side, b: Side, summed: Dims, out: Dims, format: Format) -> jax.Array:
    """The product of two operands in float32, summed over dims of which the last is in blocks.

    For nvfp4 the scales of an operand are numbers of its format, times a power of two that is the
    same for all that is summed.
    """
    kept, matrices = (*without(a.dims, summed), *without(b.dims, summed)), []
    for side in (a, b):
        order = [side.dims.index(d) for d in (*without(side.dims, summed), *summed)]
        matrices += [
            array.transpose(order).reshape(-1, prod(array.shape[i] for i in order[-len(summed) :]))
            for array in (side.values, side.scale)
        ]
    values, scales = matrices[::2], matrices[1::2]
    rows = [_row(scale, format) for scale in scales]
    dtype = format.scales or jnp.float8_e8m0fnu
    narrow = [x.astype(format.numbers)[None] for x in values]
    narrow += [(scale / row).astype(dtype)[None] for scale, row in zip(scales, rows, strict=True)]
    (m, k), (n, _) = values[0].shape, values[1].shape
    product = Product(1, m, k, n, 2 * m * k * n, format.numbers.name)
    # Its result has no type that says over which axes it varies, and estimates do not know it.
    total = opaque(lambda *arrays: jax.nn.scaled_matmul(*arrays), *narrow, products=(product,))
    total = total[0] * rows[0] * rows[1].T
    sizes = dict(zip(a.dims, a.values.shape, strict=True))
    sizes |= dict(zip(b.dims, b.values.shape, strict=True))
    total = total.reshape([sizes[d] for d in kept])
    return total.transpose([kept.index(d) for d in out])


def _row(scale, format: Format) -> jax.Array:
    """For each row of scales a power of two by which they are numbers of few bits."""
    if format.scales is None:
        return jnp.ones((len(scale), 1), jnp.float32)
    return power_of_two(jnp.max(scale, 1, keepdims=True), float(jnp.finfo(format.scales).max))
