"""Attention by JAX's splash kernel, inside of a derivative of our own.

The kernel is called as one operation of local arrays, see `lowering.kernels`, forward and backward.
Its output and log-sum-exp are ours to name, so that a checkpoint can keep them. Where the queries
are split, each device is given its part of what the kernel knows of the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from meshdsl.lowering import collectives, kernels
from meshdsl.lowering.kernels import Products
from meshdsl.ops.attention_blocks import SAVED, Options, Sides
from meshdsl.ops.attention_kernels import LANES, Place, products_of, visible_share

# Rows and columns of the blocks. The fused backward kernel writes the gradient of the queries once
# for each block of columns: on v5p a layer takes 4.0 ms with blocks of 512 there and 2.4 ms with
# blocks of 2,048.
_ROWS, _COLUMNS, _BACKWARD_COLUMNS = 512, 512, 2048
_UNSEEN = -1e37  # below it lies the log-sum-exp of a row that sees no column


def attend(options: Options, place: Place, query, key, value, sides: Sides) -> jax.Array:
    """The output, by the kernel on TPU and by an interpreter of it elsewhere."""
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])
    q = query.reshape(batch, heads * group, *query.shape[-2:])
    k, v = (x.reshape(batch, heads, *x.shape[-2:]) for x in (key, value))

    def by_batch(x: Any, length: int) -> jax.Array:
        x = x.reshape(*x.shape[: len(shared[:-1])], length)
        return jnp.broadcast_to(x, (*shared[:-1], length)).reshape(batch, length)

    segments = None
    if sides.row_segments is not None:
        rows = by_batch(sides.row_segments, q.shape[-2])
        segments = rows, by_batch(sides.column_segments, k.shape[-2])
    share = visible_share(options, q.shape[-2] * place.parts, k.shape[-2], True)
    products = products_of(q, k, v, share)
    way = _Splash(options, place.parts, place.platform != "tpu", place.lowered, products)
    arrays, tree = jax.tree.flatten((q, k, v, segments, place.part))
    axes = frozenset().union(*map(collectives.varying, arrays))
    varying = jax.tree.unflatten(tree, [collectives.vary(x, axes) for x in arrays])
    output: Any = _splash(way, *varying)
    return output.reshape(*leading, *output.shape[-2:])


class _Splash(NamedTuple):
    """What is known of a call while tracing.

    Attributes:
      parts: of the queries.
      interpreted: whether the kernel is interpreted.
      lowered: as in `Place`.
      products: those of the kernel, forward and backward.
    """

    options: Options
    parts: int
    interpreted: bool
    lowered: bool
    products: tuple[Products, Products]

    def run(self, fn: Callable, *args, backward: bool):
        """`fn` of local arrays: in a lowering one operation, and outside of one as it is."""
        if self.lowered:
            return kernels.opaque(fn, *args, products=self.products[backward])
        return fn(*args)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _splash(way, q, k, v, segments, part):
    return way.run(partial(_splash_output, way), q, k, v, segments, part, backward=False)[0]


def _splash_forward(way, q, k, v, segments, part):
    made = way.run(partial(_splash_output, way), q, k, v, segments, part, backward=False)
    output, normaliser = (ad_checkpoint.checkpoint_name(x, SAVED) for x in made)
    return output, (q, k, v, segments, part, output, normaliser)


def _splash_backward(way, saved, cotangent):
    slopes = way.run(partial(_splash_slopes, way), *saved, cotangent, backward=True)
    return *slopes, None, None


_splash.defvjp(_splash_forward, _splash_backward)


def _splash_output(way: _Splash, q, k, v, segments, part):
    kernel = _splash_kernel(way, q, k, part, save_residuals=True)

    def one(q, k, v, segments):
        output, (normaliser,) = kernel(_scaled(way, q), k, v, _ids(segments))
        return output, normaliser

    output, normaliser = jax.vmap(one)(q, k, v, segments)
    return jnp.where(_sees(normaliser), output, 0), normaliser


def _splash_slopes(way: _Splash, q, k, v, segments, part, output, normaliser, cotangent):
    kernel = _splash_kernel(way, q, k, part, save_residuals=False)
    how = {name: x for name, x in kernel.kwargs.items() if name != "interpret"}
    sees = _sees(normaliser)
    cotangent = jnp.where(sees, cotangent, 0)
    normaliser = jnp.where(sees[..., 0], normaliser, 0)

    def one(q, k, v, segments, output, normaliser, cotangent):
        arrays = (_scaled(way, q), k, v, _ids(segments), None, output, normaliser)
        saved = (*arrays, kernel.dq_mask_info, kernel.dkv_mask_info)
        # The kernel's own function for it would run the forward pass again, as it has no way to be
        # given an output that was kept.
        slopes = splash._splash_attention_bwd(
            **how, interpret=way.interpreted, res=saved, do=cotangent
        )
        by_query, by_key, by_value = slopes[3:6]
        return _scaled(way, by_query).astype(q.dtype), by_key, by_value

    found = jax.vmap(one)(q, k, v, segments, output, normaliser, cotangent)
    return tuple(x.astype(like.dtype) for x, like in zip(found, (q, k, v), strict=True))


def _splash_kernel(way: _Splash, q, k, part, save_residuals: bool):
    """The kernel for the part of the queries that this device has."""
    options, parts = way.options, way.parts
    heads, rows, columns = q.shape[1], q.shape[2], k.shape[2]
    shape = (rows * parts, columns)
    if options.window is not None:
        away = options.window - 1
        mask: Any = masks.LocalMask(shape, (away, 0 if options.causal else away), 0)
    else:
        mask = masks.CausalMask(shape) if options.causal else masks.FullMask(shape)
    block, across = _block(rows, _ROWS), _block(columns, _COLUMNS)
    back = _block(columns, _BACKWARD_COLUMNS)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=across,
        block_kv_compute=across,
        block_q_dkv=block,
        block_kv_dkv=back,
        block_kv_dkv_compute=_block(back, _COLUMNS),
        use_fused_bwd_kernel=True,
    )
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=parts,
        save_residuals=save_residuals,
        attn_logits_soft_cap=options.softcap,
        interpret=way.interpreted,
    )
    if part is None:
        return kernel
    forward, backward = (
        _of_part(info, part, parts) for info in (kernel.fwd_mask_info, kernel.dkv_mask_info)
    )
    return splash.SplashAttentionKernel(forward, kernel.dq_mask_info, backward, **kernel.kwargs)


def _of_part(info: Any, part, parts: int) -> Any:
    """What the kernel knows of the mask, for one of the parts of the queries."""

    def taken(x, at):
        if x is None:
            return None
        size = x.shape[at] // parts
        return lax.dynamic_slice_in_dim(x, part * size, size, at)

    by_rows = {name: taken(getattr(info, name), 1) for name in _BY_ROWS}
    return info._replace(**by_rows, q_sequence=taken(info.q_sequence, 0))


_BY_ROWS = ("data_next", "mask_next", "block_mask")


def _block(length: int, most: int) -> int:
    """The largest block of whole lanes, up to `most`, of which `length` is a multiple."""
    return max(n for n in range(LANES, min(length, most) + 1, LANES) if length % n == 0)


def _scaled(way: _Splash, x) -> jax.Array:
    return x * jnp.asarray(way.options.scale, x.dtype)


def _ids(segments):
    return None if segments is None else splash.SegmentIds(*segments)


def _sees(normaliser) -> jax.Array:
    return (normaliser > _UNSEEN)[..., None]
