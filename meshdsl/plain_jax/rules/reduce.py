"""Reductions, and what normalises along dims."""

from __future__ import annotations

from collections.abc import Callable

from meshdsl.dims import Dims
from meshdsl.ops import component, cumulative, reduce, softmax
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import (
    as_tensor,
    full,
    like_result,
    one_dim,
    with_dims,
    with_positions,
)
from meshdsl.plain_jax.primitives import CUMULATIVE, EXTREMES, REDUCTIONS
from meshdsl.plain_jax.program import Equation
from meshdsl.tensor import Tensor

_REDUCED = {
    "reduce_sum": reduce.sum,
    "reduce_max": reduce.max,
    "reduce_min": reduce.min,
    "reduce_prod": reduce.prod,
    "reduce_and": reduce.all,
    "reduce_or": reduce.any,
    "logsumexp": softmax.logsumexp,
}
_IDEMPOTENT = ("reduce_max", "reduce_min", "reduce_and", "reduce_or")
# What runs along a dim, what all elements of one come to, and how two of these combine.
_ALONG: dict[str, tuple[Callable, Callable, Callable]] = {
    "cumsum": (cumulative.cumsum, reduce.sum, FUNCTIONS["add"]),
    "cumprod": (cumulative.cumprod, reduce.prod, FUNCTIONS["multiply"]),
    "cummax": (cumulative.cummax, reduce.max, FUNCTIONS["maximum"]),
    "cummin": (cumulative.cummin, reduce.min, FUNCTIONS["minimum"]),
    "cumlogsumexp": (cumulative.cumlogsumexp, softmax.logsumexp, FUNCTIONS["logaddexp"]),
}


def _along(e: Equation) -> Dims:
    """The dims at the positions that an equation works along."""
    return tuple(d for i in e.params["axes"] for d in e.ins[0].dims[i])


def _kept(e: Equation, made) -> list:
    """A result without these positions, with its names."""
    v, gone = e.ins[0], e.params["axes"]
    kept = [i for i in range(len(v.shape)) if i not in gone]
    ones = len(e.outs[0].shape) == len(v.shape)  # in the place of those that are gone
    pairs = [(i, i if ones else j) for j, i in enumerate(kept)]
    return [like_result(made, v, e.outs[0], pairs)]


@rule(*REDUCTIONS, "logsumexp")
def reduced(at: Evaluation, e: Equation, xs: list) -> list:
    """A sum or the like over some positions."""
    v, dims = e.ins[0], _along(e)
    if e.name in ("reduce_and", "reduce_or") and v.dtype != bool:
        return at.fall_back(e, xs)
    x = as_tensor(xs[0], v)
    if e.name in _IDEMPOTENT:  # along a dim that it lacks all elements are equal
        dims = tuple(d for d in dims if d in x.dims)
    x = full(x, v, dims)
    return _kept(e, _REDUCED[e.name](x, dims) if dims else x)


@rule(*EXTREMES)
def extreme(_: Evaluation, e: Equation, xs: list) -> list:
    """The index of the largest or smallest element along a position."""
    v, (axis,) = e.ins[0], e.params["axes"]
    find = reduce.argmax if e.name == "argmax" else reduce.argmin
    along = one_dim(v.dims[axis], v.shape[axis], "whole__part")
    made = find(with_positions(xs[0], v, {axis: along}), along[0])
    return _kept(e, component.cast(made, e.params["index_dtype"]))


@rule("softmax", "log_softmax")
def normalised(_: Evaluation, e: Equation, xs: list) -> list:
    """What was recognised as such."""
    v, dims = e.ins[0], _along(e)
    find = softmax.softmax if e.name == "softmax" else softmax.log_softmax
    made: Tensor = find(full(xs[0], v, dims), dims)
    return [like_result(made, v, e.outs[0])]


@rule(*CUMULATIVE)
def running(_: Evaluation, e: Equation, xs: list) -> list:
    """Running sums and the like along a position.

    Along a dim that comes apart: along its last factor, and then with what all before that come to.
    """
    v, reverse = e.ins[0], e.params["reverse"]
    dims = v.dims[e.params["axis"]]
    along, total, combined = _ALONG[e.name]
    x = full(xs[0], v, dims)
    made = along(x, dims[-1], reverse=reverse) if dims else x
    for k in reversed(range(1, len(dims))):
        x = total(x, dims[k])
        before = along(x, dims[k - 1], reverse=reverse, exclusive=True)
        made = combined(made, with_dims(before, made.dims))
    return [like_result(made, v, e.outs[0])]
