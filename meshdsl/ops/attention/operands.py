"""What every kernel of attention is given: options, arrays, and the order of their dims.

Arrays have their dims in one order: `query` has shared dims, dims of its own, rows and features;
`key` and `value` have shared dims, columns and features. The arrays of `Sides` have the dims of the
scores (shared dims, the query's own dims, rows, columns), with size 1 for a dim that they lack.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SAVED = "attention"  # the save point of an output and of its log-sum-exp
HIDDEN = -1e30  # a score that does not count; finite, so that a difference of two is no NaN


class Options(NamedTuple):
    """The options of a call, all known while tracing.

    Attributes:
      shared: how many dims query and key share; they are the first ones.
      causal: a row sees columns up to its own position only.
      window: a row sees columns that are less than this many positions away; None for all.
      softcap: scores are bounded to it by a tanh; None for unbounded ones.
      scale: of the products of queries and keys.
      block: how many rows, and how many columns, are worked on at a time.
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
      rows, columns: the positions of the queries and of the keys.
      row_segments, column_segments: the numbers of the documents of the queries and of the keys.
      bias: numbers that are added to the scores.
      sinks: for each row one more score, without a value, as an array of one column. `parts.py`
        uses them, and this file does not.
      inside: which columns are not padding of a split dim.
    """

    rows: Any = None
    columns: Any = None
    row_segments: Any = None
    column_segments: Any = None
    bias: Any = None
    sinks: Any = None
    inside: Any = None


class Slopes(NamedTuple):
    """The gradients of the operands of attention, in float32 or more."""

    query: Any
    key: Any
    value: Any
    bias: Any = None


class Span(NamedTuple):
    """The least and the greatest of some positions."""

    least: Any
    greatest: Any


def span(positions, stacked: int = 0) -> Span | None:
    """The span of `positions`; None if there are none.

    It is computed outside of loops over blocks, because operations that JAX takes out of a loop
    lose the tag of their op.

    Args:
      stacked: how many dims in front number separate sets of positions, each with its own span.
    """
    if positions is None or not positions.size:
        return None
    over = tuple(range(stacked, positions.ndim))
    return Span(positions.min(over), positions.max(over))


def may_see(options: Options, rows: Span | None, columns: Span | None) -> jax.Array | None:
    """Whether any row may see any column, by the spans of their positions.

    It is False only if no row does. It is None if spans are not known, or do not matter.
    """
    if rows is None or columns is None:
        return None
    conditions = []
    if options.causal:
        conditions.append(columns.least <= rows.greatest)
    if options.window is not None:
        conditions.append(rows.least - columns.greatest < options.window)
        conditions.append(columns.least - rows.greatest < options.window)
    return reduce(jnp.logical_and, conditions) if conditions else None
