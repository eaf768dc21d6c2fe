"""Ops that move every element of a dim to another index: shift, roll and flip.

Where the dim is split, the elements that a device lacks come by `ppermute`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.ops.component import apply_alike
from meshdsl.ops.declare import Draw, along_a, op
from meshdsl.ops.slicing import check_fits, windowed
from meshdsl.splits import windows
from meshdsl.tensor import Tensor

_LARGEST_MATRIX = 256  # elements of a dim that a TPU rolls by a matrix: two widths of its unit


def _by(draw: Draw, a: Dim) -> tuple[int]:
    """How far an example moves the elements."""
    return (draw.integer(-2 * a.size, 2 * a.size),)


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="ShiftOperation; zeros, and sizes that divide",
    example=along_a(lambda shift, x, a, b, by: shift(x, a, by, fill=2), _by),
    result="same",
)
def shift(x: Tensor, dim: Dim | str, by: int, fill=0) -> Tensor:
    """`x` with element `i` of `dim` at `i + by`.

    What leaves the dim is dropped, and `fill` stands where nothing arrives.
    """
    dim = dim_algebra.find("shift", x.dims, dim)
    check_fits("shift", x, fill)
    return windowed("shift", x, dim, dim, -by, fill)


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    mesh_tensorflow="ShiftOperation with `wrap`; sizes that divide",
    example=along_a(lambda roll, x, a, b, by: roll(x, a, by), _by),
    result="same",
)
def roll(x: Tensor, dim: Dim | str, by: int, *, finite: bool = False) -> Tensor:
    """`x` with element `i` of `dim` at `i + by`; what leaves at one end comes back at the other.

    Args:
      finite: whether all elements are finite numbers. If so, a TPU multiplies by a permutation
        matrix where `dim` is the last, has few elements and is whole, which is several times as
        fast; an element that is not finite would make NaN of all that lie along `dim` with it.
    """
    dim = dim_algebra.find("roll", x.dims, dim)
    by = by % dim.size if dim.size else 0
    if by == 0:
        return x
    at = x.dims.index(dim)

    def local(loop: DeviceLoop, a):
        if not loop.axes(dim):
            by_matrix = finite and loop.platform == "tpu" and dim.size <= _LARGEST_MATRIX
            return _permuted(a, by) if by_matrix and at == a.ndim - 1 else jnp.roll(a, by, at)
        size = loop.size(dim)
        ahead, wrapped = (
            [j * size - by + turn for j in range(loop.parts(dim))] for turn in (0, dim.size)
        )
        pieces = windows.pieces(ahead, size, size, dim.size - by) + windows.pieces(
            wrapped, size, size, dim.size
        )
        return loop.exchange(a, at, dim, pieces, size)

    return apply_alike("roll", local, x, in_order=(dim,), linear=True, fill=None)


def _permuted(a, by: int):
    """`a`, rolled along its last dim by a product with a permutation matrix.

    Each element is a sum of itself and zeros: exact, if the product keeps all digits.
    """
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return jnp.roll(a, by, -1)
    matrix = jnp.roll(jnp.eye(a.shape[-1], dtype=a.dtype), by, -1)
    precision = None if a.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST
    return jnp.matmul(a, matrix, precision=precision)


@op(
    computes="its own elements of the result; fetches those that it lacks",
    moves=("ppermute",),
    example=along_a(),
    result="same",
)
def flip(x: Tensor, dim: Dim | str) -> Tensor:
    """`x` with the elements of `dim` in the opposite order."""
    dim = dim_algebra.find("flip", x.dims, dim)
    at = x.dims.index(dim)

    def local(loop: DeviceLoop, a):
        size = loop.size(dim)
        starts = [dim.size - (j + 1) * size for j in range(loop.parts(dim))]
        return jnp.flip(loop.fetch(a, at, dim, starts, size), at)

    return apply_alike("flip", local, x, in_order=(dim,), linear=True, fill=None)
