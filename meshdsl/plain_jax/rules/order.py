"""Sorting, and the largest elements."""

from __future__ import annotations

from typing import Any

from meshdsl.dims import Dim
from meshdsl.ops import component, reshape, selection, sorting
from meshdsl.plain_jax.evaluate import (
    Evaluation,
    as_tensor,
    fits,
    full,
    like_result,
    renamed,
    rule,
)
from meshdsl.plain_jax.program import Equation, Variable

_LARGEST = "largest__part"


@rule("top_k")
def top_k(at: Evaluation, e: Equation, xs: list) -> list:
    """The largest elements along the last position, and their indices."""
    v, out = e.ins[0], e.outs[0]
    last = len(v.shape) - 1
    along, new = v.dims[last], out.dims[last]
    of_last = e.params.get("axis", last) in (-1, last)
    if not of_last or len(along) != 1 or len(new) != 1 or not fits(v.dims[:-1], out.dims[:-1]):
        return at.fall_back(e, xs)
    values, places = selection.top_k(full(xs[0], v, along), along[0], new[0].alias(_LARGEST))
    places = component.cast(places, e.outs[1].dtype)
    made = []
    for t, result in ((values, out), (places, e.outs[1])):
        if not fits(v.dims[:-1], result.dims[:-1]) or len(result.dims[last]) != 1:
            return at.fall_back(e, xs)
        have = [d for dims in v.dims[:-1] for d in dims]
        want = [d for dims in result.dims[:-1] for d in dims]
        names = {a.name: b.name for a, b in zip(have, want, strict=True)}
        made.append(renamed(t, {**names, _LARGEST: result.dims[last][0].name}))
    return made


@rule("sort")
def sort(at: Evaluation, e: Equation, xs: list) -> list:
    """Elements in order along a position; the indices where they were; others beside them."""
    v = e.ins[0]
    dims = v.dims[e.params["dimension"]]
    if len(dims) != 1 or not all(fits(w.dims, v.dims) for w in e.ins):
        return at.fall_back(e, xs)
    if len(e.ins) != 1 and not e.notes.get("indices"):
        return _together(e, xs, dims[0])
    x, made = full(xs[0], v, dims), []
    for number, out in enumerate(e.outs):
        if number not in e.notes["needed"]:
            ordered: Any = xs[number]
        elif number:
            ordered = component.cast(sorting.argsort(x, dims[0]), out.dtype)
        else:
            ordered = sorting.sort(x, dims[0])
        made.append(like_result(ordered, v, out))
    return made


def _together(e: Equation, xs: list, dim: Dim) -> list:
    """Several operands in the order of the first ones."""
    v = e.ins[0]
    assert isinstance(v, Variable)
    given = [like_result(as_tensor(x, w), w, v) for x, w in zip(xs, e.ins, strict=True)]
    dims = tuple(d for d in v.flat if d == dim or any(d in x.dims for x in given))
    given = [reshape.broadcast(x, dims) if x.dims != dims else x for x in given]
    made = sorting.sort_together(given, dim, e.params["num_keys"])
    return [like_result(x, v, out) for x, out in zip(made, e.outs, strict=True)]
