"""Lemmas of sums, maxima and sums of products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from meshdsl.proof.along import anything
from meshdsl.proof.elements import converted
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.sums import elementwise, extreme, summed_over
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import (
    Part,
    Value,
    aligned,
    fresh,
    joined,
    made,
)


@lemma("reduce_sum")
def _reduce_sum(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["axes"]
    dims = [parts for d, parts in enumerate(x.dims) if d not in gone]
    return [summed_over(walk.terms, x, [p for d in gone for p in x.dims[d]], dims)]


@lemma("reduce_max", "reduce_min", "reduce_and", "reduce_or")
def _reduce(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["axes"]
    dims = [parts for d, parts in enumerate(x.dims) if d not in gone]
    labels = [p.label for d in gone for p in x.dims[d] if p.label is not None]
    if 0 in x.shape:
        raise NotProved("there is no lemma for the largest element of none")
    op = eqn.primitive.name.removeprefix("reduce_")
    return [extreme(walk.terms, op, integer_dtypes(eqn), x, labels, dims)]


@lemma("dot_general")
def _dot_general(walk: Walk, eqn, x: Value, y: Value) -> list[Value]:
    """A sum of products."""
    contracted, batch = eqn.params["dimension_numbers"]
    x, y = _widened(walk, eqn, x, y)
    pairs = [*zip(*batch, strict=True), *zip(*contracted, strict=True)]
    x, y = aligned([x, y], pairs)
    both = [joined([x.dims[i], y.dims[j]]) for i, j in pairs]
    free = [
        [parts for d, parts in enumerate(v.dims) if d not in (*contracted[i], *batch[i])]
        for i, v in enumerate((x, y))
    ]
    count = len(batch[0])
    dims = [*both[:count], *free[0], *free[1]]
    product = elementwise(walk.terms, "mul", (), [x, y], [*dims, *both[count:]])
    return [summed_over(walk.terms, product, [p for parts in both[count:] for p in parts], dims)]


def _widened(walk: Walk, eqn, *values: Value) -> list[Value]:
    """The factors of a product, in the dtype of the result where integers are added up in it."""
    new = np.dtype(eqn.outvars[0].aval.dtype)
    if not jnp.issubdtype(new, jnp.integer):
        return list(values)
    old = [np.dtype(atom.aval.dtype) for atom in eqn.invars]
    return [converted(walk, x, dtype, new) for x, dtype in zip(values, old, strict=True)]


@lemma("conv_general_dilated")
def _convolution(walk: Walk, eqn, x: Value, w: Value) -> list[Value]:
    """A sum over features of what each of them makes, along the dims of space."""
    p = eqn.params
    left, right, result = p["dimension_numbers"]
    if p["feature_group_count"] > 1 or p["batch_group_count"] > 1:
        return anything(walk, eqn, x, w)
    says = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    x, w = aligned(_widened(walk, eqn, x, w), [[left[1], right[1]]])
    features = joined([x.dims[left[1]], w.dims[right[1]]])
    shape = eqn.outvars[0].aval.shape
    space = [Part(shape[d], fresh()) for d in result[2:]]
    of = dict(zip(result, [x.dims[left[0]], w.dims[right[0]], *((p,) for p in space)], strict=True))
    dims = [of[d] for d in range(len(shape))]
    along = [[x.dims[d] for d in left[2:]], [w.dims[d] for d in right[2:]]]
    params = tuple(p[name] for name in says)
    new = [(part,) for part in space if part.size != 1]
    each = made(walk.terms, "convolution", params, [x, w], dims, along=along, new=new)
    return [summed_over(walk.terms, each, features, dims)]
