"""Checks of arguments that several ops make; each raises a MeshDSLError that names the op."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp

from meshdsl.dims import Dim, Dims, show
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.tensor import Tensor


def one_of(what: str, value, known: Iterable[str]) -> None:
    """Check that `value` is one of some words. `what` is `attention: `implementation``."""
    known = tuple(known)
    if value not in known:
        raise MeshDSLError(
            f"{what} is one of {', '.join(map(repr, known))}, not "
            f"{quote(value)}{nearest(str(value), known)}"
        )


def checked_softcap(name: str, softcap) -> float | None:
    """`softcap` as a float, after checking that it is above 0; None for none."""
    if softcap is not None and not softcap > 0:
        raise MeshDSLError(f"{name}: `softcap` is a number above 0, not {quote(softcap)}")
    return None if softcap is None else float(softcap)


def check_indices(name: str, ids: Tensor, indexed: Dims = (), *, what: str = "indices") -> None:
    """Check that `ids` are whole numbers, and lack the dims that they are indices of."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise MeshDSLError(
            f"{name}: the {what} {show(ids.dims)} are {ids.dtype}, not whole numbers"
        )
    for dim in indexed:
        if dim in ids.dims:
            raise MeshDSLError(
                f"{name}: the {what} {show(ids.dims)} have the dim {dim} that they index; rename it"
            )


def check_new(name: str, x: Tensor, dim: Dim) -> None:
    """Check that `x` has no dim of the name that a result's dim is to have beside its own."""
    if dim.name in [d.name for d in x.dims]:
        raise MeshDSLError(f"{name}: {show(x.dims)} has a dim `{dim.name}` already")
