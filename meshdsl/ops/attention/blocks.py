"""Attention on local arrays, block by block, for any platform and every feature.

At any time only the scores of one block of queries and one block of keys are in memory. Maximum,
sum and output are carried from one block of keys to the next (the online softmax of Milakov and
Gimelshein, 2018; Rabe and Staats, 2021). The backward pass computes the scores again, and from the
log-sum-exp of each row the weights (FlashAttention; Dao et al., 2022). So memory grows with the
length, and not with its square. In causal attention and with windows, blocks that no query sees are
skipped.

Arrays are in the order that `operands.py` describes. `parts.py` calls `forward` and `backward` in
one function with a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.ops.arrays import capped, chosen, padded, varying_as
from meshdsl.ops.attention.operands import HIDDEN, Options, Sides, Slopes, Span, may_see, span

_ROW, _COLUMN, _INNER, _FEATURE = 100, 101, 102, 103  # labels in an einsum


def forward(options: Options, query, key, value, sides: Sides) -> tuple[jax.Array, jax.Array]:
    """The output and the log-sum-exp of the scores of each row, in float32 or more.

    The output has shared dims, the query's own dims, rows and the features of `value`. A row that
    sees no column gets 0, and `HIDDEN` for its log-sum-exp.
    """
    labels = _Labels(query.ndim - 2, options.shared)
    wide = jnp.promote_types(query.dtype, jnp.float32)
    columns = _column_blocks(options, key, value, sides)

    def seen(row: _Rows, block: _Columns, top=None):
        """Output, maximum and sum of a block of columns; `top` is the maximum of those before."""
        scores, visible, _ = _scores(options, labels, row, block, wide)
        highest = scores.max(-1) if top is None else jnp.maximum(top, scores.max(-1))
        weights = _where(visible, jnp.exp(scores - highest[..., None]))
        output = jnp.einsum(
            weights.astype(value.dtype),
            labels.scores,
            block.value,
            labels.value,
            labels.output,
            preferred_element_type=wide,
        )
        return output, highest, weights.sum(-1)

    def one_block_of_rows(row: _Rows):
        def joined(carry, block):
            output, top, total = carry
            added, highest, more = seen(row, block, top)
            kept = jnp.exp(top - highest)
            return output * kept[..., None] + added, highest, total * kept + more

        def turn(carry, block: _Columns):
            condition = may_see(options, row.span, block.span)
            return if_seen(condition, joined, lambda carry, _: carry, carry, block), None

        blocks = _with_bias(columns, row)
        if _is_one(blocks):
            output, top, total = seen(row, _first(blocks))
        else:
            shape = row.query.shape[:-1]
            first = (
                jnp.zeros((*shape, value.shape[-1]), wide),
                jnp.full(shape, HIDDEN, wide),
                jnp.zeros(shape, wide),
            )
            (output, top, total), _ = lax.scan(turn, varying_as(query, first), blocks)
        some = total > 0
        total = chosen(some, total, 1)
        return output / total[..., None], chosen(some, top + jnp.log(total), HIDDEN)

    of_rows = lambda _, row: (None, one_block_of_rows(row))
    _, result = _over_blocks(of_rows, None, _row_blocks(options, query, sides))
    output, normaliser = (_joined(x, query.ndim - 2, query.shape[-2]) for x in result)
    return output, normaliser


def backward(
    options: Options, query, key, value, sides: Sides, normaliser, through, cotangent
) -> Slopes:
    """The gradients of query, key, value and bias.

    Args:
      normaliser: the log-sum-exp of each row; 0 for a row that sees no column. It may be that of
        more columns than `key` has. Then the gradients are those of the terms that the columns of
        `key` add to the output.
      through: for each row the sum over the features of output times `cotangent`, which the
        derivative of the softmax subtracts.
      cotangent: the cotangent of the output.
    """
    labels = _Labels(query.ndim - 2, options.shared)
    wide = normaliser.dtype
    columns = _column_blocks(options, key, value, sides)

    def one_block_of_rows(slopes, blocks):
        row, *of_row = blocks
        seen = partial(_with_block, options, labels, row, *of_row)

        def unseen(query_bar, key_bar, value_bar, block):
            bias_bar = None
            if block.bias is not None:
                bias_bar = varying_as(query, jnp.zeros(block.bias.shape, wide))
            return query_bar, key_bar, value_bar, bias_bar

        def turn(query_bar, blocks):
            block, key_bar, value_bar = blocks
            condition = None if _is_one(columns) else may_see(options, row.span, block.span)
            operands = (query_bar, key_bar, value_bar, block)
            query_bar, *others = if_seen(condition, seen, unseen, *operands)
            return query_bar, tuple(others)

        first = varying_as(query, jnp.zeros(row.query.shape, wide))
        of_columns = (_with_bias(columns, row), *slopes)
        query_bar, (*slopes, bias_bar) = _over_blocks(turn, first, of_columns)
        return tuple(slopes), (query_bar, bias_bar)

    at = query.ndim - 2
    count, size = _counted(options, query.shape[-2])
    of_rows = [_cut(x, at, count, size) for x in (normaliser, through, cotangent)]
    zeros = [jnp.zeros(x.shape, wide) for x in (columns.key, columns.value)]
    rows = (_row_blocks(options, query, sides), *of_rows)
    (key_bar, value_bar), (query_bar, bias_bar) = _over_blocks(
        one_block_of_rows, varying_as(query, tuple(zeros)), rows
    )
    if bias_bar is not None:  # row blocks, column blocks, and the dims of the scores
        bias_bar = jax.vmap(lambda x: _joined(x, at + 1, sides.bias.shape[-1]))(bias_bar)
        if sides.bias.shape[-2] == 1:
            bias_bar = bias_bar.sum(0)
        else:
            bias_bar = _joined(bias_bar, at, query.shape[-2])
    return Slopes(
        _joined(query_bar, at, query.shape[-2]),
        _joined(key_bar, key.ndim - 2, key.shape[-2]),
        _joined(value_bar, value.ndim - 2, value.shape[-2]),
        bias_bar,
    )


def _with_block(
    options: Options,
    labels: _Labels,
    row: _Rows,
    normaliser,
    through,
    cotangent,
    query_bar,
    key_bar,
    value_bar,
    block: _Columns,
):
    """The gradients, with the terms of a block of rows and a block of columns added.

    Args:
      normaliser, through, cotangent: as for `backward`, for the rows of the block.
      query_bar, key_bar, value_bar: the gradients so far.

    Returns:
      These gradients, and the gradient of the bias of the two blocks; None without a bias.
    """
    wide = normaliser.dtype
    product = partial(jnp.einsum, preferred_element_type=wide)
    scores, visible, slope = _scores(options, labels, row, block, wide)
    weights = _where(visible, jnp.exp(scores - normaliser[..., None]))
    value_bar += product(
        weights.astype(cotangent.dtype), labels.scores, cotangent, labels.output, labels.value
    )
    weights_bar = product(cotangent, labels.output, block.value, labels.value, labels.scores)
    scores_bar = weights * (weights_bar - through[..., None])
    bias_bar = None if block.bias is None else summed_to(scores_bar, block.bias)
    if slope is not None:
        scores_bar = scores_bar * slope
    scores_bar = (scores_bar * options.scale).astype(row.query.dtype)
    key_bar += product(scores_bar, labels.scores, row.query, labels.query, labels.key)
    query_bar += product(scores_bar, labels.scores, block.key, labels.key, labels.query)
    return query_bar, key_bar, value_bar, bias_bar


def summed_to(x, like) -> jax.Array:
    """`x`, summed over the positions at which `like` has size 1."""
    over = [i for i, (n, m) in enumerate(zip(x.shape, like.shape, strict=True)) if m == 1 < n]
    return x.sum(over, keepdims=True) if 0 not in x.shape else jnp.zeros_like(like, x.dtype)


class _Labels:
    """The dims of each array, as labels in an einsum."""

    def __init__(self, leading: int, shared: int):
        self.scores = [*range(leading), _ROW, _COLUMN]
        self.query = [*range(leading), _ROW, _INNER]
        self.key = [*range(shared), _COLUMN, _INNER]
        self.value = [*range(shared), _COLUMN, _FEATURE]
        self.output = [*range(leading), _ROW, _FEATURE]


class _Rows(NamedTuple):
    """A block of rows: of the queries, and of `Sides`."""

    query: Any
    rows: Any
    segments: Any
    bias: Any
    span: Span | None


class _Columns(NamedTuple):
    """A block of columns: of keys and values, and of `Sides`.

    Attributes:
      inside: which columns are not padding; None if there is no padding.
    """

    key: Any
    value: Any
    columns: Any
    segments: Any
    inside: Any
    span: Span | None
    bias: Any = None


def _counted(options: Options, length: int) -> tuple[int, int]:
    """The number of blocks, and the size of each; the last one is padded."""
    count = max(1, -(-length // options.block))
    return count, max(1, -(-length // count))


def _row_blocks(options: Options, query, sides: Sides) -> _Rows:
    """All blocks of rows, stacked along a first position."""
    at, (count, size) = query.ndim - 2, _counted(options, query.shape[-2])
    rows = _cut(sides.rows, at, count, size, "edge")
    return _Rows(
        query=_cut(query, at, count, size),
        rows=rows,
        segments=_cut(sides.row_segments, at, count, size),
        bias=_cut(sides.bias, at, count, size),
        span=span(rows, 1),
    )


def _column_blocks(options: Options, key, value, sides: Sides) -> _Columns:
    """All blocks of columns without the bias, stacked along a first position."""
    length = key.shape[-2]
    count, size = _counted(options, length)
    inside = sides.inside
    if count * size > length:
        real = jnp.arange(count * size) < length
        inside = real if inside is None else padded(inside, inside.ndim - 1, count * size) & real
    over = lambda x, mode="constant": None if x is None else _cut(x, x.ndim - 1, count, size, mode)
    columns = over(sides.columns, "edge")
    return _Columns(
        key=_cut(key, key.ndim - 2, count, size),
        value=_cut(value, key.ndim - 2, count, size),
        columns=columns,
        segments=over(sides.column_segments),
        inside=over(inside),
        span=span(columns, 1),
    )


def _with_bias(columns: _Columns, row: _Rows) -> _Columns:
    """The blocks of columns with the bias of one block of rows."""
    if row.bias is None:
        return columns
    count, size = columns.key.shape[0], columns.key.shape[-2]
    return columns._replace(bias=_cut(row.bias, row.bias.ndim - 1, count, size))


def _cut(x, at: int, count: int, size: int, mode: str = "constant"):
    """`x` cut into `count` blocks along position `at`, stacked along a first position.

    The last block is padded. Positions are padded by `mode` "edge", so that the span of a block
    does not grow.
    """
    if x is None:
        return None
    if x.shape[at] == 1 < count * size:
        return jnp.broadcast_to(x, (count, *x.shape))
    x = padded(x, at, count * size, mode)
    parts = x.reshape(*x.shape[:at], count, size, *x.shape[at + 1 :])
    return jnp.moveaxis(parts, at, 0)


def _joined(parts, at: int, length: int) -> jax.Array:
    """Stacked blocks joined along position `at`, without the padding after `length` elements."""
    parts = jnp.moveaxis(parts, 0, at)
    size = parts.shape[at] * parts.shape[at + 1]
    joined = parts.reshape(*parts.shape[:at], size, *parts.shape[at + 2 :])
    return lax.slice_in_dim(joined, 0, length, axis=at)


def _is_one(blocks: Any) -> bool:
    """Whether there is one block, of those that are stacked along a first position."""
    return jax.tree.leaves(blocks)[0].shape[0] == 1


def _first(blocks: Any) -> Any:
    return jax.tree.map(lambda x: x[0], blocks)


def _over_blocks(turn: Callable, carry: Any, blocks: Any) -> tuple[Any, Any]:
    """As `jax.lax.scan`, but without a loop around a single block."""
    if not _is_one(blocks):
        return lax.scan(turn, carry, blocks)
    carry, made = turn(carry, _first(blocks))
    return carry, jax.tree.map(lambda x: x[None], made)


def if_seen(condition, seen: Callable, unseen: Callable, *operands):
    """`seen(*operands)` if the condition is true or None, else `unseen(*operands)`."""
    if condition is None:
        return seen(*operands)
    return lax.cond(condition, seen, unseen, *operands)


def _scores(options: Options, labels: _Labels, row: _Rows, block: _Columns, wide):
    """The scores of one block; which of them count; and the derivative of the soft cap.

    A score that does not count is `HIDDEN`, far below all others. The second result is None if all
    scores count, the third if there is no soft cap.
    """
    scores = jnp.einsum(
        row.query, labels.query, block.key, labels.key, labels.scores, preferred_element_type=wide
    )
    scores, slope = capped(scores * options.scale, options.softcap)
    if block.bias is not None:
        scores = scores + block.bias.astype(wide)
    conditions = [] if block.inside is None else [block.inside]
    if options.causal:
        conditions.append(block.columns <= row.rows)
    if options.window is not None:
        conditions.append(jnp.abs(row.rows - block.columns) < options.window)
    if block.segments is not None:
        conditions.append(row.segments == block.segments)
    if not conditions:
        return scores, None, slope
    visible = reduce(jnp.logical_and, conditions)
    return chosen(visible, scores, HIDDEN), visible, slope


def _where(visible, weights):
    return weights if visible is None else chosen(visible, weights, 0)
