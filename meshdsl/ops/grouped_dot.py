"""Products of groups of rows, each with the matrix of its group, and their derivatives.

Rows are in the order of their groups: the rows of group g begin at `starts[g]`, and rows from
`starts[-1]` on belong to no group. Neither the product nor its derivatives multiply a row with the
matrix of another group, as `jax.lax.ragged_dot` does for the gradient of the weight. The result for
a row without a group is zeros, and no gradient depends on that row. There are three ways to the
same results, in `KERNELS`:

- `megablox`, JAX's Pallas kernels for TPU, and libtpu's own kernel for `jax.lax.ragged_dot` where
  the matrix is not transposed, which is faster;
- `pallas`, the kernels of `grouped_kernels.py` for GPU;
- `blocks` of rows, one after the other, in plain JAX, on every platform.

On other platforms than their own the kernels are interpreted, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from meshdsl.lowering.kernels import Product
from meshdsl.ops.arrays import as_one, padded
from meshdsl.ops.kernel_choice import compute_capability, of_amd

_LANES = 128
_AMPERE = 8.0
_DTYPES = "float32", "bfloat16", "float16"


class Way(NamedTuple):
    """How products are computed.

    Attributes:
      kernel: one of `KERNELS`.
      platform: the platform of the device.
      lowered: whether this is one device of a lowering.
      block: how many rows a block has, about as many as a group.
      share: the expected share of the rows that have a group on this device.
      wide: whether gradients of matrices are cast to float32 next.
      device_kind: what JAX calls the device, as "TPU v6 lite"; empty where that is not known.
    """

    kernel: str
    platform: str
    lowered: bool
    block: int
    share: float
    wide: bool = False
    device_kind: str = ""

    def taking(self, dtype) -> Way:
        """This way, or blocks where its kernel does not take products of `dtype`."""
        served = KERNELS[self.kernel].dtypes
        return self if not served or dtype.name in served else self._replace(kernel="blocks")


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def grouped_dot(way: Way, transposed: bool, rows, weight, starts):
    """`rows [m, k]` times the matrix of their group in `weight [groups, k, n]`: `[m, n]`.

    Where it is `transposed`, the weight is `[groups, n, k]`.
    """
    return dot(way, transposed, rows, weight, starts)


def _forward(way: Way, transposed: bool, rows, weight, starts):
    return dot(way, transposed, rows, weight, starts), (rows, weight, starts)


def _backward(way: Way, transposed: bool, saved, cotangent):
    rows, weight, starts = saved
    by_rows = dot(way, not transposed, cotangent, weight, starts).astype(rows.dtype)
    return by_rows, outer(way, transposed, rows, cotangent, starts).astype(weight.dtype), None


grouped_dot.defvjp(_forward, _backward)


def dot(way: Way, transposed: bool, rows, weight, starts, dtype: Any = None) -> jax.Array:
    """`grouped_dot`, without a derivative.

    Args:
      dtype: of the result; by default that of the rows.
    """
    inner, features = weight.shape[2:0:-1] if transposed else weight.shape[1:]
    call = partial(_dot_or_zeros, way, transposed, jnp.dtype(dtype or rows.dtype).name)
    contract = "transposed" if transposed else "rows"
    return _called(way, contract, call, len(weight), inner, features, rows, weight, starts)


def _dot_or_zeros(way: Way, transposed: bool, dtype: str, rows, weight, starts):
    result = KERNELS[way.kernel].dot(way, transposed, dtype, rows, weight, starts)
    grouped = lax.iota(jnp.int32, len(rows)) < starts[-1]
    return jnp.where(grouped[:, None], result, 0)  # kernels leave other rows as memory has them


def outer(way: Way, transposed: bool, rows, others, starts) -> jax.Array:
    """For each group the product of its `rows [m, k]` and its `others [m, n]`: `[groups, k, n]`.

    Where it is `transposed`, it is `[groups, n, k]`. The dtype is that of the rows, or a wider one.
    """
    # A TPU passes over what its kernel has written in float32 faster than over bfloat16.
    dtype = _wide(rows) if way.wide and way.platform == "tpu" else rows.dtype
    a, b = (others, rows) if transposed else (rows, others)
    call = partial(KERNELS[way.kernel].outer, way, dtype.name)
    groups = len(starts) - 1
    return _called(way, "outer", call, groups, a.shape[1], b.shape[1], a, b, starts)


def _called(
    way: Way, contract: str, call: partial, groups: int, inner: int, features: int, rows, *others
) -> Any:
    """`call(rows, *others)`, as one operation where this is a device of a lowering."""
    expected = rows.shape[0] * way.share
    flops = int(2 * expected * inner * features)
    per_group = -(-int(expected) // groups)
    dtype, uneven = rows.dtype.name, way.share < 1
    seam = tile_rows(way, len(rows), groups) if way.kernel == "megablox" else max(way.block // 2, 1)
    # A tile of rows may have rows of two groups, and is multiplied for both.
    multiplied = flops * (groups * per_group + seam * (groups - 1)) // max(groups * per_group, 1)
    stated = Product(groups, per_group, inner, features, flops, dtype, uneven, multiplied, contract)
    return as_one(way.lowered, call, rows, *others, products=(stated,))


# -- blocks ----------------------------------------------------------------------------------------


def block_of(rows: int, groups: int, platform: str) -> int:
    """How many rows a block has: few if groups are small, because a block has rows of one group."""
    most = 512 if platform == "gpu" else 128
    size = 8
    while size < most and size * groups < rows:
        size *= 2
    return size


def blocks_of(starts, size: int, rows: int):
    """The blocks of `size` rows: for each its group, its first row, and how many rows the group has
    from there on; [3, blocks].

    There are as many blocks as `rows` can need. Those after the last one have no row.
    """
    sizes = jnp.diff(starts)
    counts = -(-sizes // size)
    ends = jnp.cumsum(counts)
    number = lax.iota(jnp.int32, rows // size + len(sizes))
    group = jnp.sum(number[:, None] >= ends, axis=1, dtype=jnp.int32)
    used, group = group < len(sizes), jnp.minimum(group, len(sizes) - 1)
    row = starts[group] + (number - ends[group] + counts[group]) * size
    left = starts[group + 1] - row
    return jnp.stack([group, jnp.where(used, row, rows), jnp.where(used, left, 0)])


def _turns(way: Way, blocks):
    """How many of the blocks a loop goes through: all that have rows, and more on GPU.

    XLA asks the host before each turn of a loop on GPU whose number of turns is data. That costs
    more time than blocks without rows, unless most blocks have none.
    """
    if way.platform == "gpu" and way.share >= 0.5:
        return blocks.shape[1]
    return jnp.sum(blocks[2] > 0, dtype=jnp.int32)


def _wide(*arrays):
    """The dtype in which products of arrays are added up."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _dot_by_blocks(way: Way, transposed: bool, dtype: str, rows, weight, starts):
    size = way.block
    blocks = blocks_of(starts, size, len(rows))
    padded = jnp.pad(rows, ((0, size), (0, 0)))
    contracted = ((1,), (1 if transposed else 0,)), ((), ())
    sums = dtype if jnp.issubdtype(dtype, jnp.integer) else _wide(rows)

    def one(number, result):
        group, row, _ = blocks[:, number]
        own = lax.dynamic_slice_in_dim(padded, row, size)
        matrix = lax.dynamic_index_in_dim(weight, group, keepdims=False)
        product = lax.dot_general(own, matrix, contracted, preferred_element_type=sums)
        # Rows that a block writes beyond its group are written again by the next groups' blocks.
        return lax.dynamic_update_slice_in_dim(result, product.astype(result.dtype), row, 0)

    features = weight.shape[1 if transposed else 2]
    empty = jnp.zeros((len(padded), features), dtype)
    return lax.fori_loop(0, _turns(way, blocks), one, empty)[: len(rows)]


def _outer_by_blocks(way: Way, dtype: str, rows, others, starts):
    size = way.block
    blocks = blocks_of(starts, size, len(rows))
    pad = lambda x: jnp.pad(x, ((0, size), (0, 0)))
    padded, others = pad(rows), pad(others)

    def one(number, result):
        group, row, left = blocks[:, number]
        inside = (jnp.arange(size) < left)[:, None]
        own, other = (
            jnp.where(inside, lax.dynamic_slice_in_dim(x, row, size), 0) for x in (padded, others)
        )
        contracted = ((0,), (0,)), ((), ())
        product = lax.dot_general(own, other, contracted, preferred_element_type=result.dtype)
        so_far = lax.dynamic_index_in_dim(result, group, keepdims=False)
        return lax.dynamic_update_index_in_dim(result, so_far + product, group, 0)

    shape = len(starts) - 1, rows.shape[1], others.shape[1]
    zeros = jnp.zeros(shape, _wide(rows))
    return lax.fori_loop(0, _turns(way, blocks), one, zeros).astype(dtype)


# -- pallas ----------------------------------------------------------------------------------------


def _pallas_lacks(platform: str, rows, parameters) -> str:
    """What the kernels for GPU lack for products of `rows` with `parameters`; empty for nothing."""
    if platform == "gpu" and (of_amd() or (compute_capability() or _AMPERE) < _AMPERE):
        return "it runs on GPUs of NVIDIA, from Ampere on"
    return _lacks_dtypes("pallas", rows, parameters)


def _dot_by_pallas(way: Way, transposed: bool, dtype: str, rows, weight, starts):
    from meshdsl.ops.grouped_kernels import dot, tile_of  # with Pallas, which takes long to import

    tile = tile_of(rows.dtype, way.block)
    blocks = blocks_of(starts, tile.rows, len(rows))
    return dot(tile, way.platform != "gpu", transposed, dtype, rows, weight, blocks)


def _outer_by_pallas(way: Way, dtype: str, rows, others, starts):
    from meshdsl.ops.grouped_kernels import outer, tile_of  # with Pallas, as above

    # A tile has features of the rows in the place of rows, and features are many.
    tile = tile_of(rows.dtype, max(way.block, 128))
    return outer(tile, way.platform != "gpu", dtype, rows, others, starts)


# -- megablox --------------------------------------------------------------------------------------


def _megablox_lacks(_: str, rows, parameters) -> str:
    """What megablox lacks for products of `rows` with `parameters`; empty if it can serve them."""
    if lacks := _lacks_dtypes("megablox", rows, parameters):
        return lacks
    if min(len(rows), rows.shape[1]) < _LANES:
        return f"it takes {_LANES} rows and features or more, not {len(rows)} and {rows.shape[1]}"
    return ""


class Tiles(NamedTuple):
    """The tiles of a chip, by benchmarks/grouped_schedules.py; in 16 bits.

    Attributes:
      dot: how many inner features and features a tile of libtpu's kernel has.
      transposed: those of megablox for the product with a transposed matrix.
      outer: those of megablox for the gradient of matrices, whose sums are in float32.
      rows: how many rows a tile has at most.
      growth: a tile has twice as many rows, as long as their square is less than the rows of a
        group times this.
    """

    dot: tuple[int, int]
    transposed: tuple[int, int]
    outer: tuple[int, int]
    rows: int = 512
    growth: int = 32


_TILES = {
    # Its memory is slow beside its matrix units, so that results are wide.
    "TPU v6 lite": Tiles((512, 2048), (1024, 1024), (512, 2048), rows=1024, growth=128),
    "TPU7x": Tiles((1024, 2048), (2048, 1024), (1024, 1024)),
}
_OTHERS = Tiles((1024, 1024), (1024, 1024), (1024, 512))


def tile_rows(way: Way, rows: int, groups: int) -> int:
    """How many rows a tile has, by about how many a group has.

    A tile in which a group ends is multiplied again for the next group. So few rows waste little
    where groups are small; but each tile takes the time of some rows besides.
    """
    own = _TILES.get(way.device_kind, _OTHERS)
    size = _LANES
    while size < own.rows and size * size < own.growth * rows * way.share / groups:
        size *= 2
    return min(size, _whole(rows, _LANES))


def tpu_tile(way: Way, product: str, rows, groups: int, sizes: Any) -> tuple[int, int, int]:
    """The tile of a kernel for TPUs: how many rows, inner features and features.

    Args:
      product: a field of `Tiles`.
      rows: the array of them.
      sizes: how many inner features and features there are.
    """
    inner, features = getattr(_TILES.get(way.device_kind, _OTHERS), product)
    inner = inner * 2 // rows.dtype.itemsize
    most = [min(n, _whole(size, _LANES)) for n, size in zip((inner, features), sizes, strict=True)]
    return tile_rows(way, len(rows), groups), most[0], most[1]


def _whole(count: int, size: int) -> int:
    """`count`, rounded up to a multiple of `size`."""
    return -(-count // size) * size


def _dot_by_megablox(way: Way, transposed: bool, dtype: str, rows, weight, starts):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm  # takes long to import

    itemsize = rows.dtype.itemsize
    by_libtpu = itemsize == 1 or (itemsize == 2 and not transposed)
    sizes = weight.shape[2:0:-1] if transposed else weight.shape[1:]
    tile = tpu_tile(way, "dot" if by_libtpu else "transposed", rows, len(weight), sizes)
    given = padded(rows, 0, _whole(len(rows), tile[0]))
    how: Any = {"preferred_element_type": jnp.dtype(dtype)}
    if by_libtpu:
        # To copy a matrix in 8 bits takes some hundredths of the time of its products.
        matrix = weight.swapaxes(1, 2) if transposed else weight
        with set_xla_metadata(ragged_dot_tiling=",".join(map(str, tile))):
            result = lax.ragged_dot(given, matrix, jnp.diff(starts), **how)
    else:
        how |= {"tiling": tile, "transpose_rhs": transposed, "interpret": way.platform != "tpu"}
        result = gmm(given, weight, jnp.diff(starts), **how)
    return result[: len(rows)]


def _outer_by_megablox(way: Way, dtype: str, rows, others, starts):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm  # takes long to import

    tile = tpu_tile(way, "outer", rows, len(starts) - 1, (rows.shape[1], others.shape[1]))
    return tgmm(
        padded(rows, 0, _whole(len(rows), tile[0])).T,
        padded(others, 0, _whole(len(rows), tile[0])),
        jnp.diff(starts),
        preferred_element_type=jnp.dtype(dtype),
        tiling=tile,
        interpret=way.platform != "tpu",
    )


# -- all of them -----------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A way to compute the products.

    Attributes:
      dot: called with a `Way`, whether matrices are transposed, the name of the result's dtype,
        rows, weight and starts.
      outer: called with a `Way`, the name of the result's dtype, rows, other rows and starts.
      lacks: called with a platform, rows and parameters; returns what the kernel cannot do for
        products of these, or an empty text.
      platform: the platform that the kernel is for; empty for a kernel that runs on all.
      dtypes: the names of the dtypes that the kernel takes; empty for all.
    """

    dot: Callable
    outer: Callable
    lacks: Callable[..., str]
    platform: str = ""
    dtypes: tuple[str, ...] = ()


KERNELS = {
    "megablox": Kernel(_dot_by_megablox, _outer_by_megablox, _megablox_lacks, "tpu", _DTYPES[:2]),
    "pallas": Kernel(_dot_by_pallas, _outer_by_pallas, _pallas_lacks, "gpu", _DTYPES),
    "blocks": Kernel(_dot_by_blocks, _outer_by_blocks, lambda *_: ""),
}


def _lacks_dtypes(kernel: str, rows, parameters) -> str:
    """What a kernel lacks for the dtypes of products; empty for nothing."""
    served = KERNELS[kernel].dtypes
    found = {jnp.result_type(rows, x).name for x in parameters}
    if found <= {*served}:
        return ""
    return f"it takes {', '.join(served)}, not {' and '.join(sorted(found))}"
