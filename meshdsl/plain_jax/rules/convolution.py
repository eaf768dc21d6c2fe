"""Convolutions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from meshdsl.dims import Dim, Dims
from meshdsl.ops import shift
from meshdsl.ops.conv import conv, conv_transpose
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import as_result, current_scope, fits, with_positions
from meshdsl.plain_jax.program import Equation


class _Channels(NamedTuple):
    """The dims of a convolution that are no space.

    Attributes:
      batch: of the operand and the result.
      groups: of features, or of the batch, each of which has a kernel of its own.
      features: those that the kernel contracts.
      made: those that it makes, of one group.
    """

    batch: Dims
    groups: Dims
    features: Dims
    made: Dims


@rule("conv_general_dilated")
def convolution(at: Evaluation, e: Equation, xs: list) -> list:
    """A convolution, or the transpose of one, whose input is spread."""
    how, (v, w), out = e.params["dimension_numbers"], e.ins, e.outs[0]
    spread = any(n != 1 for n in e.params["lhs_dilation"])
    if spread and not _is_transpose(e):
        return at.fall_back(e, xs)
    by = _channels(e)
    made_features = (*by.groups, *by.made)
    grouped = e.params["batch_group_count"] > 1
    of_x: dict[int, Dims] = {
        how.lhs_spec[0]: (*by.groups, *by.batch) if grouped else by.batch,
        how.lhs_spec[1]: by.features if grouped else (*by.groups, *by.features),
    }
    of_kernel: dict[int, Dims] = {how.rhs_spec[0]: made_features, how.rhs_spec[1]: by.features}
    of_result: dict[int, Dims] = {how.out_spec[0]: by.batch, how.out_spec[1]: made_features}
    over, into, padding = {}, {}, {}
    slid: dict[str, Any] = {"stride": {}, "dilation": {}, "padding": padding}
    space = zip(how.lhs_spec[2:], how.rhs_spec[2:], how.out_spec[2:], strict=True)
    for k, (i, j, o) in enumerate(space):
        here, there = v.dims[i], out.dims[o]
        single = len(here) == len(there) == 1
        dim = here[0].alias(there[0].name) if single else Dim(f"space{k}__part", v.shape[i])
        tap = Dim(f"taps{k}__part", w.shape[j])
        of_x[i], of_kernel[j] = (dim,), (tap,)
        over[dim], into[dim] = tap, Dim(dim.name, out.shape[o])
        of_result[o] = (into[dim],)
        slid["dilation"][dim] = e.params["rhs_dilation"][k]
        if spread:
            low, high = _taken_away(e, k)
            padding[dim], slid["stride"][dim] = (low, max(high, 0)), e.params["lhs_dilation"][k]
        else:
            padding[dim] = tuple(map(int, e.params["padding"][k]))
            slid["stride"][dim] = e.params["window_strides"][k]
    x, kernel = with_positions(xs[0], v, of_x), with_positions(xs[1], w, of_kernel)
    if spread:  # the language has the kernel as the convolution that is transposed has it
        for tap in over.values():
            kernel = shift.flip(kernel, tap)
    made = (conv_transpose if spread else conv)(
        x,
        kernel,
        over,
        out=(*by.batch, *made_features, *into.values()),
        into=into,
        **slid,
        precision=e.params["precision"],
        preferred_element_type=e.params["preferred_element_type"],
    )
    return [as_result(made, of_result, out)]


def _channels(e: Equation) -> _Channels:
    """The dims of a convolution that are no space.

    They have names of the result, and of the operand where both operands contract them. Where dims
    do not come apart into groups, or are other ones in an operand, the elements are regrouped.
    """
    how, (v, w), out = e.params["dimension_numbers"], e.ins, e.outs[0]
    count = e.params["feature_group_count"] * e.params["batch_group_count"]
    batch, every = (out.dims[i] for i in how.out_spec[:2])
    groups, made = _apart(every, count) or (
        (Dim(_name_of_groups(every, count), count),),
        (Dim("made__part", out.shape[how.out_spec[1]] // count),),
    )
    here, own = v.dims[how.lhs_spec[1]], w.dims[how.rhs_spec[1]]
    if e.params["feature_group_count"] > 1:
        here = (_apart(here, count) or (here, here))[1]
    named = here if fits([here], [own]) else own
    # What both operands contract keeps its name where nothing of the result has it.
    taken = {d.name for d in (*out.flat, *groups, *made)}
    features = tuple(
        d if d.name not in taken else Dim(f"features{k}__part", d.size) for k, d in enumerate(named)
    )
    return _Channels(batch, groups, features, made)


def _name_of_groups(features: Dims, count: int) -> str:
    """What groups of features are called: as the features, where groups are split as these are."""
    scope = current_scope()
    if len(features) == 1 and scope is not None:
        (axes,) = scope.split(features, "rules")
        if not count % scope.parts(axes):
            return features[0].name
    return "groups__part"


def _apart(dims: Dims, count: int) -> tuple[Dims, Dims] | None:
    """The first dims, which make up `count` elements, and the others; None if there are none."""
    for k in range(len(dims) + 1):
        if math.prod(d.size for d in dims[:k]) == count:
            return dims[:k], dims[k:]
    return None


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
