"""The type of the part of an array that one device has, in the place of the array.

A function can be lowered on types alone, see `record_from_types` in `lowering.lower`. JAX then
traces almost nothing, and what is found is which op runs how, and what it moves between devices.
The code of the lowering is the same for arrays and for types: the few functions that compute with
an array know what they do to its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_TYPES: ContextVar[bool] = ContextVar("types", default=False)  # see `only_types`
_BODY: ContextVar[object] = ContextVar("body", default=None)  # see `current_body`


class ArrayType:
    """A shape, a dtype, and the axes of the mesh over which the values may differ.

    It stands for one array: two objects stand for two arrays, even where they say the same. An
    operator of Python (`x + y`, `x[0]`) and a function of JAX make an array of it first, see
    `traced`.

    Attributes:
      shape: on one device.
      varying: the axes along which devices may have different values, as in the types of JAX.
      sizes: of the axes of the mesh.
      weak: whether the dtype gives way to the one that it is combined with, as those of Python's
        numbers do.
    """

    __slots__ = ("dtype", "shape", "sizes", "varying", "weak")

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        varying: frozenset[str],
        sizes: Mapping[str, int],
        *,
        weak: bool = False,
    ):
        self.shape = tuple(shape)
        self.dtype = dtype
        self.varying = varying
        self.sizes = sizes
        self.weak = weak

    def __repr__(self) -> str:
        return f"ArrayType({self.dtype}{list(self.shape)}, varying over {sorted(self.varying)})"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of positions in the shape."""
        return len(self.shape)

    def like(
        self,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        varying: frozenset[str] | None = None,
    ) -> ArrayType:
        """The type of another array, which is this one but for what is given."""
        return ArrayType(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.varying if varying is None else varying,
            self.sizes,
            weak=self.weak and dtype is None,
        )

    def resized(self, at: int, size: int) -> ArrayType:
        """The type of another array, with `size` elements at position `at` of the shape."""
        return self.like(shape=(*self.shape[:at], size, *self.shape[at + 1 :]))

    def parts(self, axes: Sequence[str]) -> int:
        """The number of devices along `axes`."""
        return math.prod(self.sizes[a] for a in axes)

    def astype(self, dtype: Any) -> ArrayType:
        """The same elements in another dtype."""
        dtype = jnp.dtype(dtype)
        return self if dtype == self.dtype and not self.weak else self.like(dtype=dtype)

    def transpose(self, order: Sequence[int]) -> ArrayType:
        """The same elements with the positions in another order."""
        return self.like(shape=[self.shape[i] for i in order])

    def __jax_array__(self) -> jax.Array:
        return traced(self)


def _operator(name: str):
    """The method of this name of JAX's arrays, for a type: on arrays of zeros, see `traced`."""

    def operate(self, *others):
        return getattr(traced(self), name)(*map(traced, others))

    operate.__name__ = name
    return operate


for _name in (
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r")),
    *("__neg__", "__pow__", "__getitem__", "__lt__", "__le__", "__gt__", "__ge__"),
    "reshape",
):
    setattr(ArrayType, _name, _operator(_name))


def traced(x: Any) -> Any:
    """An array of zeros of the type `x`, for code that needs one of JAX; anything else as it is."""
    if not isinstance(x, ArrayType):
        return x
    zeros = jnp.zeros(x.shape, x.dtype)
    if x.weak:
        number = jnp.asarray(np.zeros((), x.dtype).item())  # JAX's numbers from Python's are weak
        zeros = jnp.broadcast_to(number, x.shape) if number.dtype == x.dtype else zeros
    axes = tuple(a for a in x.sizes if a in x.varying)
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


def is_array(x: Any) -> bool:
    """Whether `x` is an array of JAX, or the type of one in its place."""
    return isinstance(x, (jax.Array, ArrayType))


def only_types() -> bool:
    """Whether code that runs here gets types in the place of arrays."""
    return _TYPES.get()


@contextmanager
def of_types(types: bool = True) -> Iterator[None]:
    """Inside, code gets types in the place of arrays; with `types=False` it gets arrays again.

    The latter is for the body of a transformation that JAX has to trace.
    """
    token = _TYPES.set(types)
    try:
        yield
    finally:
        _TYPES.reset(token)


def bodies_traced(fn: Callable) -> Callable:
    """A decorator for ops that take functions, such as `md.cond`: JAX traces these functions.

    It does so even where types take the place of arrays.
    """

    @wraps(fn)
    def run(*args, **how):
        if not only_types():
            return fn(*args, **how)
        with of_types(False):
            return fn(*args, **how)

    return run


@contextmanager
def body_of_types() -> Iterator[None]:
    """For the body of a transformation, called on types.

    JAX would trace it apart from what surrounds it, so arrays that are made inside may not be kept
    for use outside. `current_body` tells the two apart.
    """
    token = _BODY.set(object())
    try:
        yield
    finally:
        _BODY.reset(token)


def current_body() -> object:
    """What stands for the innermost `body_of_types` that runs; None outside of all."""
    return _BODY.get()
