"""Convolutions."""

from __future__ import annotations

import math
from typing import Any

from meshdsl.dims import Dim, Dims
from meshdsl.ops import reshape, shift
from meshdsl.ops.conv import conv, conv_transpose
from meshdsl.plain_jax.evaluate import Evaluation, as_tensor, fits, full, regrouped, renamed, rule
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.tensor import Tensor


@rule("conv_general_dilated")
def convolution(at: Evaluation, e: Equation, xs: list) -> list:
    """A convolution, or the transpose of one, whose input is spread."""
    how, (v, w), out = e.params["dimension_numbers"], e.ins, e.outs[0]
    spread = any(n != 1 for n in e.params["lhs_dilation"])
    if e.params["batch_group_count"] != 1 or (spread and not _is_transpose(e)):
        return at.fall_back(e, xs)
    groups = _groups(e)
    batch, made_features = (tuple(out.dims[i]) for i in how.out_spec[:2])
    own = None if groups is None else v.dims[how.lhs_spec[1]][len(groups) :]
    if groups is None or not fits([own or ()], [w.dims[how.rhs_spec[1]]]):
        return at.fall_back(e, xs)
    if not fits([v.dims[how.lhs_spec[0]], w.dims[how.rhs_spec[0]]], [batch, made_features]):
        return at.fall_back(e, xs)
    own = own or ()
    features = tuple(Dim(f"features{k}__part", d.size) for k, d in enumerate(own))
    # What both operands contract keeps its name where nothing of the result has it.
    taken = {d.name for d in out.flat}
    features = tuple(f if d.name in taken else d for f, d in zip(features, own, strict=True))
    over, into, padding = {}, {}, {}
    slid: dict[str, Any] = {"stride": {}, "dilation": {}, "padding": padding}
    of_x = [(how.lhs_spec[0], batch), (how.lhs_spec[1], (*groups, *features))]
    of_kernel = [(how.rhs_spec[0], made_features), (how.rhs_spec[1], features)]
    torn, rest = [], []
    for k, (i, j, o) in enumerate(
        zip(how.lhs_spec[2:], how.rhs_spec[2:], how.out_spec[2:], strict=True)
    ):
        here, there = v.dims[i], out.dims[o]
        single = len(here) == len(there) == 1
        dim = here[0].alias(there[0].name) if single else Dim(f"space{k}__part", v.shape[i])
        tap = Dim(f"taps{k}__part", w.shape[j])
        if single:
            of_x.append((i, (dim,)))
        torn.append((i, dim, j, tap))
        over[dim], into[dim] = tap, Dim(dim.name, out.shape[o])
        slid["dilation"][dim] = e.params["rhs_dilation"][k]
        if spread:
            low, high = _taken_away(e, k)
            padding[dim], slid["stride"][dim] = (low, max(high, 0)), e.params["lhs_dilation"][k]
        else:
            padding[dim] = tuple(map(int, e.params["padding"][k]))
            slid["stride"][dim] = e.params["window_strides"][k]
        if not single:
            rest.append((into[dim], there))
    # All at once: under a name that the layout does not know a dim would be whole.
    x, kernel = _named(xs[0], v, of_x), _named(xs[1], w, of_kernel)
    for i, dim, j, tap in torn:
        x, kernel = _with_dim(x, v, i, dim), _with_dim(kernel, w, j, tap)
        if spread:  # the language has the kernel as the convolution that is transposed has it
            kernel = shift.flip(kernel, tap)
    x = full(x, out, (*batch, *groups, *features))
    kernel = full(kernel, out, (*made_features, *features))
    made = (conv_transpose if spread else conv)(
        x,
        kernel,
        over,
        out=(*batch, *made_features, *into.values()),
        into=into,
        **slid,
        precision=e.params["precision"],
        preferred_element_type=e.params["preferred_element_type"],
    )
    for old, new in rest:
        made = regrouped(made, (old,), new)
    return [made]


def _is_transpose(e: Equation) -> bool:
    """Whether a convolution of a spread input is the transpose of one that the language has."""
    if any(n != 1 for n in e.params["window_strides"]):
        return False
    around = [_taken_away(e, k) for k in range(len(e.params["lhs_dilation"]))]
    spreads = zip(around, e.params["lhs_dilation"], strict=True)
    return all(low >= 0 and high > -stride for (low, high), stride in spreads)


def _taken_away(e: Equation, k: int) -> tuple[int, int]:
    """How many elements of all that the transpose gives along a spatial dim are not wanted."""
    taps = e.ins[1].shape[e.params["dimension_numbers"].rhs_spec[2 + k]]
    reach = (taps - 1) * e.params["rhs_dilation"][k]
    low, high = e.params["padding"][k]
    return reach - int(low), reach - int(high)


def _groups(e: Equation) -> Dims | None:
    """The dims of the result that count groups of features; None where they do not come apart."""
    how, count, found = e.params["dimension_numbers"], e.params["feature_group_count"], []
    for v, position in (
        (e.outs[0], how.out_spec[1]),
        (e.ins[0], how.lhs_spec[1]),
        (e.ins[1], how.rhs_spec[0]),
    ):
        dims = v.dims[position]
        sizes = [math.prod(d.size for d in dims[:k]) for k in range(len(dims) + 1)]
        if count not in sizes:
            return None
        found.append(dims[: sizes.index(count)])
    return found[0] if fits(found[:1], found[1:2]) and fits(found[:1], found[2:]) else None


def _named(x, v: Value, positions: list[tuple[int, Dims]]) -> Tensor:
    """`x` with other names at some positions, and names of its own at the others."""
    names = {d.name: f"{d.name}__torn" for d in v.flat}
    for i, dims in positions:
        names |= {a.name: b.name for a, b in zip(v.dims[i], dims, strict=True)}
    return renamed(as_tensor(x, v), names)


def _with_dim(x: Tensor, v: Value, position: int, dim: Dim) -> Tensor:
    """`x` with one dim at a position, which may have one element, and may have it already."""
    if dim in x.dims:
        return x
    old = tuple(d.alias(f"{d.name}__torn") for d in v.dims[position])
    x = full(x, v, old)
    if len(old) == 1:
        return renamed(x, {old[0].name: dim.name})
    return regrouped(x, old, (dim,)) if old else reshape.broadcast(x, (*x.dims, dim))
