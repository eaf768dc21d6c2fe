"""cross_entropy: from hidden states to the nats of each token, a chunk of tokens at a time.

At any time only the logits of one chunk are in memory. The backward pass computes them again, and
adds up the gradient of the weight in float32 from chunk to chunk. Where the vocabulary is split,
each device goes through its own part of it. The results of the devices are combined once, for all
tokens: by a maximum and a sum of two numbers for each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims, show
from meshdsl.errors import MeshDSLError, whole_number
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.ops import component
from meshdsl.ops.arrays import capped, in_order, padded
from meshdsl.ops.checks import check_indices, checked_softcap
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.tensor import Tensor

_TOKEN, _ENTRY = 100, 101  # labels in an einsum; the features are counted from 0


def _cross_entropy_example(cross_entropy: Callable, draw: Draw) -> Case:
    a, b, c, v = draw.dims("a", "b", "c", "v")
    x, weight, bias = draw.tensor(a, b, c), draw.tensor(c, v), draw.tensor(v)
    targets = draw.integers(b, a, below=v.size + 2)
    chunk, softcap = draw.pick(None, 1, 3), draw.pick(None, 2.0)
    nats = partial(cross_entropy, vocab=v, chunk=chunk, softcap=softcap)
    return draw.pick(
        Case(nats, (x, weight, targets), (c, v)),
        Case(lambda *xs: nats(*xs[:3], bias=xs[3]), (x, weight, targets, bias), (c, v)),
    )


@op(
    computes="the logits of its tokens over its part of the vocabulary, chunk by chunk",
    moves=("all_gather", "pmax", "psum"),
    example=_cross_entropy_example,
    floats=True,
)
def cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    vocab: Dim | str = "vocab",
    bias: Tensor | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Tensor, Tensor]:
    """The nats that each target costs, and the log-normaliser, without all logits in memory.

        # [batch, length, d_model], [d_model, vocab], [batch, length] -> twice [batch, length]
        nats, normaliser = md.cross_entropy(x, head, targets, chunk=1024)
        loss = md.mean(nats) + 1e-4 * md.mean(md.square(normaliser))  # with a z-loss

    The logits are the product of `x` and `weight`. The backward pass computes them again: in all
    four products of that size instead of three. Softmax and sums are in float32. All dims but those
    that are contracted may be split; where `vocab` is, only two numbers for each token travel.

    Args:
      x: has the dims that are contracted, and any others: those of the tokens.
      weight: has `vocab` and the dims that are contracted, in any order.
      targets: whole numbers, indices of `vocab`, with the dims of the tokens. One that is no index,
        such as -1, chooses no logit: its nats are the log-normaliser. Leave it out of the loss:
        `md.where(targets >= 0, nats, 0.0)`.
      bias: added to the logits; has `vocab`.
      softcap: logits are bounded to it: `softcap * tanh(logits / softcap)`.
      chunk: the most tokens that a device works on at a time; by default all that it has. Fewer
        need less memory. Too few, below some 1,000, leave matrix units idle, and read and write the
        gradient of the weight more often.
      dtype: the logits are rounded to it; by default to that of `x`.

    Returns:
      The nats and the log-normaliser, `md.logsumexp(logits, vocab)`: the dims of the tokens, in
      float32.

    Raises:
      MeshDSLError: a tensor lacks a dim or has one that it must not have, `targets` are not whole
        numbers, or `x`, `weight` or `dtype` are not of real floating-point numbers.
    """
    vocab = dim_algebra.find("cross_entropy, the weight", weight.dims, vocab)
    tokens = _token_dims(x, weight, targets, bias, vocab)
    targets = component.cast(targets, jnp.int32)  # a uint8 has no -1 for padding, and no 256
    if chunk is not None:
        whole_number("cross_entropy: `chunk`", chunk, 1)
    dtype = jnp.dtype(x.dtype if dtype is None else dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise MeshDSLError(f"cross_entropy: `dtype` is a floating-point dtype, not {dtype}")
    features = dim_algebra.without(x.dims, tokens)
    labels = {d: i for i, d in enumerate(features)} | {vocab: _ENTRY}
    options = Options(
        weight=tuple(labels[d] for d in weight.dims),
        softcap=checked_softcap("cross_entropy", softcap),
        dtype=dtype,
    )

    def local(at: DeviceLoop, x_array, weight_array, target_array, *bias_array):
        order = (*tokens, *features)
        rows = in_order(x_array, x.dims, order)
        sizes = rows.shape[: len(tokens)]
        count = math.prod(sizes)
        rows = rows.reshape(count, *rows.shape[len(tokens) :])
        wanted = in_order(target_array, targets.dims, tokens).reshape(count)
        known = (wanted >= 0) & (wanted < vocab.size)  # and not an index of padding
        wanted = jnp.where(known, wanted - at.offset(vocab), -1)
        inside = at.indices(vocab) < vocab.size if at.padding(vocab) else None
        bias = bias_array[0] if bias_array else None
        operands = Operands(rows, weight_array, bias, wanted, inside)
        normaliser, chosen = _combined(at, vocab, *_in_chunks(options, chunk, operands))
        return (normaliser - chosen).reshape(sizes), normaliser.reshape(sizes)

    loop = dim_algebra.union("cross_entropy", [x.dims, weight.dims])
    nats, normaliser = apply_op_many(
        "cross_entropy",
        local,
        (x, weight, targets, *([] if bias is None else [bias])),
        Nest(loop, (tokens, tokens), unsplit=features, in_order=(vocab,), sums=False),
        fill=(0, 0, -1, 0)[: 3 if bias is None else 4],
    )
    return nats, normaliser


def _token_dims(x: Tensor, weight: Tensor, targets: Tensor, bias, vocab: Dim) -> Dims:
    """The dims of `x` that are not contracted, after checking the dims of all operands."""
    dim_algebra.union("cross_entropy", [x.dims, weight.dims, targets.dims])
    if vocab in x.dims:
        raise MeshDSLError(
            f"cross_entropy: `x` {show(x.dims)} has {vocab}; it is what the logits are made of, "
            "and the weight gives them that dim"
        )
    if lacking := dim_algebra.without(weight.dims, (vocab, *x.dims)):
        raise MeshDSLError(
            f"cross_entropy: the weight {show(weight.dims)} has {lacking[0]}, which `x` "
            f"{show(x.dims)} lacks; all its dims but {vocab} are contracted with `x`"
        )
    tokens = dim_algebra.without(x.dims, weight.dims)
    if set(targets.dims) != set(tokens):
        raise MeshDSLError(
            f"cross_entropy: the targets have the dims of the tokens, {show(tokens)}, not "
            f"{show(targets.dims)}"
        )
    if bias is not None and bias.dims != (vocab,):
        raise MeshDSLError(f"cross_entropy: the bias has {vocab} alone, not {show(bias.dims)}")
    check_indices("cross_entropy", targets, what="targets")
    if not all(jnp.issubdtype(t.dtype, jnp.floating) for t in (x, weight)):
        raise MeshDSLError(
            "cross_entropy: `x` and the weight are real floating-point numbers, not "
            f"{x.dtype} and {weight.dtype}; md.cast them"
        )
    return tokens


def _combined(at: DeviceLoop, vocab: Dim, normaliser, chosen) -> tuple[jax.Array, jax.Array]:
    """The log-normaliser and the chosen logit over all of `vocab`, from those over each part."""
    if not at.axes(vocab):
        return normaliser, chosen
    top = at.pmax(lax.stop_gradient(normaliser), vocab)
    top = jnp.where(jnp.isfinite(top), top, 0)
    found = at.psum(jnp.stack([jnp.exp(normaliser - top), chosen]), vocab)
    return jnp.log(found[0]) + top, found[1]


# -- on the arrays of a device ---------------------------------------------------------------------


class Options(NamedTuple):
    """What is known while tracing.

    Attributes:
      weight: the labels of the weight's positions in an einsum.
      softcap: the bound of logits; None for unbounded ones.
      dtype: the dtype to which logits are rounded.
    """

    weight: tuple[int, ...]
    softcap: float | None
    dtype: np.dtype

    @property
    def rows(self) -> tuple[int, ...]:
        """The labels of the tokens' features."""
        return (_TOKEN, *sorted(label for label in self.weight if label != _ENTRY))


class Operands(NamedTuple):
    """The arrays of one device.

    Attributes:
      rows: a row of features for each token.
      weight: the device's part of the weight.
      bias: the device's part of the bias of the logits, or None.
      targets: for each token the index of its target in this part of the vocabulary.
      inside: which entries of this part are not padding; None if there is no padding.
    """

    rows: jax.Array
    weight: jax.Array
    bias: jax.Array | None
    targets: Any
    inside: jax.Array | None


def _in_chunks(options: Options, chunk: int | None, operands: Operands):
    """The log-normaliser of each token over this part of the vocabulary, and its chosen logit.

    The latter is 0 for a token whose target is not in this part.
    """
    operands = collectives.vary_together(operands)
    count = operands.targets.size
    chunks = 1 if chunk is None else max(1, -(-count // chunk))
    size = -(-count // chunks)

    def cut(a, fill):
        whole = padded(a, 0, chunks * size, constant_values=fill)
        return whole.reshape(chunks, size, *a.shape[1:])

    operands = operands._replace(rows=cut(operands.rows, 0), targets=cut(operands.targets, -1))
    result: Any = _over_chunks(options, operands)
    return [found.reshape(-1)[:count] for found in result]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_chunks(options: Options, operands: Operands) -> Any:
    """As `_in_chunks`, for rows and targets that are in chunks, stacked along a first position."""

    def one_chunk(_, chunk):
        logits, _ = _logits(options, operands._replace(rows=chunk[0]))
        top = jnp.max(logits, 1, initial=-jnp.inf)
        top = jnp.where(jnp.isfinite(top), top, 0)
        total = jnp.sum(jnp.exp(logits - top[:, None]), 1)
        chosen = jnp.sum(jnp.where(_one_hot(chunk[1], logits), logits, 0), 1)
        return (), (jnp.log(total) + top, chosen)

    return _scanned(one_chunk, (), (operands.rows, operands.targets))[1]


def _over_chunks_forward(options: Options, operands: Operands):
    found: Any = _over_chunks(options, operands)
    return found, (operands, found[0])


def _over_chunks_backward(options: Options, saved, cotangents):
    operands, normaliser = saved
    rows, weight, bias, targets, _ = operands
    wide = normaliser.dtype
    product = partial(jnp.einsum, preferred_element_type=wide)

    def one_chunk(carry, chunk):
        weight_bar, bias_bar = carry
        rows, targets, normaliser, of_normaliser, of_chosen = chunk
        with jax.named_scope("rematted_computation"):  # work that the model does not need
            logits, slope = _logits(options, operands._replace(rows=rows))
        shift = jnp.where(jnp.isfinite(normaliser), normaliser, 0)
        bar = jnp.exp(logits - shift[:, None]) * of_normaliser[:, None]
        bar = bar + jnp.where(_one_hot(targets, logits), of_chosen[:, None], 0)
        bar = bar if slope is None else bar * slope
        if bias_bar is not None:
            bias_bar = bias_bar + bar.sum(0)
        bar = bar.astype(rows.dtype)
        terms = [_TOKEN, _ENTRY]
        rows_bar = product(bar, terms, weight, options.weight, options.rows)
        weight_bar = weight_bar + product(bar, terms, rows, options.rows, options.weight)
        return (weight_bar, bias_bar), rows_bar.astype(rows.dtype)

    zeros = lambda a: None if a is None else collectives.vary(jnp.zeros(a.shape, wide), axes)
    axes = collectives.varying(rows)
    chunks = (rows, targets, normaliser, *cotangents)
    sums: Any = (zeros(weight), zeros(bias))
    (weight_bar, bias_bar), rows_bar = _scanned(one_chunk, sums, chunks)
    if bias is not None and bias_bar is not None:
        bias_bar = bias_bar.astype(bias.dtype)
    return (Operands(rows_bar, weight_bar.astype(weight.dtype), bias_bar, None, None),)


_over_chunks.defvjp(_over_chunks_forward, _over_chunks_backward)


def _scanned(fn: Callable, carry, chunks):
    """`fn` of each chunk: a scan, or if there is a single chunk, a call without a loop."""
    if len(chunks[0]) > 1:
        return lax.scan(fn, carry, chunks)
    carry, result = fn(carry, jax.tree.map(lambda a: a[0], chunks))
    return carry, jax.tree.map(lambda a: a[None], result)


def _logits(options: Options, operands: Operands) -> tuple[jax.Array, jax.Array | None]:
    """The logits of some rows, and the derivative of the soft cap; -infinity for padding."""
    rows, weight, bias, _, inside = operands
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    logits = jnp.einsum(
        rows,
        options.rows,
        weight,
        options.weight,
        [_TOKEN, _ENTRY],
        preferred_element_type=options.dtype,
    ).astype(wide)
    if bias is not None:
        logits = logits + bias.astype(wide)
    logits, slope = capped(logits, options.softcap)
    if inside is not None:
        logits = jnp.where(inside, logits, -jnp.inf)
    return logits, slope


def _one_hot(targets, logits) -> jax.Array:
    return targets[:, None] == lax.broadcasted_iota(jnp.int32, logits.shape, 1)
