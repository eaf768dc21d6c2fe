# pyright: reportOverlappingOverload=false

from collections.abc import Iterable
from typing import Any, overload

from meshdsl._tables import makes
from meshdsl._types import A, Along, Ds, One, T, Unsure, UnsureName, X
from meshdsl.dims import Dim
from meshdsl.tensor import Tensor

@makes
def bits(key: Any, dims: Dim | Iterable[Dim], *, like: Tensor | None = None) -> Tensor: ...
@makes
def uniform(
    key: Any,
    dims: Dim | Iterable[Dim],
    dtype: Any = ...,
    *,
    low: Any = 0.0,
    high: Any = 1.0,
    like: Tensor | None = None,
) -> Tensor: ...
@makes
def normal(
    key: Any, dims: Dim | Iterable[Dim], dtype: Any = ..., *, like: Tensor | None = None
) -> Tensor: ...
@makes
def truncated_normal(
    key: Any,
    dims: Dim | Iterable[Dim],
    lower: float,
    upper: float,
    dtype: Any = ...,
    *,
    like: Tensor | None = None,
) -> Tensor: ...
@makes
def exponential(key: Any, dims: Dim | Iterable[Dim], *, like: Tensor | None = None) -> Tensor: ...
@makes
def gumbel(key: Any, dims: Dim | Iterable[Dim], *, like: Tensor | None = None) -> Tensor: ...
@makes
def randint(
    key: Any, dims: Dim | Iterable[Dim], low: int, high: int, *, like: Tensor | None = None
) -> Tensor: ...
def bernoulli(
    key: Any, probability: float, dims: Dim | Iterable[Dim], *, like: Tensor | None = None
) -> Tensor: ...
def dropout(x: T, rate: float, key: Any) -> T: ...
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
def permute(key: Any, x: T, dim: Along[T]) -> T: ...
