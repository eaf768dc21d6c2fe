"""What has no rule: the primitive itself, on whole operands. It is never silent.

A table says of some primitives along which positions they work: the others pass through, and may
be split.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op_many
from meshdsl.lowering.nest import Nest
from meshdsl.plain_jax import gradients
from meshdsl.plain_jax.evaluate import Evaluation, bind, where
from meshdsl.plain_jax.positions import (
    as_result,
    constant_of,
    current_scope,
    fits,
    in_order,
    with_positions,
)
from meshdsl.plain_jax.primitives import OF_MATRICES, OF_VECTORS
from meshdsl.plain_jax.program import Equation
from meshdsl.tensor import is_tensor

# What runs over devices itself, or is written for the arrays of one device.
REFUSED = frozenset(
    """shard_map pallas_call psum psum2 psum_invariant pmax pmin all_gather all_gather_invariant
    all_to_all ragged_all_to_all ppermute reduce_scatter axis_index pcast pvary
    custom_partitioning""".split()
)


def fallback(at: Evaluation, e: Equation, xs: list) -> list:
    """The results of an equation by its primitive, with operands that are whole where it works.

    Raises:
      MeshDSLError: fallbacks are not wanted, or the primitive cannot run so.
    """
    what = f"`{e.name}` at {where(e)}"
    if e.name in REFUSED:
        raise MeshDSLError(
            f"from_jax: {what} speaks of devices; plain JAX code says nothing of these, as the "
            "layout does"
        )
    if any(v.is_key for v in (*e.ins, *e.outs)):
        return [
            a if v.is_key else constant_of(a, v) for a, v in zip(bind(e, xs), e.outs, strict=True)
        ]
    passing = _passing(e)
    through = {j: e.outs[0].dims[j] for at in passing for j in at.values()}
    named: list[dict[int, Dims]] = [
        {
            i: through[at[i]] if i in at else (Dim(f"whole{k}_{i}__part", n),)
            for i, n in enumerate(v.shape)
        }
        for k, (v, at) in enumerate(zip(e.ins, passing, strict=True))
    ]
    tensors = [
        in_order(with_positions(x, v, by), _flat(by)) if is_tensor(x) or v.shape else x
        for x, v, by in zip(xs, e.ins, named, strict=True)
    ]
    operands = tuple(x for x in tensors if is_tensor(x))
    if not operands:
        made = bind(e, xs)
        return [constant_of(a, v) if v.shape else a for a, v in zip(made, e.outs, strict=True)]
    _report(at, e, passing)
    outs: list[dict[int, Dims]] = [
        {i: through.get(i, (Dim(f"made{i}__part", n),)) for i, n in enumerate(v.shape)}
        for v in e.outs
    ]
    kept = {d for dims in through.values() for d in dims}
    primitive = gradients.named(lambda *arrays: bind(e, arrays), what)

    def local(loop, *arrays):
        size = lambda dims: math.prod(loop.size(d) if d in kept else d.size for d in dims)
        given = iter(arrays)
        full = [
            jnp.reshape(next(given) if is_tensor(x) else x, [size(dims) for dims in by.values()])
            for x, by in zip(tensors, named, strict=True)
        ]
        if e.name in OF_MATRICES:
            full = [_with_factors(loop, a, e, at) for a, at in zip(full, passing, strict=True)]
        axes = frozenset().union(*[collectives.varying(a) for a in full])
        made = primitive(*[collectives.vary(a, axes) for a in full])
        shapes = [[size((d,)) for d in _flat(out)] for out in outs]
        return [jnp.reshape(a, shape) for a, shape in zip(made, shapes, strict=True)]

    loop = dim_algebra.union("from_jax", [t.dims for t in operands])
    whole = tuple(d for d in loop if d not in kept)
    nest = Nest(loop, tuple(_flat(out) for out in outs), unsplit=whole, sums=False)
    made = apply_op_many(e.name, local, operands, nest, fill=None)
    return [as_result(x, out, v) for x, out, v in zip(made, outs, e.outs, strict=True)]


def _flat(by: dict[int, Dims]) -> Dims:
    return tuple(d for dims in by.values() for d in dims)


def _passing(e: Equation) -> list[dict[int, int]]:
    """For each operand the positions that pass through, with their places in the results.

    Along them the primitive treats every element by itself, whatever their number.
    """
    touched = PASSING.get(e.name)
    none: list[dict[int, int]] = [{} for _ in e.ins]
    if e.name == "conv_general_dilated" and e.params["batch_group_count"] == 1:
        how = e.params["dimension_numbers"]
        at, to = how.lhs_spec[0], how.out_spec[0]
        if fits([e.ins[0].dims[at]], [e.outs[0].dims[to]]):
            none[0] = {at: to}
        return none
    if e.name == "pad":  # with elements between those that are there
        kept = [i for i, around in enumerate(e.params["padding_config"]) if not any(around)]
        none[0] = {i: i for i in kept if fits([e.ins[0].dims[i]], [e.outs[0].dims[i]])}
        return none
    if touched is None:
        return none
    gone = touched(e)
    found = {}
    for i in range(len(e.ins[0].shape)):
        dims = e.outs[0].dims[i : i + 1]
        if i not in gone and all(fits(v.dims[i : i + 1], dims) for v in (*e.ins, *e.outs)):
            found[i] = i
    return [found for _ in e.ins]


def _windows(e: Equation) -> set[int]:
    """The positions along which a window has more than one element, or moves by more."""
    params = e.params
    plain = {
        "window_dimensions": 1,
        "window_strides": 1,
        "padding": (0, 0),
        "base_dilation": 1,
        "window_dilation": 1,
    }
    count = range(len(e.ins[0].shape))
    return {
        i
        for i in count
        for name, one in plain.items()
        if (tuple(params[name][i]) if name == "padding" else params[name][i]) != one
    }


def _last(count: int) -> Callable[[Equation], set[int]]:
    return lambda e: set(range(len(e.ins[0].shape) - count, len(e.ins[0].shape)))


# The positions that a primitive works along. Its parameters say nothing of the sizes of others.
PASSING: dict[str, Callable[[Equation], set[int]]] = {
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _windows),
    "fft": lambda e: _last(len(e.params["fft_lengths"]))(e),
    **dict.fromkeys(OF_MATRICES, _last(2)),
    **dict.fromkeys(OF_VECTORS, _last(1)),
}


def _with_factors(
    loop: DeviceLoop, array: jax.Array, e: Equation, passing: dict[int, int]
) -> jax.Array:
    """An array of matrices with some in its padding that have finite factors and gradients.

    Those are of the numbers 1, 2, 3 and so on along the diagonal, no two of which are equal.
    """
    batch = tuple(d for j in passing.values() for d in e.outs[0].dims[j])
    if array.ndim < 2 or not any(loop.padding(d) for d in batch):
        return array
    real = jnp.broadcast_to(loop.inside(batch), [loop.size(d) for d in batch])
    shape = [n if i in passing else 1 for i, n in enumerate(array.shape)]
    rows, columns = array.shape[-2:]
    other = jnp.diag(jnp.arange(1, max(rows, columns) + 1))[:rows, :columns]
    return jnp.where(real.reshape(shape), array, other.astype(array.dtype))


def _report(at: Evaluation, e: Equation, passing: list[dict[int, int]]) -> None:
    """Write down that dims are whole which the layout would split, or refuse it."""
    scope = current_scope()
    if scope is None:
        return
    loop = dim_algebra.union("from_jax", [v.flat for v in e.ins])
    at_positions = [
        (d, i in through)
        for v, through in zip(e.ins, passing, strict=True)
        for i, dims in enumerate(v.dims)
        for d in dims
    ]
    whole = {d for d, passes in at_positions if not passes}
    split = zip(loop, scope.split(loop, "rules"), strict=True)
    lost = tuple(d for d, axes in split if d in whole and scope.parts(axes) > 1)
    if not lost:
        return
    said = (
        f"`{e.name}` at {where(e)} runs on operands that are whole over {dim_algebra.show(lost)}, "
        "which the layout would split: it has no rule for that"
    )
    if at.strict:
        raise MeshDSLError(f"from_jax: {said}; strict=True forbids it")
    at.fallbacks[said] = None
