"""Products of groups of rows: `ragged_dot_general`."""

from __future__ import annotations

import math

import jax.numpy as jnp

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.plain_jax.evaluate import Evaluation, bind, rule
from meshdsl.plain_jax.positions import as_result, fits, in_order, with_positions
from meshdsl.plain_jax.program import Equation


@rule("ragged_dot_general")
def ragged_product(at: Evaluation, e: Equation, xs: list) -> list:
    """Products of groups of rows, each with the matrix of its group; or sums of each group alone.

    The rows of a group follow each other. A device that has a part of the rows knows by the sizes
    of all groups which of them these are.
    """
    how, out = e.params["ragged_dot_dimension_numbers"], e.outs[0]
    batched = any(how.dot_dimension_numbers[1])
    if len(e.ins) != 3 or len(e.ins[2].shape) != 1 or batched:
        return at.fall_back(e, xs)
    of_x, of_y, of_result, rows = _positions(e)
    group = of_y[how.rhs_group_dimensions[0]] if how.rhs_group_dimensions else of_result[0]
    named = (of_x, of_y, {0: group})
    given = [with_positions(x, v, by) for x, v, by in zip(xs, e.ins, named, strict=True)]
    given = [in_order(x, _flat(by)) for x, by in zip(given, named, strict=True)]

    def local(loop, *arrays):
        x, y, sizes = (_merged(loop, a, by) for a, by in zip(arrays, named, strict=True))
        sizes = _own(loop, sizes, rows)
        axes = frozenset().union(*[collectives.varying(a) for a in (x, y, sizes)])
        every = [collectives.vary(a, axes) for a in (x, y, sizes)]
        (made,) = bind(e, every)
        return made.reshape([loop.size(d) for d in _flat(of_result)])

    loop = tuple(dict.fromkeys((*_flat(of_x), *_flat(of_y), *group)))
    made = apply_op(
        e.name, local, given, loop=loop, out=_flat(of_result), unsplit=group, in_order=(rows,)
    )
    return [as_result(made, of_result, out)]


def _positions(e: Equation) -> tuple[dict[int, Dims], dict[int, Dims], dict[int, Dims], Dim]:
    """The dims of both operands and of the result by their positions, and that of the rows."""
    how, (v, w), out = e.params["ragged_dot_dimension_numbers"], e.ins[:2], e.outs[0]
    ((left, right), _), (ragged,) = how.dot_dimension_numbers, how.lhs_ragged_dimensions
    rows = Dim("rows__part", v.shape[ragged])
    taken = {d.name for d in out.flat}
    of_x, of_y, of_result = {}, {}, dict(enumerate(out.dims))
    place = 0 if how.rhs_group_dimensions else 1
    for by, value, gone in ((of_x, v, left), (of_y, w, (*right, *how.rhs_group_dimensions))):
        for i in range(len(value.shape)):
            if i not in gone:
                if by is of_x and i == ragged:
                    rows = out.dims[place][0] if len(out.dims[place]) == 1 else rows
                    of_result[place] = (rows,)
                by[i] = of_result[place]
                place += 1
    for k, (i, j) in enumerate(zip(left, right, strict=True)):
        here = v.dims[i]
        free = fits([here], [w.dims[j]]) and taken.isdisjoint(d.name for d in here)
        if not free or (i == ragged and len(here) != 1):
            here = (Dim(f"summed{k}__part", v.shape[i]),)
        of_x[i] = of_y[j] = here
        rows = here[0] if i == ragged else rows
    for i in how.rhs_group_dimensions:
        of_y[i] = (Dim("groups__part", w.shape[i]),)
    return of_x, of_y, of_result, rows


def _flat(by: dict[int, Dims]) -> Dims:
    return tuple(d for i in sorted(by) for d in by[i])


def _merged(loop: DeviceLoop, array, by: dict[int, Dims]):
    """An array with one position for the dims of each."""
    return array.reshape([math.prod(loop.size(d) for d in by[i]) for i in sorted(by)])


def _own(loop: DeviceLoop, sizes, rows: Dim):
    """How many of this device's rows each group has, by the sizes of the whole groups."""
    if not loop.axes(rows):
        return sizes
    first, count = loop.offset(rows), loop.size(rows)
    ends = jnp.cumsum(sizes)
    before, after = (jnp.clip(n - first, 0, count) for n in (ends - sizes, ends))
    return (after - before).astype(sizes.dtype)
