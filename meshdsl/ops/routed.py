"""routed: each element through the functions that an index chooses, as a mixture of experts does.

Each device sorts rows by their experts, calls the function once for the rows of all of its own
experts, and puts the results back in the order of the rows. No row is dropped, and no row is
multiplied with the matrix of an expert that it has not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, show
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.moves.move import ByParts
from meshdsl.ops.arrays import in_order
from meshdsl.ops.checks import check_indices, one_of
from meshdsl.ops.component import as_tensor
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.grouped_dot import KERNELS, Way, block_of, grouped_dot
from meshdsl.ops.kernel_choice import chosen_kernel
from meshdsl.ops.precision.grouped import Matrices
from meshdsl.ops.precision.grouped import dot as dot_in_few_bits
from meshdsl.ops.routed_exchange import added_up, by_exchange, looked_up, room_of
from meshdsl.tensor import Tensor


def _routed_example(routed: Callable, draw: Draw) -> Case:
    a, b, v, f = draw.dims("a", "b", "v", "f")
    e, k = Dim("e", 5), Dim("k", draw.integer(0, 3))
    operands = (
        draw.tensor(a, b, e),
        draw.integers(a, b, k, below=v.size + 1),
        draw.tensor(a, b, k),
        draw.tensor(v, e, f),
        draw.tensor(v, f, e),
    )

    def call(x, ids, weights, up, down):
        axes = [[d.name for d in w.dims[::1] if d != v] for w in (up, down)]

        def expert(groups, rows, up, down):
            up = up if axes[0] == ["e", "f"] else up.swapaxes(1, 2)
            down = down if axes[1] == ["f", "e"] else down.swapaxes(1, 2)
            return groups.dot(jnp.sin(groups.dot(rows, up)), down)

        return routed(expert, x, ids, weights, (up, down), v, sums=(f,))

    return Case(call, operands, (v,))


class Groups:
    """Rows in the order of their experts, as the function of `md.routed` gets them.

    Attributes:
      weights: for each row the weight of its choice, [rows, 1].
    """

    def __init__(self, at: DeviceLoop, way: Way, starts, of_rows, weights):
        self._at, self._way, self._starts, self._of_rows = at, way, starts, of_rows
        self.weights = weights

    def dot(self, rows, weight, *, transposed: bool = False):
        """Each row times the matrix of its expert.

        Args:
          rows: an array of shape [rows, inner].
          weight: [experts, inner, features]; where it is `transposed`, [experts, features, inner].

        Returns:
          [rows, features], in the dtype of both, added up in float32.
        """
        if isinstance(weight, Matrices):
            if rows.size and weight.sums(transposed):
                where = self._starts, self._of_rows
                return dot_in_few_bits(self._at, self._way, transposed, rows, weight, *where)
            weight = jnp.asarray(weight)
        dtype = jnp.result_type(rows, weight)
        rows, weight = rows.astype(dtype), weight.astype(dtype)
        if not rows.size or not weight.size:
            summed = jnp.sum(weight, axis=(0, 2 if transposed else 1))
            return jnp.sum(rows, axis=1, keepdims=True) * summed
        return grouped_dot(self._way.taking(dtype), transposed, rows, weight, self._starts)

    def take(self, table):
        """For each row what `table [experts, ...]` has for its expert, such as a bias.

        Rows of other devices' experts, or of none, get zeros and leave no gradient.
        """
        if not len(table):
            return jnp.zeros((*self._of_rows.shape, *table.shape[1:]), table.dtype)
        return jnp.take(table, self._of_rows, axis=0, mode="fill", fill_value=0)


@op(
    computes="its own elements by its own experts; where these are split, a term of a sum",
    moves=("all_gather",),
    example=_routed_example,
    result="same",
    floats=True,
)
def routed(
    fn: Callable,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    parameters: tuple,
    experts: Dim | str,
    *,
    sums=(),
    weighs: bool = False,
    name: str = "routed",
    implementation: str | None = None,
) -> Tensor:
    """Each element of `x` through the experts that `ids` choose, and the weighted sum of these.

        def expert(groups, rows, up, down):         # arrays; each row belongs to one expert
            return groups.dot(jax.nn.gelu(groups.dot(rows, up)), down)

        # x [batch, length, d_model], chosen and share [batch, length, top],
        # up [experts, d_model, d_ff], down [experts, d_ff, d_model]
        y = md.routed(expert, x, chosen, share, (up, down), experts, sums=d_ff)

    Rows are sorted by their expert, so that each product of `groups.dot` is one of groups of rows,
    each with the matrix of its expert. What it costs grows with the elements that are chosen, and
    not with the number of experts. Nothing is dropped, however unequal the load is. An index
    outside of `experts` adds nothing.

    Where `experts` are split, each device computes what its own experts add to the elements that it
    has of all other dims, and the law takes the sum. It makes room for as many rows as could be
    chosen, even if most are of other devices' experts. Where the rule for `experts` says
    `move = "exchange"`, elements stay where they are, and rows travel to the experts and back; then
    `fn` must not close over traced arrays. Derivatives are of first order and in reverse mode.

    Args:
      fn: called with `groups`, rows of `x` as an array [rows, features], and the parameters, with
        `experts` in front and the other dims in the Tensor's order. `groups.dot(rows, weight)` is
        the product of each row with the matrix of its expert, and `groups.take(table)` gives each
        row what the table has for its expert. It returns an array of the shape of the rows.
      x: its features, the one dim that `ids` lack, and others.
      ids: for each element the indices of its experts. Dims that `x` lacks are the choices.
      weights: what the result of each choice is multiplied by; its dims are those of `ids`.
      parameters: Tensors that have `experts`.
      experts: the dim that `ids` are indices of.
      sums: dims of the parameters over which the result of `fn` is a sum, so that a layout may
        split them. The others are whole while `fn` runs. Their padding holds zeros.
      weighs: whether `fn` multiplies by the weights itself, `groups.weights` for each row, at any
        place after which it is linear. Before its last product is the best one: then the backward
        pass needs no result of that product.
      name: what errors and `explain` call the op.
      implementation: of `groups.dot`: "megablox" for TPU, "pallas" for GPU, or "blocks", which
        serves every call on every platform. By default the kernel of the platform if it can serve
        the call, and else blocks. Elsewhere than on their platforms megablox and pallas are
        interpreted, for tests.

    Raises:
      MeshDSLError: dims do not fit, `ids` are not whole numbers, or the others not real
        floating-point numbers; or the implementation cannot serve the call.
    """
    parameters = tuple(as_tensor(t, name) for t in parameters)
    every = [d for t in parameters for d in t.dims]
    experts = dim_algebra.find(name, tuple(dict.fromkeys(every)), experts)
    features = _features(name, x, ids, weights, parameters, experts)
    if implementation is not None:
        one_of(f"{name}: `implementation`", implementation, KERNELS)
    tensors = (x, ids, weights, *parameters)
    loop = dim_algebra.union(name, [t.dims for t in tensors])
    inner = dim_algebra.without(loop, (*x.dims, *ids.dims, experts))
    summed = dim_algebra.find_all(f"{name}, sums", inner, sums)
    unsplit = (features, *dim_algebra.without(inner, summed))
    tokens = dim_algebra.without(x.dims, (features,))
    choices = dim_algebra.without(ids.dims, tokens)
    order = (*tokens, *choices)
    placements = [t.placement for t in parameters if t.placement and t.placement.dtypes]
    wide = any(p.dtypes.sums == jnp.float32 for p in placements if p.dtypes)

    def local(at: DeviceLoop, x_, ids_, weights_, *arrays):
        last = jnp.moveaxis(x_, x.dims.index(features), -1)
        rows = last.reshape(math.prod(last.shape[:-1]), features.size)
        ids_ = in_order(ids_, ids.dims, order).astype(jnp.int32)
        pairs = len(rows), math.prod(ids_.shape[len(tokens) :])
        chosen = ids_.reshape(pairs)
        share = in_order(weights_, weights.dims, order).reshape(pairs)
        arrays = [
            jnp.moveaxis(a, t.dims.index(experts), 0)
            for a, t in zip(arrays, parameters, strict=True)
        ]
        run = partial(_by_expert, at, fn, weighs, name)
        way = partial(_way, at, implementation, name)
        result = _through(at, run, way, (rows, chosen, share), arrays, experts, wide, name)
        return jnp.moveaxis(result.reshape(last.shape), -1, x.dims.index(features))

    return apply_op(
        name,
        local,
        tensors,
        loop=loop,
        out=x.dims,
        unsplit=unsplit,
        in_order=(experts,),
        by_parts=(ByParts(experts, tuple([t.dims for t in parameters]), sent=tokens),),
    )


def _through(at: DeviceLoop, run, way, routed_rows, arrays, experts: Dim, wide: bool, name: str):
    """The rows through the experts that each has chosen: of this device, or of all by exchange.

    Args:
      run: `_by_expert` of a function.
      way: `_way` of a device.
      routed_rows: the rows [rows, features]; the indices of the experts that each has chosen and
        the share of each choice [rows, choices].
      arrays: of the parameters, with `experts` in front.
      wide: whether gradients of parameters are summed over devices in float32.
    """
    rows, chosen, share = routed_rows
    axes = collectives.varying_in((*routed_rows, arrays))
    parts = at.in_parts(experts)
    if parts is not None:
        used = chosen.size / (parts.count * room_of(chosen.size, parts.count))
        run = partial(run, partial(way, used, False, arrays), parts.size)
        return by_exchange(name, parts, run, rows, chosen, share, arrays, experts.size, axes)
    first = collectives.vary(jnp.asarray(at.offset(experts), jnp.int32), axes)
    here = at.size(experts)
    implement = partial(way, here / max(experts.size, 1), wide, arrays)
    return run(implement, here, rows, chosen - first, share, arrays)


def _features(name: str, x, ids, weights, parameters, experts: Dim) -> Dim:
    """The features of `x`, after checking that operands go together."""
    check_indices(name, ids)
    for t in (x, weights, *parameters):
        if not jnp.issubdtype(t.dtype, jnp.floating):
            raise MeshDSLError(
                f"{name}: takes real floating-point numbers, and {show(t.dims)} is {t.dtype}"
            )
    features = dim_algebra.without(x.dims, ids.dims)
    if len(features) != 1:
        raise MeshDSLError(
            f"{name}: {show(x.dims)} has one dim of features, which the indices {show(ids.dims)} "
            f"lack, not {len(features)}"
        )
    if set(weights.dims) != set(ids.dims):
        raise MeshDSLError(
            f"{name}: the weights {show(weights.dims)} have not the dims of the indices "
            f"{show(ids.dims)}"
        )
    for t in parameters:
        if experts not in t.dims:
            raise MeshDSLError(f"{name}: a parameter {show(t.dims)} has not {experts}")
    for t in (x, ids):
        if experts in t.dims:
            raise MeshDSLError(f"{name}: {show(t.dims)} has the dim {experts} of the parameters")
    shared = [d for t in parameters for d in t.dims if d in ids.dims]
    if shared:
        raise MeshDSLError(
            f"{name}: the parameters and the indices {show(ids.dims)} share {shared[0]}; the "
            "parameters of an expert are the same for all elements"
        )
    return features[0]


def _way(
    at: DeviceLoop, wanted: str | None, name: str, used: float, wide: bool, arrays, rows
) -> Way:
    """How `groups.dot` computes its products on this device; also written down in the record.

    Args:
      used: the share of the rows that are of this device's experts, if all have the same load.
      wide: whether gradients of matrices are cast to float32 next.
    """
    weights = [a for a in arrays if a.ndim == 3]
    kernel, lacks = chosen_kernel(name, KERNELS, wanted, at.platform, at.platform, rows, weights)
    at.note(kernel, 1.0, lacks)
    block = block_of(round(len(rows) * used), len(arrays[0]), at.platform)
    share = min(1.0, used)
    return Way(kernel, at.platform, at.lowered, block, share, wide, at.device_kind)


def _by_expert(
    at: DeviceLoop,
    fn: Callable,
    weighs: bool,
    name: str,
    implement,
    experts: int,
    x,
    ids,
    weights,
    parameters,
    *,
    noted: bool = True,
):
    """For each row of `x` the weighted sum of the results of its experts on this device.

    The choices are numbered with the first one of every row before all second ones, so that a sum
    over the choices of a row is one of whole arrays.

    Args:
      experts: how many experts this device has.
      ids: the numbers of experts, counted from this device's first one; [rows, choices].
      weights: [rows, choices].
      noted: whether collectives are written down.
    """
    count, choices = ids.shape
    if not ids.size or not experts:
        return x * 0
    ids = jnp.where((ids >= 0) & (ids < experts), ids, experts).T.reshape(-1)
    numbers = lax.iota(jnp.int32, ids.size) + ids * 0
    of_rows, order = lax.sort((ids, numbers), num_keys=1, is_stable=True)
    _, back = lax.sort((order, numbers), num_keys=1)
    edges = jnp.arange(experts + 1, dtype=jnp.int32)
    starts = jnp.searchsorted(of_rows, edges, method="sort").astype(jnp.int32)

    places = back.reshape(choices, count)
    rows: Any = looked_up(True, x, order % count, places)
    wide = jnp.promote_types(weights.dtype, jnp.float32)
    of_choices: Any = looked_up(True, weights.T.reshape(-1, 1).astype(wide), order, back[None])
    loop = at if noted else at.aside
    groups = Groups(loop, implement(rows), starts, of_rows, of_choices)
    result = fn(groups, rows, *parameters)
    if jnp.shape(result) != rows.shape:
        raise MeshDSLError(
            f"{name}: the function gives an array of shape {jnp.shape(result)} for rows of "
            f"{rows.shape}"
        )
    if not weighs:
        result = (result * of_choices).astype(result.dtype)
    # Rows without an expert here add nothing, whatever the function gives for them.
    places = jnp.where(ids.reshape(choices, count) < experts, places, len(rows))
    token = jnp.where(of_rows < experts, order % count, count)
    total: Any = added_up(False, result, places, token)
    return total.astype(x.dtype)
