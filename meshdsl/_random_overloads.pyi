# pyright: reportOverlappingOverload=false
"""The ops of `md.random` that are typed by hand; the others are in `ops/random.pyi`."""

from typing import Any, overload

from meshdsl._types import A, Along, Ds, One, T, Unsure, UnsureName, X
from meshdsl.dims import Dim
from meshdsl.tensor import Tensor

@overload
def categorical(
    key: Any,
    logits: Unsure,
    dim: Dim | str,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor: ...
@overload
def categorical(
    key: Any,
    logits: Tensor,
    dim: UnsureName,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor: ...
@overload
def categorical(
    key: Any,
    logits: Tensor[*Ds, X],
    dim: One[X],
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor[*Ds]: ...
@overload
def categorical(
    key: Any,
    logits: Tensor[X, *Ds],
    dim: One[X],
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor[*Ds]: ...
@overload
def categorical(
    key: Any,
    logits: Tensor[A, X, *Ds],
    dim: One[X],
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor[A, *Ds]: ...
@overload
def categorical(
    key: Any,
    logits: T,
    dim: Along[T],
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor: ...
@overload
def permutation(key: Any, dim: UnsureName, *, like: Tensor | None = None) -> Tensor: ...
@overload
def permutation(key: Any, dim: Dim[X], *, like: Tensor | None = None) -> Tensor[X]: ...
@overload
def permutation(key: Any, dim: str, *, like: Tensor) -> Tensor: ...
