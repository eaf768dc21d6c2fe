"""The Pallas kernels of `pallas.py`, written for one program of a kernel.

A program has its `own` blocks of one side, rows or columns, and goes `through` blocks of the other.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from meshdsl.ops.arrays import capped
from meshdsl.ops.attention.operands import HIDDEN, Options

_LOG2_E = math.log2(math.e)  # GPUs have an instruction for powers of two


class Blocks(NamedTuple):
    """Rows and columns of the blocks of a kernel, and how many warps work on one."""

    rows: int
    columns: int
    warps: int


class Beside(NamedTuple):
    """Whole numbers of each row or column, [programs, length]; or None.

    Where consecutive programs have the same numbers, there may be fewer rows of them than programs.

    Attributes:
      position: the positions, which `causal` and `window` compare.
      segment: the numbers of the documents.
      inside: 0 for padding, and 1 for all others.
    """

    position: Any = None
    segment: Any = None
    inside: Any = None


def output_kernel(options: Options, blocks: Blocks, through, own, output_ref, normaliser_ref):
    """The output and the log-sum-exp of a block of rows."""
    (first, last), k_ref, v_ref, columns = through
    q_ref, rows, _ = own
    q, of_rows = q_ref[...], _all(rows)

    def turn(number, carry):
        output, top, total = carry
        at = pl.ds(number * blocks.columns, blocks.columns)
        v = v_ref[at, :]
        scores, visible, _ = _scores(options, q, k_ref[at, :], of_rows, _all(columns, at))
        highest = jnp.maximum(top, scores.max(-1))
        weights = _where(visible, jnp.exp2((scores - highest[:, None]) * _LOG2_E))
        kept = jnp.exp2((top - highest) * _LOG2_E)
        output = output * kept[:, None] + _dot(weights.astype(v.dtype), v)
        return output, highest, total * kept + weights.sum(-1)

    zeros = jnp.zeros(blocks.rows, jnp.float32)
    start = jnp.zeros(output_ref.shape, jnp.float32), zeros + HIDDEN, zeros
    block = pl.program_id(0)
    output, top, total = lax.fori_loop(first[block], last[block], turn, start)
    some = total > 0
    total = jnp.where(some, total, 1.0)
    output_ref[...] = (output / total[:, None]).astype(output_ref.dtype)
    normaliser_ref[...] = jnp.where(some, top + jnp.log2(total) / _LOG2_E, HIDDEN)


def row_slopes_kernel(options: Options, blocks: Blocks, through, own, slope_ref):
    """The gradients of a block of queries."""
    (first, last), k_ref, v_ref, columns = through
    q_ref, rows, of_rows = own
    q, beside, given = q_ref[...], _all(rows), [ref[...] for ref in of_rows]

    def turn(number, slope):
        at = pl.ds(number * blocks.columns, blocks.columns)
        k, v = k_ref[at, :], v_ref[at, :]
        _, by_scores = _by_scores(options, q, k, v, beside, _all(columns, at), *given)
        return slope + _dot(by_scores.astype(k.dtype), k)

    block, start = pl.program_id(0), jnp.zeros(slope_ref.shape, jnp.float32)
    slope_ref[...] = lax.fori_loop(first[block], last[block], turn, start)


def column_slopes_kernel(options: Options, blocks: Blocks, through, own, by_key_ref, by_value_ref):
    """The gradients of a block of keys and values, from all queries that share them."""
    (first, last), q_ref, rows, of_rows = through
    k_ref, v_ref, columns = own
    k, v, beside, block = k_ref[...], v_ref[...], _all(columns), pl.program_id(0)

    def of_one(one, slopes):
        def turn(number, slopes):
            by_key, by_value = slopes
            at = pl.ds(number * blocks.rows, blocks.rows)
            q = q_ref[one, at, :]
            *numbers, cotangent_ref = of_rows
            cotangent = cotangent_ref[one, at, :]
            normaliser, through = (ref[one, at] for ref in numbers)
            given = _all(rows, at), beside, normaliser, through, cotangent
            result = _by_scores(options, q, k, v, *given)
            weights, by_scores = (x.astype(q.dtype) for x in result)
            return by_key + _dot(by_scores.T, q), by_value + _dot(weights.T, cotangent)

        return lax.fori_loop(first[block], last[block], turn, slopes)

    start = tuple(jnp.zeros(ref.shape, jnp.float32) for ref in (by_key_ref, by_value_ref))
    by_key_ref[...], by_value_ref[...] = lax.fori_loop(0, q_ref.shape[0], of_one, start)


def _by_scores(options: Options, q, k, v, rows, columns, normaliser, through, cotangent):
    """The weights, and the gradients of the products of queries and keys."""
    scores, visible, slope = _scores(options, q, k, rows, columns)
    weights = _where(visible, jnp.exp2((scores - normaliser[:, None]) * _LOG2_E))
    by_scores = weights * (_dot(cotangent, v.T) - through[:, None])
    if slope is not None:
        by_scores = by_scores * slope
    return weights, by_scores * options.scale


def _scores(options: Options, q, k, rows: Beside, columns: Beside):
    """As `blocks._scores`, of a block of rows and a block of columns."""
    scores, slope = capped(_dot(q, k.T) * options.scale, options.softcap)
    conditions = []
    if rows.position is not None:
        away = rows.position[:, None] - columns.position[None, :]
        if options.causal:
            conditions.append(away >= 0)
        if options.window is not None:
            conditions.append(jnp.abs(away) < options.window)
    if rows.segment is not None:
        conditions.append(rows.segment[:, None] == columns.segment[None, :])
    if columns.inside is not None:
        inside = jnp.broadcast_to(columns.inside[None, :], scores.shape)
        conditions.append(inside > 0)
    if not conditions:
        return scores, None, slope
    visible = reduce(jnp.logical_and, conditions)
    return jnp.where(visible, scores, HIDDEN), visible, slope


def _all(refs: Beside, at: Any = slice(None)) -> Beside:
    """The arrays in refs, or their parts `at`."""
    return jax.tree.map(lambda ref: ref[at], refs)


def _where(visible, weights):
    return weights if visible is None else jnp.where(visible, weights, 0.0)


def _dot(a, b) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
