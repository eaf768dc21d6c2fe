"""Lemmas of sums, maxima and sums of products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from meshdsl.proof.along import anything
from meshdsl.proof.elements import converted
from meshdsl.proof.forms.sums import elementwise, extreme, summed_over
from meshdsl.proof.forms.windows import Spec, taken
from meshdsl.proof.labels import Part, fresh
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, aligned, joined, unchanging


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
    """A sum over features and taps: of windows along the dims of space, times the kernel."""
    p = eqn.params
    left, right, result = p["dimension_numbers"]
    if p["feature_group_count"] > 1 or p["batch_group_count"] > 1:
        return anything(walk, eqn, x, w)
    x, w = aligned(_widened(walk, eqn, x, w), [[left[1], right[1]]])
    features = joined([x.dims[left[1]], w.dims[right[1]]])
    dims, shape = list(unchanging(eqn.outvars[0].aval.shape)), eqn.outvars[0].aval.shape
    dims[result[0]], dims[result[1]] = x.dims[left[0]], w.dims[right[0]]
    summed, windows = [*features], x
    settings = "window_strides", "rhs_dilation", "lhs_dilation", "padding"
    each = zip(left[2:], right[2:], result[2:], *(p[name] for name in settings), strict=True)
    one_each = [d for d in left[2:] if not x.dims[d]]
    for of_x, of_w, of_result, stride, dilation, every, (before, _) in each:
        taps = tuple(
            part if part.label is not None else Part(part.size, fresh()) for part in w.dims[of_w]
        )
        dims[of_result] = (Part(shape[of_result], fresh()),) if shape[of_result] > 1 else ()
        pieces = (stride, dims[of_result]), (dilation, taps)
        if any(taps[0] in parts[1:] for parts in w.parts if taps):  # then they are of all devices
            pieces = pieces[::-1]
        spec = Spec(x.dims[of_x], every, -before, pieces)
        of = ()
        if of_x in one_each:
            single = [p for p in windows.parts if len(p) == 1 and isinstance(p[0].label, str)]
            behind = one_each.index(of_x) - len(one_each)
            of = single[behind] if len(single) >= -behind else ()
        windows = taken(walk.terms, windows, spec, of)
        if windows is None:
            return anything(walk, eqn, x, w)
        summed += taps
    product = elementwise(walk.terms, "mul", (), [windows, w], [*dims, tuple(summed)])
    return [summed_over(walk.terms, product, summed, dims)]
