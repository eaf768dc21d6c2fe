"""Pools: reductions of sliding windows, and their derivatives.

A device computes its own windows, of its elements and the halo that others have, as in `max_pool`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering.law import apply_op
from meshdsl.ops import reshape
from meshdsl.ops.calculus import jvp, vjp
from meshdsl.ops.comparison import bounds
from meshdsl.ops.sliding_windows import Window, windows
from meshdsl.plain_jax.evaluate import Evaluation, bind_arrays, is_inexact, rule
from meshdsl.plain_jax.positions import as_result, with_positions
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.tensor import Tensor

# By name the primitive, and what padding holds, which changes no window.
_POOLS: dict[str, tuple[Any, Callable]] = {
    "reduce_window_max": (lax.reduce_window_max_p, lambda dtype: bounds(dtype)[0]),
    "reduce_window_min": (lax.reduce_window_min_p, lambda dtype: bounds(dtype)[1]),
    "reduce_window_sum": (lax.reduce_window_sum_p, lambda _: 0),
}
# By what a derivative selects in each window the pool that it is of.
_SELECTED = {"ge": "reduce_window_max", "le": "reduce_window_min"}


class _Pool(NamedTuple):
    """A pool of an array, with a dim for each position along which windows slide.

    Attributes:
      name: of its primitive.
      before: the dims at each position of the operand.
      after: those of the result.
      windows: by position those that slide.
    """

    name: str
    before: dict[int, Dims]
    after: dict[int, Dims]
    windows: dict[int, Window]

    def __call__(self, x: Tensor) -> Tensor:
        """The pool of `x`, which has all dims of `before`."""
        by_dim = {w.dim: w for w in self.windows.values()}
        out = tuple(by_dim[d].out if d in by_dim else d for d in x.dims)
        primitive, neutral = _POOLS[self.name]
        fill = neutral(x.dtype)

        def local(loop, array):
            pads = [(0, 0)] * array.ndim
            for i, d in enumerate(x.dims):
                if d in by_dim:
                    array, pads[i] = by_dim[d].fetch(loop, array, i, fill)
            each = lambda what: tuple(
                getattr(by_dim[d], what) if d in by_dim else 1 for d in x.dims
            )
            how = {
                "window_dimensions": each("taps"),
                "window_strides": each("stride"),
                "window_dilation": each("dilation"),
                "base_dilation": (1,) * array.ndim,
                "padding": tuple(pads),
            }
            return bind_arrays(primitive, how, [array])[0]

        carried = {w.out: w.dim for w in by_dim.values() if w.out != w.dim}
        how = {"in_order": tuple(by_dim), "same_split": tuple(carried.items()), "fill": fill}
        return apply_op(self.name, local, (x,), loop=x.dims, out=out, **how)


def _pool_of(e: Equation, name: str, v: Value, out: Value) -> _Pool | None:
    """The pool from `v` to `out` that an equation is about; None for forms without a rule."""
    ones = (1,) * len(v.shape)
    params = {"base_dilation": ones, "window_dilation": ones, **e.params}
    padding = [tuple(map(int, p)) for p in params["padding"]]
    negative = any(n < 0 for around in padding for n in around)
    if negative or tuple(params["base_dilation"]) != ones or 0 in (*v.shape, *out.shape):
        return None
    before, after = dict(enumerate(v.dims)), dict(enumerate(v.dims))
    slid: dict[int, Window] = {}
    taken = {d.name for d in v.flat}
    settings = zip(
        *[params[f"window_{what}"] for what in ("dimensions", "strides", "dilation")],
        padding,
        strict=True,
    )
    for i, (taps, stride, dilation, around) in enumerate(settings):
        if (taps, stride, around) == (1, 1, (0, 0)):
            continue
        here, there = v.dims[i], out.dims[i]
        dim = here[0] if len(here) == 1 else Dim(f"space{i}__part", v.shape[i])
        new = there[0].name if len(there) == 1 else f"pooled{i}__part"
        if new in taken and new != dim.name:
            new = f"pooled{i}__part"
        (slid[i],) = windows(name, (dim,), {dim: taps}, stride, dilation, around, {dim: new})
        before[i], after[i] = (dim,), (slid[i].out,)
    return _Pool(name, before, after, slid)


@rule(*_POOLS)
def pool(at: Evaluation, e: Equation, xs: list) -> list:
    """The largest or the smallest element of each window, or their sum."""
    v, out = e.ins[0], e.outs[0]
    found = _pool_of(e, e.name, v, out)
    if found is None:
        return at.fall_back(e, xs)
    return [as_result(found(with_positions(xs[0], v, found.before)), found.after, out)]


@rule("select_and_gather_add")
def derivative(at: Evaluation, e: Equation, xs: list) -> list:
    """The derivative of a pool along a tangent: that of the element which was selected."""
    (tangent, v), out = e.ins, e.outs[0]
    found = _of_selection(e, v, out)
    if found is None:
        return at.fall_back(e, xs)
    x = with_positions(xs[1], v, found.before)
    t = reshape.transpose(with_positions(xs[0], tangent, found.before), x.dims)
    return [as_result(jvp(found, (x,), (t,))[1], found.after, out)]


@rule("select_and_scatter_add")
def gradient(at: Evaluation, e: Equation, xs: list) -> list:
    """The gradient of a pool: what each window has, for the element which was selected."""
    (source, v), out = e.ins, e.outs[0]
    found = _of_selection(e, v, source)
    if found is None:
        return at.fall_back(e, xs)
    pooled, back = vjp(found, with_positions(xs[1], v, found.before))
    (made,) = back(reshape.transpose(with_positions(xs[0], source, found.after), pooled.dims))
    return [as_result(made, found.before, out)]


def _of_selection(e: Equation, v: Value, out: Value) -> _Pool | None:
    """The pool that selects as a derivative does; None if there is none."""
    name = _SELECTED.get(str(e.params["select_prim"]))
    return _pool_of(e, name, v, out) if name and is_inexact(v.dtype) else None
