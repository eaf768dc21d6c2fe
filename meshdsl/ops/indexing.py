"""Indexing by name: `x["length", 0:4]`, `x["batch", 0, "length", ids]`.

Importing this file gives it to the class `Tensor`. Whole numbers and slices mean what they mean in
NumPy. Both are linear, so a pending sum keeps waiting, and along a split dim nothing moves but the
elements that are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import COMPUTED, MeshDSLError, is_whole, quote, whole_number
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops.index import take
from meshdsl.ops.slicing import windowed
from meshdsl.tensor import Tensor, is_tensor

_HOW = 't["{0}", 3], t["{0}", 0:4] or t["{0}", ids]'


def _getitem(x: Tensor, index) -> Tensor:
    """Elements of `x`, by pairs of a dim (or its name) and an index along it.

        x["length", 0:4]              # [batch, length, d_model] -> [batch, length=4, d_model]
        x["batch", 0, "length", -1]   # -> [d_model]
        x["length", ids]              # md.take(x, ids, "length")

    A whole number removes its dim. A slice, with any step, keeps it under its name with another
    size. Negative numbers count from the end, and slices reach no further than the dim, as in
    NumPy. A Tensor of whole numbers looks elements up as `md.take` does, for which an index outside
    of the dim, also a negative one, gives zeros. Several pairs are taken one after another, from
    the left.

    Raises:
      MeshDSLError: the index is not made of such pairs, `x` lacks a dim, a dim is named twice, or a
        whole number is outside of its dim.
    """
    numbers: dict[Dim, int] = {}
    for name, at in _pairs(x, index):
        if is_whole(at):
            dim = dim_algebra.find("t[...]", x.dims, name)
            numbers[dim] = _inside(x, dim, whole_number("t[...]", at))
            continue
        x, numbers = _elements(x, numbers), {}
        dim = dim_algebra.find("t[...]", x.dims, name)
        x = _sliced(x, dim, at) if isinstance(at, slice) else take(x, _ids(x, dim, at), dim)
    return _elements(x, numbers)


def _pairs(x: Tensor, index) -> list[tuple[Dim | str, object]]:
    """The dims of an index, each with what is to be taken of it."""
    first = x.dims[0].name if x.dims else "dim"
    given = index if isinstance(index, tuple) else (index,)
    dims, indices = given[::2], given[1::2]
    if not dims or not all(isinstance(d, (Dim, str)) for d in dims):
        raise MeshDSLError(
            f"t[...], or a loop over t: the dims of a Tensor {dim_algebra.show(x.dims)} have "
            f"names, no order; take elements by name: {_HOW.format(first)}; "
            f'md.unstack(t, "{first}") gives all'
        )
    names = [d.name if isinstance(d, Dim) else d for d in dims]
    if len(dims) != len(indices):
        dim_algebra.find("t[...]", x.dims, names[-1])
        raise MeshDSLError(
            f"t[...]: an index is pairs of a dim and what to take of it, such as "
            f"{_HOW.format(names[-1])}; nothing stands after `{names[-1]}`, in a Tensor "
            f"{dim_algebra.show(x.dims)}"
        )
    for name in names:
        if names.count(name) > 1:
            raise MeshDSLError(
                f"t[...]: `{name}` is indexed twice, in a Tensor {dim_algebra.show(x.dims)}; write "
                f'one index after another, t["{name}", ...]["{name}", ...], where that is meant'
            )
    return list(zip(dims, indices, strict=True))


def _inside(x: Tensor, dim: Dim, at: int) -> int:
    """The index `at`, which may count from the end, as one that counts from the start."""
    if not -dim.size <= at < dim.size:
        legal = f"it goes from {-dim.size} to {dim.size - 1}" if dim.size else "it has no element"
        raise MeshDSLError(
            f"t[...]: {at} is outside of {dim} in a Tensor {dim_algebra.show(x.dims)}; {legal}"
        )
    return at % dim.size


def _sliced(x: Tensor, dim: Dim, at: slice) -> Tensor:
    """The elements of a Python slice along `dim`, which keeps its name."""
    for what in ("start", "stop", "step"):
        if (number := getattr(at, what)) is not None and not is_whole(number):
            more = f"; {COMPUTED}" if hasattr(number, "dtype") else ""
            raise MeshDSLError(
                f"t[...]: the {what} of a slice of {dim} is a whole number or None, not "
                f"{quote(number)}{more}"
            )
    if at.step is not None and at.step == 0:
        raise MeshDSLError(f"t[...]: the step of a slice of {dim} is 0; 1 takes every element")
    wanted = range(*at.indices(dim.size))
    new = Dim(dim.name, len(wanted))
    start = wanted.start if new.size else 0
    return windowed("slice", x, dim, new, start, step=wanted.step)


def _ids(x: Tensor, dim: Dim, at) -> Tensor:
    """`at` as a Tensor of indices for `md.take`."""
    if is_tensor(at):
        return at
    if getattr(at, "shape", None) == () and jnp.issubdtype(at.dtype, jnp.integer):
        return Tensor(at, ())
    advice = "; give an array dims with md.tensor" if hasattr(at, "shape") else ""
    raise MeshDSLError(
        f"t[...]: along {dim} of {dim_algebra.show(x.dims)} goes a whole number, a slice or a "
        f"Tensor of whole numbers, not {quote(at)}{advice}"
    )


def _elements(x: Tensor, numbers: Mapping[Dim, int]) -> Tensor:
    """`x` at one index along each of some dims, which the result lacks.

    Of a split dim one device has the element: the result is a sum over the devices, to which the
    others add zeros.
    """
    if not numbers:
        return x
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # random keys cannot be added up

    def local(loop: DeviceLoop, array):
        here = None
        for at in reversed(range(len(x.dims))):
            dim = x.dims[at]
            if dim not in numbers:
                continue
            if not loop.axes(dim):
                array = lax.index_in_dim(array, numbers[dim], at, keepdims=False)
                continue
            index, size = numbers[dim] - loop.offset(dim), loop.size(dim)
            inside = (index >= 0) & (index < size)
            here = inside if here is None else here & inside
            index = jnp.clip(index, 0, size - 1)
            array = lax.dynamic_index_in_dim(array, index, at, keepdims=False)
        return array if here is None else jnp.where(here, array, jnp.zeros((), array.dtype))

    return apply_op(
        "index",
        local,
        (x,),
        loop=x.dims,
        out=dim_algebra.without(x.dims, numbers),
        unsplit=tuple(numbers) if is_key else (),
        in_order=tuple(numbers),
        linear=True,
        fill=None,
    )


Tensor.__getitem__ = _getitem  # pyright: ignore[reportAttributeAccessIssue] (the stub has it)
