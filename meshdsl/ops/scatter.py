"""Scatter, the inverse of `take`: updates are put where an index says; and sums by segment.

Each device works on its part of the dims that are scattered into, and drops updates whose index is
in another part. Where the updates are split, each device applies those that it has, and the results
of the devices are combined: by a sum that stays pending until it is needed, or by a maximum.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.ops import component
from meshdsl.ops.checks import one_of
from meshdsl.ops.declare import Case, Draw, Example, op
from meshdsl.ops.reduce import Which
from meshdsl.ops.scatter_updates import HOW, added, set_alone, target_of, whole_numbers
from meshdsl.tensor import Tensor


def _scatter_example(*hows: str) -> Example:
    def example(scatter: Callable, draw: Draw) -> Case:
        a, b, c = draw.dims("a", "b", "c")
        how, picked = draw.pick(*hows), draw.pick((c,), (b, c))
        operands = (
            draw.tensor(a, b),
            draw.integers(*picked, below=a.size + 1),
            draw.tensor(b, c),
        )
        call = lambda x, ids, updates: scatter(x, ids, updates, a, how=how)
        return Case(call, operands, (a, c))

    return example


@op(
    computes="the updates that fall into its part: the last of them",
    moves=("pmax",),
    example=_scatter_example("set"),
    result="same",
)
@op(
    computes="the updates that fall into its part: the largest (smallest) of them",
    moves=("pmax",),
    example=_scatter_example("max", "min"),
    result="same",
)
@op(
    computes="the updates that fall into its part, added up",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_scatter_example("add"),
    result="same",
)
def scatter(
    x: Tensor,
    ids: Tensor | tuple[Tensor, ...],
    updates: Tensor,
    dim: Which,
    *,
    how: str = "add",
) -> Tensor:
    """`x` with `updates` put into it at the indices `ids` along `dim`: the inverse of `take`.

        md.scatter(cache, position, key, "memory", how="set")                    # one in each row
        md.scatter(cache, (layer, position), key, ("layers", "memory"), how="set")

    Dims that `x` and `ids` share are taken together: element by element. An update whose index is
    outside of `dim` is dropped. With several dims, `ids` has indices along each of them, which
    together say where an update goes.

    "set" writes into `x` in place, where nothing else needs `x` and each element has one update at
    most, as it has where `ids` have no dims but those of `x`.

    Args:
      updates: its dims are among those that `take(x, ids, dim)` has; it is repeated along those
        that it lacks.
      how: what becomes of an element that has updates. "add": they are added to it. "max", "min":
        the largest (smallest) of it and them; where that equals `x`, the gradient is that of `x`,
        and updates that tie share it. "set": the last of them, by index; where the indices have
        several dims of their own, these count in the alphabetical order of their names.

    Raises:
      MeshDSLError: `ids` are not whole numbers, have `dim` themselves or are not as many as the
        dims, `updates` have another dim, or there is no such `how`.
    """
    dims = dim_algebra.find_all("scatter", x.dims, dim)
    ids = ids if isinstance(ids, tuple) else (ids,)
    if len(ids) != len(dims):
        raise MeshDSLError(
            f"scatter: {len(ids)} Tensors of indices for {dim_algebra.show(dims)}; each of these "
            "dims has its own"
        )
    one_of("scatter: how", how, HOW)
    target = target_of("scatter", ids, updates, x.dims, dims)
    if not dim_algebra.size(target.loop):  # no update, or no element to update
        return x
    if how == "set" and not target.picked:
        return set_alone(target, x, whole_numbers(ids), component.cast(updates, x.dtype))
    if x.dtype == bool:
        x, updates = (component.cast(t, jnp.int32) for t in (x, updates))
        return component.cast(scatter(x, ids, updates, dims, how=how), bool)
    return HOW[how](target, x, whole_numbers(ids), component.cast(updates, x.dtype))


def _segment_sum_example(segment_sum: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    ids = draw.integers(*draw.pick((a,), (b, a)), below=v.size + 1)
    return Case(lambda x, ids: segment_sum(x, ids, a, v), (draw.tensor(a, b), ids), (a,))


@op(
    computes="the updates that fall into its part, added up",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_segment_sum_example,
)
def segment_sum(x: Tensor, ids: Tensor, dim: Which, segments: Dim) -> Tensor:
    """The sums of those elements of `x` along `dim` that have the same id.

    In the result `segments` takes the place of `dim`, of which there may be several.

    Args:
      ids: for each element its index in `segments`. The dims of `ids` are among those of `x`.
        Elements whose id is outside of `segments` are dropped.

    Raises:
      MeshDSLError: `ids` are not whole numbers, lack `dim` or have a dim that `x` lacks, or `x` has
        `segments` already.
    """
    summed = dim_algebra.find_all("segment_sum", ids.dims, dim)
    dim_algebra.find_all("segment_sum", x.dims, ids.dims)
    out = dim_algebra.distinct((*dim_algebra.without(x.dims, summed), segments), "segment_sum")
    target = target_of("segment_sum", (ids,), x, out, (segments,))
    x = component.cast(x, jnp.int32) if x.dtype == bool else x
    return added(target, whole_numbers((ids,)), x)


def _bincount_example(bincount: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    operands = draw.integers(a, b, below=v.size + 1), draw.tensor(b, a)
    both = lambda ids, w: [bincount(ids, v), bincount(ids, v, weights=w)]
    return Case(both, operands, (a, b))


@op(
    computes="the updates that fall into its part, counted",
    mesh_tensorflow="OneHotOperation and EinsumOperation; of the size of both dims",
    example=_bincount_example,
)
def bincount(ids: Tensor, bins: Dim, *, weights: Tensor | None = None) -> Tensor:
    """How often each index of the dim `bins` occurs in `ids` (int32).

    Args:
      weights: instead of counting, add up the weights of the places where the index occurs.

    Raises:
      MeshDSLError: `ids` are not whole numbers, or have `bins` themselves; or `weights` lack a dim
        of `ids`.
    """
    if weights is not None:
        return segment_sum(weights, ids, ids.dims, bins)
    target = target_of("bincount", (ids,), None, (bins,), (bins,))
    return added(target, whole_numbers((ids,)), Tensor(jnp.ones((), jnp.int32), ()))
