"""Primitives that change a shape, or take parts of a dim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.lowering.law import apply_op
from meshdsl.ops import shift, slicing
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.factors import leaves
from meshdsl.plain_jax.positions import (
    as_positions,
    as_result,
    as_tensor,
    constant_of,
    like_result,
    with_dims,
)
from meshdsl.plain_jax.primitives import MOVES, moved_positions
from meshdsl.plain_jax.program import Equation, Value, Variable
from meshdsl.tensor import Tensor


@rule(*MOVES)
def moved(_: Evaluation, e: Equation, xs: list) -> list:
    """Other names: the order of dims means nothing, and what is broadcast along has no dim yet."""
    v = e.ins[0]
    pairs = moved_positions(e.name, e.params, len(v.shape)).items()
    return [like_result(as_tensor(xs[0], v), v, e.outs[0], pairs)]


@rule("reshape")
def reshape(at: Evaluation, e: Equation, xs: list) -> list:
    """Other names where the factors agree, else the elements are regrouped."""
    (v, out), x = (e.ins[0], e.outs[0]), xs[0]
    if e.params.get("dimensions") is not None:
        return at.fall_back(e, xs)
    every = Variable((math.prod(v.shape),), v.dtype, dims=(v.flat,))
    return [as_positions(as_tensor(x, v), every, {0: out.flat})]


@rule("rev")
def reverse(_: Evaluation, e: Equation, xs: list) -> list:
    """Elements in the opposite order along all factors of the dims."""
    v = e.ins[0]
    x = as_tensor(xs[0], v)
    for i in e.params["dimensions"]:
        for d in v.dims[i]:
            if d in x.dims:  # else all elements along it are equal
                x = shift.flip(x, d)
    return [like_result(x, v, e.outs[0])]


def element(x: Tensor, dim: Dim, number: int) -> Tensor:
    """One element along `dim`, which is whole meanwhile."""
    position = x.dims.index(dim)
    out = dim_algebra.without(x.dims, (dim,))
    take = lambda _, a: lax.index_in_dim(a, number, position, keepdims=False)
    how = {"unsplit": (dim,), "in_order": (dim,), "linear": True, "sums": False, "fill": None}
    return apply_op("index", take, (x,), loop=x.dims, out=out, **how)


def _part(x, e: Equation, position: int, number: int, out: Variable, node) -> Tensor | None:
    """Of equal parts of a position the one of this number; None if it is not made of such.

    Args:
      node: the dim that counts the parts, which is then the first factor of the position.
    """
    v = e.ins[0]
    count = [] if node is None else leaves([node])
    if len(count) != 1:
        return None
    sizes = lambda dims: [d.size for d in dims]
    if sizes(v.dims[position]) != [count[0].size, *sizes(out.dims[position])]:
        return None
    x = as_tensor(x, v)
    first, *rest = v.dims[position]
    if first in x.dims:
        x = element(x, first, number)
    return as_result(x, {**dict(enumerate(v.dims)), position: tuple(rest)}, out)


@rule("split")
def split(_: Evaluation, e: Equation, xs: list) -> list:
    """Parts along a position."""
    position, start, made = e.params["axis"], 0, []
    for i, out in enumerate(e.outs):
        found = _part(xs[0], e, position, i, out, e.notes.get("which"))
        if found is None:
            found = _sliced(xs[0], e, {position: (start, 1)}, out)
        made.append(found)
        start += out.shape[position]
    return made


@rule("slice")
def slice(_: Evaluation, e: Equation, xs: list) -> list:
    """Elements along some positions."""
    v, out = e.ins[0], e.outs[0]
    strides = e.params["strides"] or (1,) * len(v.shape)
    starts = e.params["start_indices"]
    cut = {i: (starts[i], strides[i]) for i in range(len(v.shape)) if v.shape[i] != out.shape[i]}
    if len(cut) == 1:
        ((i, (start, stride)),) = cut.items()
        node = e.notes.get("which", {}).get(i)
        if node is not None and stride == 1:
            found = _part(xs[0], e, i, start // out.shape[i], out, node)
            if found is not None:
                return [found]
    return [_sliced(xs[0], e, cut, out)]


def _sliced(x, e: Equation, cut: dict[int, tuple[int, int]], out: Variable) -> Tensor:
    """Elements along the positions in `cut`, which gives their starts and strides."""
    v = e.ins[0]
    x = as_positions(as_tensor(x, v), v, names_around(v, cut, out))
    return _windows(x, v, cut, out, fill=0)


def names_around(v: Value, cut: Iterable[int], out: Value) -> dict[int, Dims]:
    """The dims of the result at each position, and a dim of its own at those in `cut`."""
    own = {i: (Dim(f"whole{i}__part", v.shape[i]),) for i in cut}
    return {**dict(enumerate(out.dims)), **own}


def _windows(
    x: Tensor, v: Value, cut: dict[int, tuple[int, int]], out: Variable, *, fill: Any
) -> Tensor:
    """Of `x`, named by `names_around`, the elements from a start on, by a stride.

    They may reach beyond the dim, where `fill` stands. Along a dim that `x` lacks all are equal.
    """
    have = dict(enumerate(out.dims))
    for i, (start, stride) in cut.items():
        whole, new = Dim(f"whole{i}__part", v.shape[i]), Dim(f"window{i}__part", out.shape[i])
        have[i] = (new,)
        if whole in x.dims:
            x = slicing.windowed("slice", x, whole, new, start, fill, step=stride)
    return as_result(x, have, out)


@rule("pad")
def pad(at: Evaluation, e: Equation, xs: list) -> list:
    """More elements around those of some positions, or fewer; none between them."""
    v, out = e.ins[0], e.outs[0]
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    value = e.notes.get("value")
    if any(inner for _, _, inner in config) or value is None:
        return at.fall_back(e, xs)
    cut = {i: (-low, 1) for i, (low, high, _) in enumerate(config) if low or high}
    names = names_around(v, cut, out)
    x = as_positions(as_tensor(xs[0], v), v, names)
    x = with_dims(x, tuple(d for i in cut for d in names[i]))
    return [_windows(x, v, cut, out, fill=value)]


@rule("concatenate")
def concatenate(_: Evaluation, e: Equation, xs: list) -> list:
    """Operands one after the other along a position: a stack of equal parts where it is one."""
    position, out = e.params["dimension"], e.outs[0]
    count = leaves([e.notes["which"]]) if "which" in e.notes else []
    first, inner = out.dims[position][:1], out.dims[position][1:]
    if len(count) == 1 and first and first[0].size == count[0].size == len(xs):
        names = {**dict(enumerate(out.dims)), position: inner}
        return [_stacked(xs, e, [names] * len(xs), first[0])]
    parts = []
    for x, v in zip(xs, e.ins, strict=True):
        here = (Dim("whole__part", v.shape[position]),)
        x = as_positions(as_tensor(x, v), v, {**dict(enumerate(out.dims)), position: here})
        parts.append(with_dims(x, here))
    parts = _alike(parts, "whole__part")
    made = slicing.concat(parts, "whole__part")
    whole = (Dim("whole__part", out.shape[position]),)
    return [as_result(made, {**dict(enumerate(out.dims)), position: whole}, out)]


def _alike(parts: list[Tensor], but: str = "") -> list[Tensor]:
    """Tensors with the dims of all of them, but for a dim of this name."""
    every = tuple(dict.fromkeys(d for p in parts for d in p.dims if d.name != but))
    return [with_dims(p, every) for p in parts]


def _stacked(xs: list, e: Equation, names: list[dict[int, Dims]], dim: Dim) -> Tensor:
    """The operands, with the names that are given for each, beside each other along `dim`."""
    each = zip(xs, e.ins, names, strict=True)
    return slicing.stack(_alike([as_positions(as_tensor(x, v), v, n) for x, v, n in each]), dim)


@rule("stack")
def stack(_: Evaluation, e: Equation, xs: list) -> list:
    """Operands beside each other, along a position of their own."""
    axis, out, count = e.params["axis"], e.outs[0], Dim("whole__part", len(xs))
    names = dict(enumerate(out.dims[:axis] + out.dims[axis + 1 :]))
    made = _stacked(xs, e, [names] * len(xs), count)
    return [as_result(made, {**dict(enumerate(out.dims)), axis: (count,)}, out)]


@rule("unstack")
def unstack(_: Evaluation, e: Equation, xs: list) -> list:
    """Every element along a position."""
    v, axis = e.ins[0], e.params["axis"]
    every = Dim("whole__part", v.shape[axis])
    x = as_positions(as_tensor(xs[0], v), v, {axis: (every,)})
    have = dict(enumerate(v.dims[:axis] + v.dims[axis + 1 :]))
    each = [element(x, every, n) if every in x.dims else x for n in range(len(e.outs))]
    return [as_result(one, have, out) for one, out in zip(each, e.outs, strict=True)]


@rule("tile")
def tile(_: Evaluation, e: Equation, xs: list) -> list:
    """Copies one after the other: a factor along which all elements are equal."""
    v = e.ins[0]
    times = [(Dim(f"times{i}__part", n),) if n > 1 else () for i, n in enumerate(e.params["reps"])]
    have = {i: (*copies, *v.dims[i]) for i, copies in enumerate(times)}
    return [as_result(as_tensor(xs[0], v), have, e.outs[0])]


@rule("iota")
def iota(_: Evaluation, e: Equation, xs: list) -> list:
    """Indices along a position.

    They are whole on every device: what a parameter meets that belongs to a lowering is no
    parameter any more.
    """
    out, position, dtype = e.outs[0], e.params["dimension"], e.params["dtype"]
    along = Variable(out.shape[position : position + 1], dtype, dims=(out.dims[position],))
    return [constant_of(lax.iota(dtype, out.shape[position]), along)]
