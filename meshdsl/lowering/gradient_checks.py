"""What `value_and_grad` is given and what its function returns, checked."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.tensor import Tensor, is_tensor


def parameters(params):
    """The Tensors of the first argument, which has nothing else, and its structure."""
    leaves, tree = jax.tree.flatten(params, is_leaf=is_tensor)
    tensors = [t for t in leaves if is_tensor(t)]
    if len(tensors) != len(leaves) or not tensors:
        others = sorted({type(t).__name__ for t in leaves if not is_tensor(t)})
        raise MeshDSLError(
            "value_and_grad: the first argument is a pytree of Tensors, but it has "
            f"{', '.join(others) or 'none'}"
        )
    _check_floats(params)
    return tensors, tree


def microbatches(dim: Dim | str | None, inputs: Sequence[Tensor]) -> Dim | None:
    """The dim of microbatches, which may be given by the name of a dim of the inputs."""
    if dim is None:
        return None
    known = [d for x in inputs for d in x.dims]
    dim = dim_algebra.resolve_one("value_and_grad, accumulate", known, dim, new=False)
    if not any(dim in x.dims for x in inputs):
        raise MeshDSLError(f"value_and_grad: no argument has the dim {dim} to accumulate over")
    if not dim.size:
        raise MeshDSLError(
            f"value_and_grad: {dim} has no microbatch to take a gradient of; "
            "give it a size of 1 or more"
        )
    return dim


def value_and_aux(returned, has_aux: bool):
    """The value that a function returned, a Tensor without dims, and the pytree `aux`."""
    if has_aux and (not isinstance(returned, tuple) or len(returned) != 2):
        got = dim_algebra.show(returned.dims) if is_tensor(returned) else quote(returned)
        raise MeshDSLError(
            f"value_and_grad: with has_aux the function returns (value, aux), not {got}"
        )
    value, aux = returned if has_aux else (returned, ())
    if not is_tensor(value) or value.dims:
        shown = dim_algebra.show(value.dims) if is_tensor(value) else quote(value)
        several = isinstance(value, tuple)
        advice = "set has_aux=True to return more" if several else "take md.mean or md.sum"
        raise MeshDSLError(
            f"value_and_grad: the value is a Tensor without dims, not {shown}; {advice}"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise MeshDSLError(
            f"value_and_grad: the value is a real floating-point number, not {value.dtype}; "
            "use md.cast, or md.real or md.abs of a complex number"
        )
    return value, aux


def _check_floats(params) -> None:
    """Raise a MeshDSLError for a parameter of whole numbers, with its path."""
    for path, t in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_tensor):
        if not jnp.issubdtype(t.dtype, jnp.inexact):
            at = jax.tree_util.keystr(path, simple=True, separator=".")
            what = f"`{at}`" if at else "the first argument"
            raise MeshDSLError(
                f"value_and_grad: {what} {dim_algebra.show(t.dims)} is of {t.dtype}, which has no "
                "gradient; give it as another argument, or cast it"
            )


def floating(name: str, dtype):
    """`dtype` as a dtype of floating-point numbers; None stays None."""
    if dtype is None:
        return None
    try:
        found = None if hasattr(dtype, "shape") else jnp.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise MeshDSLError(
            f"value_and_grad: {name} is a floating-point dtype such as bfloat16, not {quote(dtype)}"
        )
    return found
