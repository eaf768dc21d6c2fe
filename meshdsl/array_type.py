"""The type of what one device has of an array, in the place of the array.

A lowering can be run on types alone: then nothing is traced, and all that is learnt is what the
law asks for, see `lowering.replay`. The code of the lowering is the same for both. What it does to
an array stands in a few functions, and each of these knows what it does to a type.
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

_TYPES: ContextVar[bool] = ContextVar("types", default=False)
_BODY: ContextVar[object] = ContextVar("body", default=None)


class ArrayType:
    """A shape, a dtype, and the axes of the mesh over which the values may differ.

    Two of the same type are two arrays. Where code needs an array of JAX instead, and not its type
    alone, it gets one of zeros, which JAX traces.

    Attributes:
      shape: on one device.
      sizes: of the axes of the mesh.
      weak: whether the dtype gives way to that of what it meets, as that of Python's numbers.
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
        """The number of positions."""
        return len(self.shape)

    def like(
        self,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        varying: frozenset[str] | None = None,
    ) -> ArrayType:
        """Another array, of this type but for what is given."""
        return ArrayType(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.varying if varying is None else varying,
            self.sizes,
            weak=self.weak and dtype is None,
        )

    def resized(self, at: int, size: int) -> ArrayType:
        """Another array with `size` elements at position `at`."""
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
    """An array that JAX traces, of the type `x`; anything else as it is."""
    if not isinstance(x, ArrayType):
        return x
    zeros = jnp.zeros(x.shape, x.dtype)
    if x.weak:
        number = jnp.asarray(np.zeros((), x.dtype).item())
        zeros = jnp.broadcast_to(number, x.shape) if number.dtype == x.dtype else zeros
    axes = tuple(a for a in x.sizes if a in x.varying)
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


def is_array(x: Any) -> bool:
    """Whether `x` is an array of JAX, or the type of one in its place."""
    return isinstance(x, (jax.Array, ArrayType))


def only_types() -> bool:
    """Whether types run here, in the place of arrays."""
    return _TYPES.get()


@contextmanager
def of_types(types: bool = True) -> Iterator[None]:
    """Inside, what can run on types alone does so; or nothing does, where `types` is False.

    The latter is for bodies of JAX's transformations that JAX has to trace.
    """
    token = _TYPES.set(types)
    try:
        yield
    finally:
        _TYPES.reset(token)


def bodies_traced(fn: Callable) -> Callable:
    """`fn`, whose bodies JAX traces even where types take the place of arrays."""

    @wraps(fn)
    def run(*args, **how):
        if not only_types():
            return fn(*args, **how)
        with of_types(False):
            return fn(*args, **how)

    return run


@contextmanager
def body_of_types() -> Iterator[None]:
    """A body that JAX would trace by itself: what is made inside is not used outside again."""
    token = _BODY.set(object())
    try:
        yield
    finally:
        _BODY.reset(token)


def current_body() -> object:
    """The innermost `body_of_types` that runs."""
    return _BODY.get()
