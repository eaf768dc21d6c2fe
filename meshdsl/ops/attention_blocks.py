"""Attention on local arrays, block by block of the keys, for any platform and every feature.

The scores of all queries and one block of keys are all that stands in memory at a time. Maximum,
sum and output are carried from block to block (the online softmax of Milakov and Gimelshein, 2018;
Rabe and Staats, 2021), and the backward pass computes the scores again from the log-sum-exp of each
row (FlashAttention; Dao et al., 2022). So memory grows with the length, and not with its square.

Arrays are in one order: `query` has shared dims, dims of its own, rows and features; `key` and
`value` have shared dims, columns and features. What stands beside them (`Sides`) has the dims of
the scores (shared dims, the query's own dims, rows, columns), of size 1 where it lacks them.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl.lowering import collectives

SAVED = "attention"  # the save point of an output and of its log-sum-exp
_HIDDEN = -1e30  # finite: the difference of two of them is no NaN
_ROW, _COLUMN, _INNER, _FEATURE = 100, 101, 102, 103  # labels in an einsum


class Options(NamedTuple):
    """What is known while tracing.

    Attributes:
      shared: how many dims, in front, query and key share.
      causal: a row sees columns up to its own position only.
      window: a row sees columns that are less than this many positions away; None for all.
      softcap: scores are bounded to it by a tanh; None for unbounded ones.
      scale: of the products of queries and keys.
      block: how many columns are worked on at a time.
    """

    shared: int
    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    block: int = 512


class Sides(NamedTuple):
    """Arrays beside query, key and value; None where a call has none.

    Attributes:
      rows, columns: positions of the queries and of the keys.
      row_segments, column_segments: the documents that they belong to.
      bias: added to the scores.
      sinks: for each row one more score, without a value; it has one column.
    """

    rows: Any = None
    columns: Any = None
    row_segments: Any = None
    column_segments: Any = None
    bias: Any = None
    sinks: Any = None


def attend(options: Options, query, key, value, sides: Sides) -> jax.Array:
    """The output: shared dims, the query's own dims, rows and the features of `value`.

    A row that sees no column gets 0, and gradients of 0.
    """
    arrays, tree = jax.tree.flatten((query, key, value, sides))
    axes = frozenset().union(*map(collectives.varying, arrays))
    # Each device has its own term of every gradient: it is summed where the array is made to vary.
    varying = jax.tree.unflatten(tree, [collectives.vary(x, axes) for x in arrays])
    return _attend(options, *varying)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options, query, key, value, sides):
    return _forward(options, query, key, value, sides)[0]


def _attend_forward(options, query, key, value, sides):
    output, normaliser = _forward(options, query, key, value, sides)
    output, normaliser = (ad_checkpoint.checkpoint_name(x, SAVED) for x in (output, normaliser))
    return output, (query, key, value, sides, output, normaliser)


def _forward(options, query, key, value, sides):
    """The output, and of each row the log-sum-exp of its scores (0 where it sees no column)."""
    labels = _Labels(query.ndim - 2, options.shared)
    wide = jnp.promote_types(query.dtype, jnp.float32)

    def one_block(carry, block):
        output, top, total = carry
        scores, visible, _ = _scores(options, labels, query, block, sides, wide)
        highest = jnp.maximum(top, scores.max(-1))
        weights = _where(visible, jnp.exp(scores - highest[..., None]))
        kept = jnp.exp(top - highest)
        added = jnp.einsum(
            weights.astype(value.dtype),
            labels.scores,
            block.value,
            labels.value,
            labels.output,
            preferred_element_type=wide,
        )
        output = output * kept[..., None] + added
        return (output, highest, total * kept + weights.sum(-1)), None

    rows = query.shape[:-1]
    first = (
        jnp.zeros((*rows, value.shape[-1]), wide),
        jnp.full(rows, _HIDDEN, wide),
        jnp.zeros(rows, wide),
    )
    if sides.sinks is not None:
        sinks = jnp.broadcast_to(sides.sinks[..., 0].astype(wide), rows)
        first = (first[0], sinks, jnp.ones(rows, wide))
    first = _varying_as(query, first)
    (output, top, total), _ = lax.scan(one_block, first, _blocks(options, key, value, sides))
    seen = total > 0
    total = jnp.where(seen, total, 1)
    normaliser = jnp.where(seen, top + jnp.log(total), 0)
    return (output / total[..., None]).astype(value.dtype), normaliser


def _attend_backward(options, saved, cotangent):
    query, key, value, sides, output, normaliser = saved
    labels = _Labels(query.ndim - 2, options.shared)
    wide = normaliser.dtype
    # How much of each row's cotangent its output has already: what the softmax takes off.
    through = jnp.sum(cotangent.astype(wide) * output.astype(wide), -1)

    def one_block(query_bar, block):
        scores, visible, slope = _scores(options, labels, query, block, sides, wide)
        weights = _where(visible, jnp.exp(scores - normaliser[..., None]))
        product = partial(jnp.einsum, preferred_element_type=wide)
        value_bar = product(
            weights.astype(cotangent.dtype), labels.scores, cotangent, labels.output, labels.value
        )
        weights_bar = product(cotangent, labels.output, block.value, labels.value, labels.scores)
        scores_bar = weights * (weights_bar - through[..., None])
        bias_bar = None
        if block.bias is not None:
            bias_bar = _summed_to(scores_bar, block.bias).astype(block.bias.dtype)
        if slope is not None:
            scores_bar = scores_bar * slope
        scores_bar = (scores_bar * options.scale).astype(query.dtype)
        key_bar = product(scores_bar, labels.scores, query, labels.query, labels.key)
        query_bar = query_bar + product(
            scores_bar, labels.scores, block.key, labels.key, labels.query
        )
        return query_bar, (key_bar.astype(key.dtype), value_bar.astype(value.dtype), bias_bar)

    first = _varying_as(query, jnp.zeros(query.shape, wide))
    blocks = _blocks(options, key, value, sides)
    query_bar, (key_bar, value_bar, bias_bar) = lax.scan(one_block, first, blocks)
    sinks_bar = None
    if sides.sinks is not None:
        shares = jnp.exp(sides.sinks.astype(wide) - normaliser[..., None])
        sinks_bar = -_summed_to(shares * through[..., None], sides.sinks).astype(sides.sinks.dtype)
    if bias_bar is not None:
        bias_bar = _joined(bias_bar, sides.bias, -1)
    return (
        query_bar.astype(query.dtype),
        _joined(key_bar, key, -2),
        _joined(value_bar, value, -2),
        Sides(bias=bias_bar, sinks=sinks_bar),
    )


_attend.defvjp(_attend_forward, _attend_backward)


class _Labels:
    """The dims of each array as labels of an einsum."""

    def __init__(self, leading: int, shared: int):
        self.scores = [*range(leading), _ROW, _COLUMN]
        self.query = [*range(leading), _ROW, _INNER]
        self.key = [*range(shared), _COLUMN, _INNER]
        self.value = [*range(shared), _COLUMN, _FEATURE]
        self.output = [*range(leading), _ROW, _FEATURE]


class _Block(NamedTuple):
    """A block of columns: of keys and values, and of what stands beside them.

    `inside` says which columns are not padding, and is None where none is.
    """

    key: Any
    value: Any
    columns: Any
    segments: Any
    bias: Any
    inside: Any


def _blocks(options: Options, key, value, sides: Sides) -> _Block:
    """All blocks, stacked along a first position. The last one is padded to the size of a block."""
    length = key.shape[-2]
    count = max(1, -(-length // options.block))
    size = max(1, -(-length // count))

    def cut(x, at):
        if x is None:
            return None
        at = x.ndim + at
        widths = [(0, count * size - length if i == at else 0) for i in range(x.ndim)]
        parts = jnp.pad(x, widths).reshape(*x.shape[:at], count, size, *x.shape[at + 1 :])
        return jnp.moveaxis(parts, at, 0)

    inside = None
    if count * size > length:
        inside = (jnp.arange(count * size) < length).reshape(count, size)
    columns, segments = cut(sides.columns, -1), cut(sides.column_segments, -1)
    return _Block(cut(key, -2), cut(value, -2), columns, segments, cut(sides.bias, -1), inside)


def _joined(parts, whole, at: int) -> jax.Array:
    """The stacked blocks of what has the shape of `whole`, put together along position `at`."""
    at = whole.ndim + at
    parts = jnp.moveaxis(parts, 0, at)
    size = parts.shape[at] * parts.shape[at + 1]
    joined = parts.reshape(*parts.shape[:at], size, *parts.shape[at + 2 :])
    return lax.slice_in_dim(joined, 0, whole.shape[at], axis=at)


def _scores(options: Options, labels: _Labels, query, block: _Block, sides: Sides, wide):
    """The scores of one block, which of them count, and the derivative of the soft cap.

    What does not count has a score far below all others. Either of the last two may be None.
    """
    scores = jnp.einsum(
        query, labels.query, block.key, labels.key, labels.scores, preferred_element_type=wide
    )
    scores, slope = scores * options.scale, None
    if options.softcap is not None:
        bent = jnp.tanh(scores / options.softcap)
        scores, slope = bent * options.softcap, 1 - bent * bent
    if block.bias is not None:
        scores = scores + block.bias.astype(wide)
    conditions = [] if block.inside is None else [block.inside]
    if options.causal:
        conditions.append(block.columns <= sides.rows)
    if options.window is not None:
        conditions.append(jnp.abs(sides.rows - block.columns) < options.window)
    if block.segments is not None:
        conditions.append(sides.row_segments == block.segments)
    if not conditions:
        return scores, None, slope
    visible = reduce(jnp.logical_and, conditions)
    return jnp.where(visible, scores, _HIDDEN), visible, slope


def _where(visible, weights):
    return weights if visible is None else jnp.where(visible, weights, 0)


def _summed_to(x, like) -> jax.Array:
    """`x`, summed over the positions at which `like` has size 1."""
    over = [i for i, (n, m) in enumerate(zip(x.shape, like.shape, strict=True)) if m == 1 < n]
    return x.sum(over, keepdims=True) if 0 not in x.shape else jnp.zeros_like(like, x.dtype)


def _varying_as(x, tree):
    axes = collectives.varying(x)
    return jax.tree.map(lambda leaf: collectives.vary(leaf, axes), tree)
