"""Attention that was recognised."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.ops import component, reduce, reshape
from meshdsl.ops.arrays import chosen
from meshdsl.ops.attention.attention import attention as fused
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.plain_jax.attention import HIDES, Beside, Parts
from meshdsl.plain_jax.constraints import free_positions
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import (
    as_positions,
    as_result,
    as_tensor,
    full,
    like_result,
    renamed,
    with_dims,
)
from meshdsl.plain_jax.program import Equation, Variable
from meshdsl.tensor import Tensor

# What hides a score: it takes no part beside others, and where all are hidden, they are equal.
_HIDDEN = -1e20


@rule("attention")
def attention(_: Evaluation, e: Equation, xs: list) -> list:
    """Its dims by the names of the scores, those of what the products contract by their own."""
    parts: Parts = e.notes["parts"]
    scores, out = parts.scores, e.outs[0]
    queries = () if parts.queries is None else scores.dims[parts.queries]
    (memory,) = scores.dims[parts.memory]
    head, feature = _inner(parts)
    query, key, value = (as_tensor(x, v) for x, v in zip(xs[:3], e.ins, strict=False))
    query = _operand(query, parts, 0, head)
    key = _operand(key, parts, 1, head)
    value = _value(value, parts, feature)
    bias, visible = _bias(parts, xs[3:])
    if visible is not None and memory in visible.dims:  # else it weighs all keys alike
        some = reduce.any(visible, memory)
        query = _chosen(some, with_dims(query, some.dims), 0.0)
    if bias is not None and memory not in bias.dims:
        bias = reshape.broadcast(bias, (memory, *bias.dims))
    elif bias is not None:
        bias = _levelled(bias, memory)
    # Rules for `length` do not hold inside, where those for `queries` and the heads do.
    taken = {d.name for d in (*scores.flat, head, feature)}
    inside = {d.name: "queries" for d in queries if "queries" not in taken}
    query, bias = renamed(query, inside), renamed(bias, inside)
    made = fused(
        query,
        key,
        value,
        queries=query.dim(inside.get(queries[0].name, queries[0].name)) if queries else None,
        memory=memory,
        head_dim=head,
        causal=parts.causal,
        bias=bias,
        scale=parts.scale,
    )
    made = renamed(made, {b: a for a, b in inside.items()})
    return [_result(made, parts, feature, out)]


def _bias(parts: Parts, xs: list) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and what no mask hides; None where there is no such thing."""
    bias: Tensor | None = None
    visible: Tensor | None = None
    for x, beside in zip(reversed(xs), reversed(parts.beside), strict=True):  # the innermost first
        x = _beside(x, beside, parts.scores)
        if beside.fill is None:
            x = component.cast(x, jnp.float32)
            bias = x if bias is None else with_dims(bias, x.dims) + x
            continue
        x = x if beside.shows else FUNCTIONS["logical_not"](x)
        visible = x if visible is None else FUNCTIONS["logical_and"](with_dims(visible, x.dims), x)
        if bias is None:
            bias = component.map(_masked, x, name="mask")
        else:
            bias = _chosen(x, with_dims(bias, x.dims), _HIDDEN)
    if bias is not None:
        bias = component.map(partial(jnp.maximum, _HIDDEN), bias, name="bias")
    return bias, visible


def _levelled(bias: Tensor, memory: Dim) -> Tensor:
    """What is added, less what hides all keys alike: beside it weights would not be numbers."""
    top = reduce.max(component.stop_gradient(bias), memory)
    less = lambda bias, top: bias - chosen(top <= HIDES, top, 0)
    return component.map(less, bias, top, name="bias")


def _masked(visible: jax.Array) -> jax.Array:
    return jnp.where(visible, jnp.float32(0), jnp.float32(_HIDDEN))


def _beside(x: Any, beside: Beside, scores: Variable) -> Tensor:
    """A mask or a bias, by the names of the scores."""
    pairs = list(enumerate(beside.places))
    return like_result(as_tensor(x, beside.value), beside.value, scores, pairs)


def _chosen(which: Tensor, x: Tensor, other: float) -> Tensor:
    choose = lambda which, x: chosen(which, x, other)
    return component.map(choose, which, x, name="where")


def _inner(parts: Parts) -> tuple[Dim, Dim]:
    """The dims that the first product contracts, and that only the result has."""
    taken = {d.name for d in parts.scores.flat}
    (left, _), _ = parts.first.params["dimension_numbers"]
    at = 0 if parts.values_first else 1
    head = _one(parts.first.ins[0].dims[left[0]], "head_dim__part", taken)
    feature = parts.value.dims[free_positions(parts.second)[at][0]]
    taken = taken if feature == (head,) else {*taken, head.name}
    return head, _one(feature, "features__part", taken)


def _one(dims: Dims, name: str, taken: set[str]) -> Dim:
    """One dim of all of `dims`, such as those that rotary positions take apart; `name` if new."""
    alone = len(dims) == 1 and dims[0].name not in taken
    return dims[0] if alone else Dim(name, math.prod(d.size for d in dims))


def _operand(x: Tensor, parts: Parts, side: int, head: Dim) -> Tensor:
    """The queries (side 0) or the keys of the first product, by the names of the scores."""
    e, scores = parts.first, parts.scores
    contracted, batches = e.params["dimension_numbers"]
    free, count = free_positions(e), len(batches[0])
    v, start = e.ins[side], count + side * len(free[0])
    at = [*batches[side], *free[side], *contracted[side]]
    own = scores.dims[start : start + len(free[side])]
    x = as_positions(x, v, dict(zip(at, [*scores.dims[:count], *own, (head,)], strict=True)))
    if side:
        return full(x, v, (head, *scores.dims[parts.memory]))
    queries = () if parts.queries is None else scores.dims[parts.queries]
    return full(x, v, (head, *queries))


def _value(x: Tensor, parts: Parts, feature: Dim) -> Tensor:
    """The values, by the names of the scores."""
    e, scores = parts.second, parts.scores
    contracted, batches = e.params["dimension_numbers"]
    side, other = (0, 1) if parts.values_first else (1, 0)
    v, memory = e.ins[side], scores.dims[parts.memory]
    (free,) = free_positions(e)[side]
    at = [*batches[side], free, *contracted[side]]
    shared = [scores.dims[parts.weights[i]] for i in batches[other]]
    want = dict(zip(at, [*shared, (feature,), memory], strict=True))
    return full(as_positions(x, v, want), v, (feature, *memory))


def _result(made: Tensor, parts: Parts, feature: Dim, out: Variable) -> Tensor:
    """The weighted sum by the names of the second product."""
    e, scores = parts.second, parts.scores
    _, batches = e.params["dimension_numbers"]
    frees = free_positions(e)
    weights = 1 if parts.values_first else 0
    of_weights: list[Dims] = [scores.dims[parts.weights[i]] for i in frees[weights]]
    order: list[Dims] = [scores.dims[parts.weights[i]] for i in batches[weights]]
    order += [(feature,), *of_weights] if parts.values_first else [*of_weights, (feature,)]
    return component.cast(as_result(made, dict(enumerate(order)), out), out.dtype)
