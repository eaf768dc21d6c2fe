"""Attention by the kernels of a platform: JAX's splash attention on TPU, cuDNN's on GPU.

Arrays are in the order that `attention_blocks` describes. A kernel serves some calls only; what it
lacks for a call is said by `splash_lacks` and `cudnn_lacks`.
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
from meshdsl.lowering.kernels import Product, Products
from meshdsl.ops.attention_blocks import SAVED, Options, Sides

_LANES = 128  # splash works on blocks of a multiple of them
# Rows and columns of the blocks of splash. The fused backward kernel writes the gradient of the
# queries once for each block of columns: on v5p a layer takes 4.0 ms with blocks of 512 there and
# 2.4 ms with blocks of 2,048.
_ROWS, _COLUMNS, _BACKWARD_COLUMNS = 512, 512, 2048
_UNSEEN = -1e37  # below it lies the log-sum-exp of a row that sees no column
_CUDNN = "cudnn"  # what `jax.nn.dot_product_attention` calls it


class Place(NamedTuple):
    """The part of the queries that a device has.

    Attributes:
      part: its number, or None where there is one part only.
      parts: how many there are, all of one size.
      padded: whether the last ones hold padding.
      counted: whether positions count from 0, as they do where the call gives none.
      platform: of the device.
      lowered: whether this is one device of a lowering.
    """

    part: Any
    parts: int
    padded: bool
    counted: bool
    platform: str
    lowered: bool


def visible_share(options: Options, rows: int, columns: int, counted: bool) -> float:
    """The share of the scores that count, by the convention that causal attention has half of them.

    Args:
      rows, columns: over all devices.
      counted: whether positions count from 0. Of others nothing is known, and all scores count.
    """
    if not counted or rows != columns or not columns:
        return 1.0
    share = 0.5 if options.causal else 1.0
    if options.window is None:
        return share
    return min(share, options.window * 2 * share / columns)


def _products(query, key, value, share: float) -> tuple[Products, Products]:
    """What a fused kernel multiplies: two products forward, and five in the backward pass."""
    *leading, rows, inner = query.shape
    columns, features = value.shape[-2:]
    batch, dtype = math.prod(leading), query.dtype.name

    def product(m, k, n) -> Product:
        return Product(batch, m, k, n, int(2 * batch * m * k * n * share), dtype)

    scores, output = product(rows, inner, columns), product(rows, columns, features)
    by_weights = product(rows, features, columns)
    by_value = product(columns, rows, features)
    by_query, by_key = product(rows, columns, inner), product(columns, rows, inner)
    return (scores, output), (scores, by_weights, by_value, by_query, by_key)


# -- splash ----------------------------------------------------------------------------------------


def splash_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What splash attention cannot do of a call; empty if it can do all."""
    if sides.bias is not None:
        return "it has no `bias`"
    if sides.sinks is not None:
        return "it has no `sinks`"
    if not place.counted:
        return "its positions count from 0"
    rows, columns = query.shape[-2], key.shape[-2]
    if place.padded or rows % _LANES or columns % _LANES or not query.size or not value.size:
        return (
            f"it takes multiples of {_LANES} queries on a device and of {_LANES} keys, "
            f"not {rows}{' with padding' if place.padded else ''} and {columns}"
        )
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"it takes float32 and bfloat16, not {query.dtype}"
    heads = query.ndim - 2 - max(options.shared - 1, 0)
    for segments in (sides.row_segments, sides.column_segments):
        if segments is not None and math.prod(segments.shape[-2 - heads : -2]) > 1:
            return "its segments are the same for all heads"
    return ""


def attend_by_splash(options: Options, place: Place, query, key, value, sides: Sides) -> jax.Array:
    """The output, by the kernel on TPU and by an interpreter of it elsewhere."""
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])
    q = query.reshape(batch, heads * group, *query.shape[-2:])
    k, v = (x.reshape(batch, heads, *x.shape[-2:]) for x in (key, value))

    def by_batch(x, length):
        x = x.reshape(*x.shape[: len(shared[:-1])], length)
        return jnp.broadcast_to(x, (*shared[:-1], length)).reshape(batch, length)

    segments = None
    if sides.row_segments is not None:
        rows = by_batch(sides.row_segments, q.shape[-2])
        segments = rows, by_batch(sides.column_segments, k.shape[-2])
    share = visible_share(options, q.shape[-2] * place.parts, k.shape[-2], True)
    products = _products(q, k, v, share)
    way = _Splash(options, place.parts, place.platform != "tpu", place.lowered, products)
    arrays, tree = jax.tree.flatten((q, k, v, segments, place.part))
    axes = frozenset().union(*map(collectives.varying, arrays))
    varying = jax.tree.unflatten(tree, [collectives.vary(x, axes) for x in arrays])
    output = _splash(way, *varying)
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
    return max(n for n in range(_LANES, min(length, most) + 1, _LANES) if length % n == 0)


def _scaled(way: _Splash, x) -> jax.Array:
    return x * jnp.asarray(way.options.scale, x.dtype)


def _ids(segments):
    return None if segments is None else splash.SegmentIds(*segments)


def _sees(normaliser) -> jax.Array:
    return (normaliser > _UNSEEN)[..., None]


# -- cuDNN -----------------------------------------------------------------------------------------


def cudnn_lacks(options: Options, place: Place, query, key, value, sides: Sides) -> str:
    """What cuDNN's attention cannot do of a call; empty if it can do all."""
    if place.platform != "gpu" and _CUDNN == "cudnn":
        return "it runs on GPU only"
    for name, given in (("bias", sides.bias), ("sinks", sides.sinks)):
        if given is not None:
            return f"it has no `{name}` here"
    if options.softcap is not None:
        return "it has no `softcap`"
    if sides.row_segments is not None:
        return "it has no `segments`"
    if options.window is not None and not options.causal:
        return "its `window` is causal"
    if options.causal and (place.parts > 1 or not place.counted or query.shape[-2] > key.shape[-2]):
        return "its positions count from 0 on each device, with no more queries than keys"
    inner, features = query.shape[-1], value.shape[-1]
    if inner != features or inner % 8 or not 0 < inner <= 256:
        return f"its heads are multiples of 8 up to 256, not {inner} and {features}"
    if query.dtype not in (jnp.bfloat16, jnp.float16) or not query.size or not key.size:
        return f"it takes bfloat16 and float16, not {query.dtype}"
    return ""


def attend_by_cudnn(options: Options, place: Place, query, key, value, sides: Sides) -> jax.Array:
    """The output, by cuDNN."""
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])

    def by_position(x, heads):
        return jnp.swapaxes(x.reshape(batch, heads, *x.shape[-2:]), 1, 2)

    def attend(q, k, v):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=options.scale,
            is_causal=options.causal,
            local_window_size=None if options.window is None else (options.window - 1, 0),
            implementation=_CUDNN,
        )

    arrays = by_position(query, heads * group), by_position(key, heads), by_position(value, heads)
    share = visible_share(options, query.shape[-2], key.shape[-2], place.counted)
    if place.lowered:
        products = _products(query, key, value, share)
        output = kernels.called(attend, arrays, "attention", products)
    else:
        output = attend(*arrays)
    output = ad_checkpoint.checkpoint_name(output, SAVED)
    return jnp.swapaxes(output, 1, 2).reshape(*leading, *output.shape[1:2], *output.shape[3:])
