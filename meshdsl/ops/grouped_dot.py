"""Products of groups of rows, each with the matrix of its group, and their derivatives.

Rows are in the order of their groups: the rows of group g begin at `starts[g]`, and rows from
`starts[-1]` on belong to no group. Neither the product nor its derivatives multiply a row with the
matrix of another group, as `jax.lax.ragged_dot` does for the gradient of the weight. There are two
ways to the same result:

- `megablox`, JAX's Pallas kernels for TPU;
- `blocks` of rows, one after the other, in plain JAX, on every platform.

The results for rows without a group have no meaning: callers replace them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.lowering.kernels import Product
from meshdsl.ops.arrays import as_one, padded

KERNELS = ("megablox", "blocks")
_LANES = 128


class Way(NamedTuple):
    """How products are computed.

    Attributes:
      kernel: one of `KERNELS`.
      interpret: whether the kernel is interpreted, as on other platforms than TPU.
      lowered: whether this is one device of a lowering.
      block: how many rows a block has.
      share: the expected share of the rows that have a group on this device.
    """

    kernel: str
    interpret: bool
    lowered: bool
    block: int
    share: float


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_dot(way: Way, rows, weight, starts):
    """`rows [m, k]` times the matrix of their group in `weight [groups, k, n]`: `[m, n]`."""
    return _dot(way, rows, weight, starts)


def _forward(way: Way, rows, weight, starts):
    return _dot(way, rows, weight, starts), (rows, weight, starts)


def _backward(way: Way, saved, cotangent):
    rows, weight, starts = saved
    by_rows = _dot(way, cotangent, weight, starts, transposed=True)
    return by_rows.astype(rows.dtype), _outer(way, rows, cotangent, starts, weight.dtype), None


grouped_dot.defvjp(_forward, _backward)


def _dot(way: Way, rows, weight, starts, *, transposed: bool = False):
    """Each row times the matrix of its group, or times the `transposed` matrix."""
    inner, features = weight.shape[2:0:-1] if transposed else weight.shape[1:]
    fn = {"megablox": _dot_by_megablox, "blocks": _dot_by_blocks}[way.kernel]
    call = partial(fn, way.block, way.interpret, transposed)
    return _called(way, call, len(weight), inner, features, rows, weight, starts)


def _outer(way: Way, rows, others, starts, dtype):
    """For each group the product of its `rows [m, k]` and its `others [m, n]`: `[groups, k, n]`."""
    fn = {"megablox": _outer_by_megablox, "blocks": _outer_by_blocks}[way.kernel]
    call = partial(fn, way.block, way.interpret, jnp.dtype(dtype).name)
    groups = len(starts) - 1
    return _called(way, call, groups, rows.shape[1], others.shape[1], rows, others, starts)


def _called(way: Way, call: partial, groups: int, inner: int, features: int, rows, *others) -> Any:
    """`call(rows, *others)`, as one operation where this is a device of a lowering."""
    expected = rows.shape[0] * way.share
    flops = int(2 * expected * inner * features)
    per_group = -(-int(expected) // groups)
    dtype = rows.dtype.name
    stated = Product(groups, per_group, inner, features, flops, dtype, uneven=way.share < 1)
    return as_one(way.lowered, call, rows, *others, products=(stated,))


# -- blocks ----------------------------------------------------------------------------------------


def block_of(rows: int, groups: int, platform: str) -> int:
    """How many rows a block has: few if groups are small, because a block has rows of one group."""
    most = 512 if platform == "gpu" else 128
    size = 8
    while size < most and size * groups < rows:
        size *= 2
    return size


def _blocks(starts, size: int):
    """How many blocks there are, and a function of the number of a block.

    It gives the group of the block, the first row, and how many rows the group has from there on.
    """
    counts = -(-jnp.diff(starts) // size)
    ends = jnp.cumsum(counts)

    def block(number):
        group = jnp.sum(number >= ends, dtype=jnp.int32)
        row = starts[group] + (number - ends[group] + counts[group]) * size
        return group, row, starts[group + 1] - row

    return ends[-1], block


def _wide(*arrays):
    """The dtype in which products of arrays are added up."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _dot_by_blocks(size: int, _, transposed: bool, rows, weight, starts):
    count, block = _blocks(starts, size)
    padded = jnp.pad(rows, ((0, size), (0, 0)))
    contracted = ((1,), (1 if transposed else 0,)), ((), ())

    def one(number, result):
        group, row, _ = block(number)
        own = lax.dynamic_slice_in_dim(padded, row, size)
        matrix = lax.dynamic_index_in_dim(weight, group, keepdims=False)
        product = lax.dot_general(own, matrix, contracted, preferred_element_type=_wide(own))
        # Rows that a block writes beyond its group are written again by the next groups' blocks.
        return lax.dynamic_update_slice_in_dim(result, product.astype(result.dtype), row, 0)

    features = weight.shape[1 if transposed else 2]
    empty = jnp.zeros((len(padded), features), jnp.result_type(rows, weight))
    return lax.fori_loop(0, count, one, empty)[: len(rows)]


def _outer_by_blocks(size: int, _, dtype: str, rows, others, starts):
    count, block = _blocks(starts, size)
    pad = lambda x: jnp.pad(x, ((0, size), (0, 0)))
    padded, others = pad(rows), pad(others)

    def one(number, result):
        group, row, left = block(number)
        inside = (jnp.arange(size) < left)[:, None]
        own, other = (
            jnp.where(inside, lax.dynamic_slice_in_dim(x, row, size), 0) for x in (padded, others)
        )
        contracted = ((0,), (0,)), ((), ())
        product = lax.dot_general(own, other, contracted, preferred_element_type=result.dtype)
        so_far = lax.dynamic_index_in_dim(result, group, keepdims=False)
        return lax.dynamic_update_index_in_dim(result, so_far + product, group, 0)

    shape = len(starts) - 1, rows.shape[1], others.shape[1]
    return lax.fori_loop(0, count, one, jnp.zeros(shape, _wide(rows))).astype(dtype)


# -- megablox --------------------------------------------------------------------------------------


def megablox_lacks(rows, parameters) -> str:
    """What megablox lacks for products of `rows` with `parameters`; empty if it can serve them."""
    dtypes = {x.dtype for x in (rows, *parameters)}
    if not dtypes <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)} or len(dtypes) > 1:
        return f"it takes float32 or bfloat16, not {' and '.join(sorted(map(str, dtypes)))}"
    if min(len(rows), rows.shape[1]) < _LANES:
        return f"it takes {_LANES} rows and features or more, not {len(rows)} and {rows.shape[1]}"
    return ""


def _tiles(rows: int, inner: int, features: int) -> tuple[int, int, int]:
    rows, inner, features = (_whole(n, _LANES) for n in (rows, inner, features))
    return min(512, rows), min(1024, inner), min(1024, features)


def _whole(count: int, size: int) -> int:
    """`count`, rounded up to a multiple of `size`."""
    return -(-count // size) * size


def _dot_by_megablox(_, interpret: bool, transposed: bool, rows, weight, starts):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm  # takes long to import

    inner, features = weight.shape[2:0:-1] if transposed else weight.shape[1:]
    tiling = _tiles(len(rows), inner, features)
    result = gmm(
        padded(rows, 0, _whole(len(rows), tiling[0])),
        weight,
        jnp.diff(starts),
        preferred_element_type=rows.dtype,
        tiling=tiling,
        transpose_rhs=transposed,
        interpret=interpret,
    )
    return result[: len(rows)]


def _outer_by_megablox(_, interpret: bool, dtype: str, rows, others, starts):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm  # takes long to import

    tiling = _tiles(len(rows), rows.shape[1], others.shape[1])
    return tgmm(
        padded(rows, 0, _whole(len(rows), tiling[0])).T,
        padded(others, 0, _whole(len(rows), tiling[0])),
        jnp.diff(starts),
        preferred_element_type=jnp.dtype(dtype),
        tiling=tiling,
        interpret=interpret,
    )
