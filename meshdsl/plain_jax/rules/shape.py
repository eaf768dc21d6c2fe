"""Primitives that change a shape, or take parts of a dim."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.lowering.law import apply_op
from meshdsl.ops import reshape as broadcasting
from meshdsl.ops import shift, slicing
from meshdsl.plain_jax.evaluate import (
    Evaluation,
    as_positions,
    as_tensor,
    fits,
    full,
    like_result,
    ordered,
    regrouped,
    renamed,
    rule,
    size_of,
)
from meshdsl.plain_jax.factors import leaves
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.tensor import Tensor


@rule("transpose")
def transpose(_: Evaluation, e: Equation, xs: list) -> list:
    """Other names: the order of dims means nothing."""
    pairs = [(j, i) for i, j in enumerate(e.params["permutation"])]
    return [like_result(xs[0], e.ins[0], e.outs[0], pairs)]


@rule("broadcast_in_dim")
def broadcast(_: Evaluation, e: Equation, xs: list) -> list:
    """Other names; what is broadcast along has no dim yet."""
    pairs = list(enumerate(e.params["broadcast_dimensions"]))
    return [like_result(as_tensor(xs[0], e.ins[0]), e.ins[0], e.outs[0], pairs)]


@rule("squeeze")
def squeeze(_: Evaluation, e: Equation, xs: list) -> list:
    """Other names: dims of one element have none."""
    kept = [i for i in range(len(e.ins[0].shape)) if i not in e.params["dimensions"]]
    pairs = [(i, j) for j, i in enumerate(kept)]
    return [like_result(xs[0], e.ins[0], e.outs[0], pairs)]


@rule("reshape")
def reshape(at: Evaluation, e: Equation, xs: list) -> list:
    """Other names where the factors agree, else the elements are regrouped."""
    (v, out), x = (e.ins[0], e.outs[0]), xs[0]
    if e.params.get("dimensions") is not None:
        return at.fall_back(e, xs)
    x = as_tensor(x, v)
    if fits([v.flat], [out.flat]):
        names = {a.name: b.name for a, b in zip(v.flat, out.flat, strict=True)}
        return [renamed(x, names)]
    x = ordered(x, v)
    aside = {d.name: f"{d.name}__torn" for d in v.flat}
    x = renamed(x, aside)
    return [regrouped(x, x.dims, out.flat)]


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


def window(
    x: Tensor, v: Value, position: int, start: int, to: Dims, step: int = 1, fill=0
) -> Tensor:
    """The elements from `start` on along a position of `v`, as the dims `to`.

    The result has the dims `to` there. They may reach beyond the dim, where `fill` stands. None of
    `to` is a dim at another position.
    """
    here, size = v.dims[position], size_of(to)
    x = full(x, v, here)
    old = Dim("whole__part", size_of(here))
    aside = {d.name: f"{d.name}__torn" for d in here}
    x = renamed(x, aside)
    x = regrouped(x, tuple(d.alias(aside[d.name]) for d in here), (old,))
    new = Dim("window__part", size)
    x = slicing.windowed("slice", x, old, new, start, fill, step=step)
    return regrouped(x, (new,), to)


def element(x: Tensor, dim: Dim, number: int) -> Tensor:
    """One element along `dim`, which is whole meanwhile."""
    position = x.dims.index(dim)
    out = dim_algebra.without(x.dims, (dim,))
    take = lambda _, a: lax.index_in_dim(a, number, position, keepdims=False)
    how = {"unsplit": (dim,), "in_order": (dim,), "linear": True, "sums": False, "fill": None}
    return apply_op("index", take, (x,), loop=x.dims, out=out, **how)


def _which(e: Equation, v: Value, position: int, part: Dims, node) -> Dim | None:
    """The dim that counts equal parts of a position: its first factor, if it has come apart so."""
    if node is None:
        return None
    count = leaves([node])
    if len(count) != 1 or not count[0].name:
        return None
    which = Dim(count[0].name, count[0].size)
    return which if fits([v.dims[position]], [(which, *part)]) else None


def _part(x, e: Equation, position: int, number: int, out: Value, node) -> Tensor | None:
    """Of equal parts of a position the one of this number; None if it is not made of such."""
    v = e.ins[0]
    which = _which(e, v, position, out.dims[position], node)
    if which is None:
        return None
    x = as_tensor(x, v)
    first = v.dims[position][0]
    if first in x.dims:
        x = element(x, first, number)
    names = {}
    for i, (a, b) in enumerate(zip(v.dims, out.dims, strict=True)):
        a = a[1:] if i == position else a
        if not fits([a], [b]):
            return None
        names.update((c.name, d.name) for c, d in zip(a, b, strict=True))
    return renamed(x, names)


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


def _sliced(x, e: Equation, cut: dict[int, tuple[int, int]], out: Value) -> Tensor:
    """Elements along the positions in `cut`, which gives their starts and strides."""
    v = e.ins[0]
    x = as_tensor(x, v)
    kept = [i for i in range(len(v.shape)) if i not in cut]
    names: dict[str, str] = {}
    for i in cut:
        if all(d not in x.dims for d in v.dims[i]):
            continue  # all elements along it are equal
        part = tuple(d.alias(f"{d.name}__cut{i}") for d in out.dims[i])
        x = window(x, v, i, cut[i][0], part, step=cut[i][1])
        names.update((d.name, o.name) for d, o in zip(part, out.dims[i], strict=True))
    return _with_positions(x, v, kept, out, kept, names)


def _with_positions(
    x: Tensor, v: Value, at: list[int], out: Value, to: list[int], names: dict[str, str]
) -> Tensor:
    """`x` with the names of `out` at its positions, together with the renames of `names`."""
    torn = [i for i, j in zip(at, to, strict=True) if not fits([v.dims[i]], [out.dims[j]])]
    if torn:  # by names that collide with no others, one position after the other
        aside = [tuple(d.alias(f"{d.name}__at{j}") for d in out.dims[j]) for j in to]
        x = as_positions(x, v, at, aside)
        for given, j in zip(aside, to, strict=True):
            names = names | {a.name: b.name for a, b in zip(given, out.dims[j], strict=True)}
        return renamed(x, names)
    for i, j in zip(at, to, strict=True):
        same = zip(v.dims[i], out.dims[j], strict=True)
        names = names | {a.name: b.name for a, b in same}
    return renamed(x, names)


@rule("pad")
def pad(at: Evaluation, e: Equation, xs: list) -> list:
    """More elements around those of some positions, or fewer; none between them."""
    v, out = e.ins[0], e.outs[0]
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    value = e.notes.get("value")
    if any(inner for _, _, inner in config) or value is None:
        return at.fall_back(e, xs)
    names: dict[str, str] = {}
    x, changed = as_tensor(xs[0], v), [i for i, (low, high, _) in enumerate(config) if low or high]
    for i in changed:
        part = tuple(d.alias(f"{d.name}__cut{i}") for d in out.dims[i])
        x = window(x, v, i, -config[i][0], part, fill=value)
        names.update((d.name, o.name) for d, o in zip(part, out.dims[i], strict=True))
    kept = [i for i in range(len(v.shape)) if i not in changed]
    return [_with_positions(x, v, kept, out, kept, names)]


@rule("concatenate")
def concatenate(at: Evaluation, e: Equation, xs: list) -> list:
    """Operands one after the other along a position: a stack of equal parts where it is one."""
    position, out = e.params["dimension"], e.outs[0]
    node = e.notes.get("which")
    if node is not None:
        stacked = _stacked(xs, e, position, node)
        if stacked is not None:
            return [stacked]
    joint = "whole__part"
    parts = []
    for x, v in zip(xs, e.ins, strict=True):
        x = full(x, v, v.dims[position])
        kept = [i for i in range(len(v.shape)) if i != position]
        old = v.dims[position]
        aside = tuple(d.alias(f"{d.name}__torn") for d in old)
        names = {a.name: b.name for a, b in zip(old, aside, strict=True)}
        x = _with_positions(x, v, kept, out, kept, names)
        parts.append(regrouped(x, aside, (Dim(joint, v.shape[position]),)))
    every = tuple(dict.fromkeys(d for p in parts for d in p.dims if d.name != joint))
    parts = [full(p, out, every) for p in parts]
    made = slicing.concat(parts, joint)
    return [regrouped(made, (Dim(joint, out.shape[position]),), out.dims[position])]


def _stacked(xs: list, e: Equation, position: int, node) -> Tensor | None:
    out, (count, *others) = e.outs[0], leaves([node])
    which = out.dims[position][:1]
    if others or not which or which[0].size != count.size or count.size != len(xs):
        return None
    inner, parts = out.dims[position][1:], []
    for x, v in zip(xs, e.ins, strict=True):
        names = {}
        for i, (a, b) in enumerate(zip(v.dims, out.dims, strict=True)):
            b = inner if i == position else b
            if not fits([a], [b]):
                return None
            names.update((c.name, d.name) for c, d in zip(a, b, strict=True))
        parts.append(renamed(as_tensor(x, v), names))
    every = tuple(dict.fromkeys(d for p in parts for d in p.dims))
    parts = [full(p, out, every) for p in parts]
    return slicing.stack(parts, which[0])


@rule("stack")
def stack(_: Evaluation, e: Equation, xs: list) -> list:
    """Operands beside each other, along a position of their own."""
    axis, out = e.params["axis"], e.outs[0]
    places = [i for i in range(len(out.shape)) if i != axis]
    count = Dim("whole__part", len(xs))
    parts = []
    for x, v in zip(xs, e.ins, strict=True):
        parts.append(_with_positions(as_tensor(x, v), v, list(range(len(places))), out, places, {}))
    every = tuple(dict.fromkeys(d for p in parts for d in p.dims))
    made = slicing.stack([full(p, out, every) for p in parts], count)
    return [regrouped(made, (count,), out.dims[axis])]


@rule("unstack")
def unstack(_: Evaluation, e: Equation, xs: list) -> list:
    """Every element along a position."""
    v, axis = e.ins[0], e.params["axis"]
    x, every = as_tensor(xs[0], v), Dim("whole__part", v.shape[axis])
    places = [i for i in range(len(v.shape)) if i != axis]
    here = tuple(d.alias(f"{d.name}__torn") for d in v.dims[axis])
    if any(d in x.dims for d in v.dims[axis]):
        x = renamed(full(x, v, v.dims[axis]), {d.name: f"{d.name}__torn" for d in v.dims[axis]})
        x = regrouped(x, here, (every,))
    made = []
    for number, out in enumerate(e.outs):
        one = element(x, every, number) if every in x.dims else x
        made.append(_with_positions(one, v, places, out, list(range(len(places))), {}))
    return made


@rule("tile")
def tile(_: Evaluation, e: Equation, xs: list) -> list:
    """Copies one after the other: a factor along which all elements are equal."""
    v, out = e.ins[0], e.outs[0]
    x, names = as_tensor(xs[0], v), {}
    for i, times in enumerate(e.params["reps"]):
        if times == 1:
            continue
        have, want = v.dims[i], out.dims[i]
        if have and fits([want[-len(have) :]], [have]):
            names |= {a.name: b.name for a, b in zip(have, want[-len(have) :], strict=True)}
            continue
        if not have:  # one element, and so copies of it
            continue
        x = full(x, v, have)
        aside = {d.name: f"{d.name}__torn" for d in have}
        times = Dim("times__part", times)
        x = renamed(x, aside)
        x = broadcasting.broadcast(x, (times, *x.dims))
        part = tuple(d.alias(f"{d.name}__cut{i}") for d in want)
        x = regrouped(x, (times, *[d.alias(aside[d.name]) for d in have]), part)
        names |= {a.name: b.name for a, b in zip(part, want, strict=True)}
    kept = [i for i, times in enumerate(e.params["reps"]) if times == 1]
    return [_with_positions(x, v, kept, out, kept, names)]


@rule("iota")
def iota(_: Evaluation, e: Equation, xs: list) -> list:
    """Indices along a position.

    They are whole on every device: what a parameter meets that belongs to a lowering is no
    parameter any more.
    """
    out, position, dtype = e.outs[0], e.params["dimension"], e.params["dtype"]
    dims = out.dims[position]
    array = lax.iota(dtype, out.shape[position])
    return [Tensor(jnp.reshape(array, [d.size for d in dims]), dims)]
