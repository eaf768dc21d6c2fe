"""The calls of JAX's splash kernel, forward and backward, and the masks for them.

Importing Pallas for TPUs takes a good part of the time of a trace. So this file is imported only
when a kernel is traced, which is when a program that has the kernel is lowered for a compiler.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from meshdsl.ops.attention.kernels import seen_of
from meshdsl.ops.attention.operands import HIDDEN, Options
from meshdsl.ops.attention.splash import (
    COLUMNS,
    ROWS,
    Arrays,
    Run,
    backward_columns,
    block_size,
)

_UNSEEN = -1e37  # a row that sees no column has a smaller log-sum-exp


def _mask(
    options: Options, rows: int, columns: int, distance: int | None, parts: int
) -> masks.Mask:
    """The mask of rows and columns: full, if `distance` is None or nothing hides a column.

    Args:
      rows: the rows of all parts.
      distance: how far behind the first column the first row is.
    """
    shape = (rows, columns)
    if distance is None or not (options.causal or options.window is not None):
        return masks.FullMask(shape)
    mask: Any
    if options.window is None:
        mask = _Causal(shape, distance)
    else:
        away = options.window - 1
        mask = _Local(shape, (away, 0 if options.causal else away), distance)
    mask.options, mask.distance, mask.part_rows = options, distance, rows // parts
    return mask


class _ByBlocks:
    """A mask that finds the blocks that count as a whole, or not at all, without their elements.

    The kernel asks for all blocks of a mask while it is traced, and skips blocks that are all
    False. A kernel that skips all blocks of one of the parts of the rows cannot be built. So the
    first block of such a part says that one of its elements counts. This changes no result, because
    the kernel itself computes which elements of a block count, from their positions.
    """

    def __getitem__(self: Any, index):
        rows, columns = (range(n)[some] for n, some in zip(self.shape, index, strict=True))
        sizes, far = (len(rows), len(columns)), self.distance + rows.start - columns.start
        share, partly = seen_of(self.options, *sizes, far)
        if partly is None:
            if not share and not columns.start and self._first_of_unseeing_part(rows.start):
                return _one_true(sizes)
            return _all(sizes, share > 0)
        return super().__getitem__(index)  # pyright: ignore[reportAttributeAccessIssue]

    def _first_of_unseeing_part(self: Any, row: int) -> bool:
        """Whether `row` is the first one of a part that sees no column."""
        if row % self.part_rows:
            return False
        distance = self.distance + row
        return not seen_of(self.options, self.part_rows, self.shape[1], distance)[0]


@lru_cache(maxsize=8)
def _all(sizes: tuple[int, int], seen: bool) -> np.ndarray:
    return np.full(sizes, seen)


@lru_cache(maxsize=8)
def _one_true(sizes: tuple[int, int]) -> np.ndarray:
    block = np.zeros(sizes, bool)
    block[0, 0] = True
    return block


class _Causal(_ByBlocks, masks.CausalMask):
    pass


class _Local(_ByBlocks, masks.LocalMask):
    pass


def output(run: Run, arrays: Arrays, part):
    kernel = _splash_kernel(run, arrays, part, save_residuals=True)

    def one(q, k, v, segments):
        output, (normaliser,) = kernel(_scaled(run, q), k, v, _ids(segments))
        return output, normaliser

    output, normaliser = jax.vmap(one)(*arrays[:4])
    if run.all_see and arrays.segments is None:
        return output, normaliser
    sees = normaliser > _UNSEEN
    return jnp.where(sees[..., None], output, 0), jnp.where(sees, normaliser, HIDDEN)


def slopes(run: Run, arrays: Arrays, part):
    kernel = _splash_kernel(run, arrays, part, save_residuals=False)
    sizes, mask_info = kernel.kwargs["block_sizes"], kernel.dkv_mask_info
    assert mask_info is not None

    def one(q, k, v, segments, of_rows):
        normaliser, through, cotangent = of_rows
        # The kernel's own derivative cannot be given an output that was kept, so it would run the
        # forward pass again.
        by_query, by_key, by_value = splash._splash_attention_bwd_dkv(
            _scaled(run, q),
            k,
            v,
            _ids(segments),
            None,
            normaliser,
            cotangent,
            through,
            bq=sizes.block_q_dkv,
            bkv=sizes.block_kv_dkv,
            bkv_compute=sizes.block_kv_dkv_compute,
            is_mqa=False,
            mask_info=mask_info,
            mask_value=kernel.kwargs["mask_value"],
            attn_logits_soft_cap=run.options.softcap,
            use_fused_bwd_kernel=True,
            q_layout=sizes.q_layout,
            k_layout=sizes.k_layout,
            v_layout=sizes.v_layout,
            mask_function=kernel.kwargs["mask_function"],
            interpret=run.interpreted,
        )
        return _scaled(run, by_query).astype(q.dtype), by_key, by_value

    found = jax.vmap(one)(*arrays)
    return tuple(x.astype(like.dtype) for x, like in zip(found, arrays[:3], strict=True))


def _splash_kernel(run: Run, arrays: Arrays, part, save_residuals: bool):
    """The kernel for the part of the queries that this device has."""
    heads, rows, columns = arrays.query.shape[1], arrays.query.shape[2], arrays.key.shape[2]
    mask = _mask(run.options, rows * run.parts, columns, run.distance, run.parts)
    block, across = block_size(rows, ROWS), block_size(columns, COLUMNS)
    back = backward_columns(columns, arrays.query.shape[3])
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=across,
        block_kv_compute=across,
        block_q_dkv=block,
        block_kv_dkv=back,
        block_kv_dkv_compute=block_size(back, COLUMNS),
        use_fused_bwd_kernel=True,
    )
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=run.parts,
        save_residuals=save_residuals,
        attn_logits_soft_cap=run.options.softcap,
        interpret=run.interpreted,
    )
    if part is None:
        return kernel
    forward, backward = (
        _of_part(info, part, run.parts) for info in (kernel.fwd_mask_info, kernel.dkv_mask_info)
    )
    return splash.SplashAttentionKernel(forward, kernel.dq_mask_info, backward, **kernel.kwargs)


def _of_part(info: Any, part, parts: int) -> Any:
    """The kernel's tables about the mask, cut to one of the parts of the queries."""

    def taken(x, at):
        if x is None:
            return None
        size = x.shape[at] // parts
        return lax.dynamic_slice_in_dim(x, part * size, size, at)

    by_rows = {name: taken(getattr(info, name), 1) for name in _BY_ROWS}
    return info._replace(**by_rows, q_sequence=taken(info.q_sequence, 0))


_BY_ROWS = ("data_next", "mask_next", "block_mask")


def _scaled(run: Run, x) -> jax.Array:
    return x * jnp.asarray(run.options.scale, x.dtype)


def _ids(segments):
    return None if segments is None else splash.SegmentIds(*segments)
