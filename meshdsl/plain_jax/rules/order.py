"""Sorting, and the largest elements."""

from __future__ import annotations

from typing import Any

from meshdsl.ops import component, sorting
from meshdsl.plain_jax.evaluate import Evaluation, fits, full, like_result, renamed, rule
from meshdsl.plain_jax.program import Equation

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
    values, places = sorting.top_k(full(xs[0], v, along), along[0], new[0].alias(_LARGEST))
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
    """Elements in order along a position, and maybe the indices where they were."""
    v = e.ins[0]
    dims = v.dims[e.params["dimension"]]
    if len(dims) != 1 or (len(e.ins) != 1 and not e.notes.get("indices")):
        return at.fall_back(e, xs)
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
