"""Operands and results with other dims at their positions than what stands for them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dims
from meshdsl.lowering.law import apply_op
from meshdsl.ops import reshape
from meshdsl.plain_jax.evaluate import as_positions, as_tensor, fits, full
from meshdsl.plain_jax.program import Value, Variable
from meshdsl.tensor import Tensor


def with_positions(x: Any, v: Value, dims: Mapping[int, Dims]) -> Tensor:
    """`x`, which stands for `v`, with all of the dims that are given for each position."""
    at = sorted(dims)
    x, have = _regrouped(as_tensor(x, v), [v.dims[i] for i in at], [dims[i] for i in at])
    given = Variable(v.shape, v.dtype, dims=tuple(have))
    x = as_positions(x, given, range(len(at)), [dims[i] for i in at])
    return full(x, v, tuple(d for i in at for d in dims[i]))


def as_result(x: Tensor, dims: Mapping[int, Dims], out: Variable) -> Tensor:
    """`x`, which has the given dims at each position of a result, with those of the result."""
    at = sorted(dims)
    x, have = _regrouped(x, [dims[i] for i in at], out.dims)
    given = Variable(out.shape, out.dtype, dims=tuple(have))
    return as_positions(x, given, at, out.dims)


def _regrouped(x: Tensor, have: Sequence[Dims], want: Sequence[Dims]) -> tuple[Tensor, list[Dims]]:
    """`x` with its dims, or those that are wanted, at each position; and these.

    A dim that comes apart into a dim of its name and others, or the other way round, stays split.
    """
    found = []
    for a, b in zip(have, want, strict=True):
        beside = {d.name for d in x.dims if d not in a}
        alike = a and b and a[0].name == b[0].name and 1 in (len(a), len(b))
        free = beside.isdisjoint(d.name for d in b) and all(d in x.dims for d in a)
        if alike and free and not fits([a], [b]):
            x, a = _parts_regrouped(x, a, b), b
        found.append(a)
    return x, found


def _parts_regrouped(x: Tensor, old: Dims, new: Dims) -> Tensor:
    """`x`, whose dims `old` become `new` on each device; the first of both have the same split."""
    rest = dim_algebra.without(x.dims, old)
    if x.dims != (*rest, *old):
        x = reshape.transpose(x, (*rest, *old))
    inner = [d.size for d in new[1:]]
    local = lambda loop, a: jnp.reshape(a, (*a.shape[: len(rest)], -1, *inner))
    how = {"unsplit": old[1:], "in_order": old, "linear": True, "fill": None}
    carried = ((new[0], old[0]),)
    return apply_op(
        "reshape", local, (x,), loop=x.dims, out=(*rest, *new), same_split=carried, **how
    )
