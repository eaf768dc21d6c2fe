"""Arrays of the plain function as Tensors by their factors, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.plain_jax.positions import as_positions, constant_of, ordered
from meshdsl.plain_jax.program import Value, Variable
from meshdsl.tensor import Parameter, Tensor, is_tensor


def packed(x: Any, v: Variable, *, parameter: bool) -> Any:
    """An array of the shape of `v` as a Tensor. Random keys stay as they are."""
    if v.is_key or is_tensor(x):
        return x
    shape = [d.size for d in v.flat]
    if isinstance(x, jax.ShapeDtypeStruct):
        array: Any = jax.ShapeDtypeStruct(shape, x.dtype)
    else:
        array = jnp.reshape(x, shape)
    return Tensor(array, v.flat, Parameter() if parameter else None)


def unpacked(x: Any, v: Value) -> Any:
    """A Tensor that stands for `v` as the array that the plain function has."""
    if not is_tensor(x):
        return x
    if isinstance(x.stored, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(v.shape, x.dtype)
    return jnp.reshape(ordered(x, v).array, v.shape)


def entering(x: Any, v: Variable) -> Any:
    """An argument as the evaluation takes it: with the dims of `v`, whatever it calls them."""
    if v.is_key:
        return x
    if not is_tensor(x):
        array = jnp.asarray(x)
        return constant_of(array, v) if v.shape else array
    if set(x.dims) == set(v.flat):
        return x
    return as_positions(x, Variable((x.size,), x.dtype, dims=(x.dims,)), {0: v.flat})
