"""Sorting, and the largest elements."""

from __future__ import annotations

from typing import Any

from meshdsl.dims import Dim
from meshdsl.ops import component, selection, sorting
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import (
    as_positions,
    as_result,
    as_tensor,
    in_order,
    one_dim,
    with_dims,
    with_positions,
)
from meshdsl.plain_jax.program import Equation


@rule("top_k")
def top_k(at: Evaluation, e: Equation, xs: list) -> list:
    """The largest elements along the last position, and their indices."""
    v, last = e.ins[0], len(e.ins[0].shape) - 1
    if e.params.get("axis", last) not in (-1, last):
        return at.fall_back(e, xs)
    along = one_dim(v.dims[last], v.shape[last], "whole__part")
    largest = Dim("largest__part", e.outs[0].shape[last])
    x = with_positions(xs[0], v, {last: along})
    values, places = selection.top_k(x, along[0], largest)
    have = {**dict(enumerate(v.dims)), last: (largest,)}
    places = component.cast(places, e.outs[1].dtype)
    return [as_result(x, have, out) for x, out in zip((values, places), e.outs, strict=True)]


@rule("sort")
def sort(_: Evaluation, e: Equation, xs: list) -> list:
    """Elements in order along a position; the indices where they were; others beside them."""
    v, i = e.ins[0], e.params["dimension"]
    along = one_dim(v.dims[i], v.shape[i], "whole__part")
    (dim,), names = along, {**dict(enumerate(v.dims)), i: along}
    given = [as_positions(as_tensor(x, w), w, names) for x, w in zip(xs, e.ins, strict=True)]
    if len(e.ins) == 1 or e.notes.get("indices"):
        x, made = with_dims(given[0], along), given[:]
        for number in e.notes["needed"]:
            ordered: Any = sorting.argsort(x, dim) if number else sorting.sort(x, dim)
            made[number] = component.cast(ordered, e.outs[number].dtype)
    else:
        dims = tuple(d for k in sorted(names) for d in names[k])
        dims = tuple(d for d in dims if d == dim or any(d in x.dims for x in given))
        given = [in_order(with_dims(x, dims), dims) for x in given]
        made = sorting.sort_together(given, dim, e.params["num_keys"])
    return [as_result(x, names, out) for x, out in zip(made, e.outs, strict=True)]
