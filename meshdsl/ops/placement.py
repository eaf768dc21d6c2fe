"""Placements by hand: how a tensor is split, said by the program and not by the layout.

No op needs that: each brings its operands to the split that the law gives it, however they were
split before. It is for programs that know better when to move something, such as gathering it
before a loop instead of in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.lowering.moves.turns import check_whole
from meshdsl.lowering.placement import place
from meshdsl.mesh import axis_names
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.tensor import Tensor


def _example_dims(draw: Draw) -> tuple[Dim, Dim]:
    """Sizes that every mesh divides which examples meet, and all of them have an axis `p`."""
    return Dim("a", draw.pick(24, 24, 24, 0)), Dim("b", 24)


def _reshard_example(reshard: Callable, draw: Draw) -> Case:
    a, b = _example_dims(draw)
    split, pending = draw.pick(({"b": "p"}, ()), ({"a": "p"}, ()), ({}, ("p",)))
    return Case(lambda x: reshard(x, split, pending=pending), (draw.tensor(a, b),), (a,))


@op(
    computes="nothing",
    moves=("all_gather", "all_to_all", "ppermute"),
    mesh_tensorflow="none: one layout for all, no placement by hand",
    example=_reshard_example,
    result="same",
)
def reshard(
    x: Tensor, split: Mapping[Dim | str, str | Iterable[str]], *, pending: str | Iterable[str] = ()
) -> Tensor:
    """`x` split over exactly these mesh axes, and waiting for sums over exactly the axes `pending`.

    Outside of a lowering that is `x` itself. Inside, every state of an axis (it splits a dim, or
    another dim, or nothing, or a sum over it is pending) can be turned into every other;
    docs/placements.md lists the collective of each.

    Args:
      split: for each dim that is to be split its axis, or axes, major first.
      pending: axes over which the devices' arrays are to add up to `x`; `x.pending` says over which
        they do.

    Raises:
      MeshDSLError: a dim that `x` lacks; an axis that the mesh lacks, that is named twice, or that
        splits the dim which an `over` around it maps along; a dim that does not divide over its
        axes where the layout does not let it be padded; or a sum of what cannot be added up.
    """
    axes = {dim_algebra.find("reshard", x.dims, d): _axes(a) for d, a in split.items()}
    waits = _axes(pending)
    named = [a for group in (*axes.values(), waits) for a in group]
    for axis in named:
        if named.count(axis) > 1:
            raise MeshDSLError(
                f"reshard: axis `{axis}` is named twice; it can split one dim, or be pending"
            )
    if waits and not jnp.issubdtype(x.dtype, jnp.number):
        raise MeshDSLError(
            f"reshard: {dim_algebra.show(x.dims)} is {x.dtype}, which cannot be added up over"
            " devices, so nothing of it can be pending; leave out `pending`, or cast it with "
            "md.cast"
        )
    if x.placement is None:
        return x
    scope = x.placement.scope
    for axis in named:
        if axis not in scope.sizes:
            raise MeshDSLError(f"reshard: no axis `{axis}` in the mesh{nearest(axis, scope.sizes)}")
        if along := [d for d, spent in scope.mapped if axis in spent]:
            free = ", ".join(f"`{a}`" for a in scope.sizes if a not in scope.layout.spent)
            advice = f"use {free}" if free else "no other axis is free"
            raise MeshDSLError(
                f"reshard: axis `{axis}` splits {along[0]}, which `over` maps along, so inside of"
                f" it {dim_algebra.show(x.dims)} can neither be split over it nor wait for a sum"
                f" over it; {advice}, or reshard outside of `over`"
            )
    for dim, over in axes.items():
        blocks = scope.layout.blocks(dim, over, scope.sizes)
        if dim.size % blocks and dim.name not in scope.layout.padded:
            shown = " x ".join(f"`{a}`={scope.sizes[a]}" for a in over)
            order = scope.layout.orders.get(dim.name)
            into = f" in {order.name} order, into {blocks} blocks" if order else ""
            raise MeshDSLError(
                f"reshard: `{dim.name}`={dim.size} does not divide over {shown}{into}; use other "
                'axes, or a layout with uneven = "pad"'
            )
    return place(x, tuple(axes.get(d, ()) for d in x.dims), scope.in_mesh_order(waits))


def _replicate_example(replicate: Callable, draw: Draw) -> Case:
    a, b = _example_dims(draw)
    return Case(replicate, (draw.tensor(a, b),), (a,))


@op(
    computes="nothing",
    moves=("all_gather",),
    example=_replicate_example,
    result="same",
)
def replicate(x: Tensor) -> Tensor:
    """`x` whole on every device: nothing split, nothing pending.

    Outside of a lowering that is `x` itself.

    Raises:
      MeshDSLError: `x` stands after an early pipeline, and has rows of one microbatch or is a sum
        over them.
    """
    rest = x.placement and x.placement.scope.rest
    if rest and rest.axis:
        check_whole("replicate", x)
    return reshard(x, {})


def _axes(axes: str | Iterable[str]) -> tuple[str, ...]:
    return axis_names("reshard", axes)
