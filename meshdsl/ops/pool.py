"""Pooling: the maximum or the mean of sliding windows.

A split dim costs the halo of its windows, as in `conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops.arrays import laid_along
from meshdsl.ops.comparison import check_real
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.sliding_windows import Window, by_dim, windows
from meshdsl.tensor import Tensor

NOTHING: Mapping = MappingProxyType({})


def _pool_example(pool: Callable, draw: Draw) -> Case:
    a, b, c = draw.dims("a", "b", "c")
    window = {b: draw.integer(1, max(1, b.size))}
    stride, padding = draw.pick(1, 2, 3), draw.pick("SAME", "VALID")
    call = lambda x: pool(x, window, stride=stride, padding=padding, into={b: "v"})
    return Case(call, (draw.tensor(a, b, c),), (b,))


_declare_pool = op(
    computes="its outputs, of the elements that it has and the halo of their windows",
    moves=("ppermute",),
    mesh_tensorflow="PoolOperation; no split of spatial dims, windows only side by side",
    example=_pool_example,
)


@_declare_pool
def max_pool(
    x: Tensor,
    window: Mapping[Dim | str, int],
    *,
    stride=None,
    padding="VALID",
    into: Mapping = NOTHING,
) -> Tensor:
    """The largest element of each window. Of elements that tie, the first has the gradient.

        max_pool(image, {height: 3, width: 3}, stride=2, padding="SAME")

    Args:
      window: for each dim the size of the windows along it.
      stride: a number, or one for each dim; by default the size of the window, so that windows lie
        side by side.
      padding, into: as in `conv`. Padding is never the maximum.

    Raises:
      MeshDSLError: a dim is missing, a setting is not legal, a window is larger than the padded dim
        or has only padding, or `x` is complex.
    """
    check_real("max_pool", x)
    inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    lowest = np.array(-np.inf if inexact else x.dtype != bool and jnp.iinfo(x.dtype).min, x.dtype)

    def local(_, array, slid, reduce: Callable):
        return reduce(array, lowest, lax.max)

    return _pool("max_pool", x, window, stride, padding, into, local, lowest)


@_declare_pool
def mean_pool(
    x: Tensor,
    window: Mapping[Dim | str, int],
    *,
    stride=None,
    padding="VALID",
    into: Mapping = NOTHING,
) -> Tensor:
    """The mean of each window, over its elements of `x` alone: a constant stays that constant.

    Padding is not counted; to count it as zeros, use `pad` first. Arguments and errors are those of
    `max_pool`.
    """

    def local(loop: DeviceLoop, array, slid: dict[int, Window], reduce: Callable):
        dtype = array.dtype
        total = reduce(array.astype(jnp.promote_types(dtype, jnp.float32)), 0.0, lax.add)
        for i, w in slid.items():
            total = total / laid_along(_counts(loop, w), i, array.ndim)
        return total.astype(dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.float32)

    return _pool("mean_pool", x, window, stride, padding, into, local, 0)


def _counts(loop: DeviceLoop, w: Window):
    """How many elements each window of this device has; 1 for outputs that are padding."""
    counts, parts = w.real_taps(), loop.parts(w.dim)
    if counts.min() == counts.max():
        return np.full(1, counts[0], np.float32)
    size = loop.size(w.out)
    table = np.pad(counts, (0, parts * size - len(counts)), constant_values=1).reshape(parts, size)
    part = loop.offset(w.dim) // loop.size(w.dim)
    return jnp.asarray(table, jnp.float32)[part]


def _pool(name: str, x: Tensor, window, stride, padding, into, local: Callable, fill) -> Tensor:
    """An op that reduces each window.

    Args:
      local: reduces the windows of this device. It is called with the loop, the array, the windows
        by their positions, and `lax.reduce_window` for these windows.
      fill: the elements of padding.
      The others: as in `max_pool`.
    """
    sizes = by_dim(f"{name}, window", window, x.dims)
    if stride is None or isinstance(stride, Mapping):
        stride = sizes | by_dim(f"{name}, stride", stride or NOTHING, sizes)
    slid = {x.dims.index(w.dim): w for w in windows(name, x.dims, sizes, stride, 1, padding, into)}
    for w in slid.values():
        if not w.real_taps().all():
            raise MeshDSLError(
                f"{name}: with {w.low} and {w.high} around {w.dim}, a window of {w.taps} has only "
                "padding"
            )
    out = dim_algebra.distinct(
        [slid[i].out if i in slid else d for i, d in enumerate(x.dims)], name
    )

    def pool(loop: DeviceLoop, array):
        pads = [(0, 0)] * array.ndim
        for i, w in slid.items():
            array, pads[i] = w.fetch(loop, array, i, fill)
        each = lambda what: [getattr(slid[i], what) if i in slid else 1 for i in range(array.ndim)]
        reduce = partial(
            lax.reduce_window,
            window_dimensions=each("taps"),
            window_strides=each("stride"),
            padding=pads,
        )
        return local(loop, array, slid, reduce)

    return apply_op(
        name,
        pool,
        (x,),
        loop=x.dims,
        out=out,
        in_order=tuple(w.dim for w in slid.values()),
        same_split=tuple((w.out, w.dim) for w in slid.values() if w.out != w.dim),
        fill=fill,
    )
