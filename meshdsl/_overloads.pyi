# pyright: reportOverlappingOverload=false
"""The types of ops whose result depends on their arguments in ways of its own, by hand.

All other ops are in `_functions.pyi`, which is generated. `_types.pyi` has the vocabulary,
`_tables.pyi` the overloads that many ops share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Concatenate, Literal, TypeAlias, overload

from jax.sharding import Mesh

from meshdsl._tables import slides
from meshdsl._types import (
    A,
    Along,
    B,
    C,
    D,
    DimOf,
    Dims1,
    Dims2,
    Dims3,
    Dims4,
    Dims5,
    Dims6,
    Ds,
    E,
    Elliptic,
    F,
    Fits,
    HasName,
    L,
    Lowered,
    M,
    Many,
    Named,
    Number,
    One,
    Operand,
    P,
    Permutes,
    R,
    Some,
    T,
    Unsure,
    UnsureName,
    UnsureNames,
    Which,
    X,
    Y,
)
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.tensor import Tensor

_Rest: TypeAlias = tuple[EllipsisType, X]
_Rest2: TypeAlias = tuple[EllipsisType, X, Y]

# Component-wise

@overload
def map(
    fn: Callable[..., Any],
    x: Tensor[*Ds],
    /,
    *operands: Number,
    name: str | None = None,
    linear: bool = False,
    **options: Any,
) -> Tensor[*Ds]: ...
@overload
def map(
    fn: Callable[..., Any],
    *operands: Operand,
    name: str | None = None,
    linear: bool = False,
    **options: Any,
) -> Tensor: ...

# Contracting

def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    queries: Dim | str | None = ...,
    memory: Dim | str = ...,
    head_dim: Dim | str = ...,
    causal: bool = False,
    segments: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    positions: tuple[Tensor | None, Tensor | None] | None = None,
    implementation: str | None = None,
) -> Tensor: ...
def cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    vocab: Dim | str = ...,
    bias: Tensor | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    dtype: Any = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: UnsureNames,
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def einsum(
    *tensors: Tensor,
    out: tuple[()],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[()]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dim[A] | Dims1[A],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dims2[A, B],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A, B]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dims3[A, B, C],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A, B, C]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dims4[A, B, C, D],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A, B, C, D]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dims5[A, B, C, D, E],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A, B, C, D, E]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Dims6[A, B, C, D, E, F],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[A, B, C, D, E, F]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Elliptic,
    contract: Some[Tensor],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def einsum(
    x: Unsure,
    /,
    *tensors: Tensor,
    out: Elliptic,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def einsum(
    x: Tensor,
    w: Unsure,
    /,
    *,
    out: Elliptic,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def einsum(
    x: T,
    /,
    *tensors: Tensor,
    out: _Rest[DimOf[T]] | _Rest2[DimOf[T], Any] | _Rest2[Any, DimOf[T]],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def einsum(
    x: Tensor[*Ds, X],
    w: Tensor[X, A] | Tensor[A, X],
    /,
    *,
    out: _Rest[Dim[A]],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[*Ds, A]: ...
@overload
def einsum(
    x: Tensor[*Ds, X],
    w: Tensor[X, A, B],
    /,
    *,
    out: _Rest2[Dim[A], Dim[B]],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[*Ds, A, B]: ...
@overload
def einsum(
    x: Tensor[*Ds, X, Y],
    w: Tensor[X, Y, A],
    /,
    *,
    out: _Rest[Dim[A]],
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor[*Ds, A]: ...
@overload
def einsum(
    *tensors: Tensor,
    out: Elliptic | str | Iterable[Dim | str],
    contract: Which[Tensor] = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...

# Shape

@overload
def rename(x: Tensor, old: Mapping[Any, Dim | str], new: None = None) -> Tensor: ...
@overload
def rename(x: Unsure, old: Dim | str, new: Dim | str) -> Tensor: ...
@overload
def rename(x: Tensor, old: UnsureName, new: Dim | str) -> Tensor: ...
@overload
def rename(x: Tensor, old: Dim | str, new: UnsureName) -> Tensor: ...
@overload
def rename(x: Tensor[*Ds, X], old: One[X], new: Dim[L]) -> Tensor[*Ds, L]: ...
@overload
def rename(x: Tensor[X, *Ds], old: One[X], new: Dim[L]) -> Tensor[L, *Ds]: ...
@overload
def rename(x: Tensor[A, X, *Ds], old: One[X], new: Dim[L]) -> Tensor[A, L, *Ds]: ...
@overload
def rename(x: Tensor[A, B, X, *Ds], old: One[X], new: Dim[L]) -> Tensor[A, B, L, *Ds]: ...
@overload
def rename(x: Tensor[A, B, C, X, *Ds], old: One[X], new: Dim[L]) -> Tensor[A, B, C, L, *Ds]: ...
@overload
def rename(
    x: Tensor[A, B, C, D, X, *Ds], old: One[X], new: Dim[L]
) -> Tensor[A, B, C, D, L, *Ds]: ...
@overload
def rename(x: T, old: Along[T], new: Dim | str) -> Tensor: ...
@overload
def transpose(x: Tensor, dims: UnsureNames) -> Tensor: ...
@overload
def transpose(x: Permutes[Tensor[A], tuple[Any]], dims: Dims1[A]) -> Tensor[A]: ...
@overload
def transpose(x: Permutes[Tensor[A, B], tuple[Any, Any]], dims: Dims2[A, B]) -> Tensor[A, B]: ...
@overload
def transpose(
    x: Permutes[Tensor[A, B, C], tuple[Any, Any, Any]], dims: Dims3[A, B, C]
) -> Tensor[A, B, C]: ...
@overload
def transpose(
    x: Permutes[Tensor[A, B, C, D], tuple[Any, Any, Any, Any]], dims: Dims4[A, B, C, D]
) -> Tensor[A, B, C, D]: ...
@overload
def transpose(
    x: Permutes[Tensor[A, B, C, D, E], tuple[Any, Any, Any, Any, Any]], dims: Dims5[A, B, C, D, E]
) -> Tensor[A, B, C, D, E]: ...
@overload
def transpose(
    x: Permutes[Tensor[A, B, C, D, E, F], tuple[Any, Any, Any, Any, Any, Any]],
    dims: Dims6[A, B, C, D, E, F],
) -> Tensor[A, B, C, D, E, F]: ...
@overload
def transpose(x: T, dims: Which[T]) -> Tensor: ...
@overload
def broadcast(x: Tensor, dims: UnsureNames) -> Tensor: ...
@overload
def broadcast(x: Unsure | Fits[Tensor[A]], dims: Dim[A] | Dims1[A]) -> Tensor[A]: ...
@overload
def broadcast(x: Unsure | Fits[Tensor[A, B]], dims: Dims2[A, B]) -> Tensor[A, B]: ...
@overload
def broadcast(x: Unsure | Fits[Tensor[A, B, C]], dims: Dims3[A, B, C]) -> Tensor[A, B, C]: ...
@overload
def broadcast(
    x: Unsure | Fits[Tensor[A, B, C, D]], dims: Dims4[A, B, C, D]
) -> Tensor[A, B, C, D]: ...
@overload
def broadcast(
    x: Unsure | Fits[Tensor[A, B, C, D, E]], dims: Dims5[A, B, C, D, E]
) -> Tensor[A, B, C, D, E]: ...
@overload
def broadcast(
    x: Unsure | Fits[Tensor[A, B, C, D, E, F]], dims: Dims6[A, B, C, D, E, F]
) -> Tensor[A, B, C, D, E, F]: ...
@overload
def broadcast(x: Tensor, dims: tuple[UnsureName, ...] | Named | Many) -> Tensor: ...
@overload
def reshape(x: Tensor, to: UnsureNames, **sizes: Dim | int) -> Tensor: ...
@overload
def reshape(x: Tensor, to: tuple[()], **sizes: Dim | int) -> Tensor[()]: ...
@overload
def reshape(x: Tensor, to: Dims1[A], **sizes: Dim | int) -> Tensor[A]: ...
@overload
def reshape(x: Tensor, to: Dims2[A, B], **sizes: Dim | int) -> Tensor[A, B]: ...
@overload
def reshape(x: Tensor, to: Dims3[A, B, C], **sizes: Dim | int) -> Tensor[A, B, C]: ...
@overload
def reshape(x: Tensor, to: Dims4[A, B, C, D], **sizes: Dim | int) -> Tensor[A, B, C, D]: ...
@overload
def reshape(x: Tensor, to: Dims5[A, B, C, D, E], **sizes: Dim | int) -> Tensor[A, B, C, D, E]: ...
@overload
def reshape(
    x: Tensor, to: Dims6[A, B, C, D, E, F], **sizes: Dim | int
) -> Tensor[A, B, C, D, E, F]: ...
@overload
def reshape(x: Tensor, to: str | Iterable[Dim | str], **sizes: Dim | int) -> Tensor: ...

# Indexing

@overload
def take(x: Unsure, ids: Tensor, dim: Along[Tensor]) -> Tensor: ...
@overload
def take(x: Tensor, ids: Unsure, dim: Along[Tensor]) -> Tensor: ...
@overload
def take(x: Tensor, ids: Tensor, dim: UnsureName) -> Tensor: ...
@overload
def take(x: Tensor[X], ids: Tensor[*Ds], dim: One[X]) -> Tensor[*Ds]: ...
@overload
def take(x: Tensor[*Ds, X], ids: Tensor[*Ds], dim: One[X]) -> Tensor[*Ds]: ...
@overload
def take(x: Tensor[X, A], ids: HasName[A], dim: One[X]) -> Tensor: ...
@overload
def take(x: Tensor[X, A], ids: Tensor[*Ds], dim: One[X]) -> Tensor[*Ds, A]: ...
@overload
def take(x: T, ids: Tensor, dim: Along[T]) -> Tensor: ...
@overload
def one_hot(ids: Unsure, dim: Dim, dtype: Any = ...) -> Tensor: ...
@overload
def one_hot(ids: Tensor, dim: UnsureName, dtype: Any = ...) -> Tensor: ...
@overload
def one_hot(ids: Tensor[*Ds], dim: Dim[X], dtype: Any = ...) -> Tensor[*Ds, X]: ...
@overload
def iota(dim: UnsureName, dtype: Any = ..., *, like: Tensor | None = None) -> Tensor: ...
@overload
def iota(dim: Dim[X], dtype: Any = ..., *, like: Tensor | None = None) -> Tensor[X]: ...
@overload
def iota(dim: str, dtype: Any = ..., *, like: Tensor) -> Tensor: ...
def segment_sum(x: Tensor, ids: T, dim: Which[T], segments: Dim) -> Tensor: ...
@overload
def bincount(ids: Tensor, bins: UnsureName, *, weights: Tensor | None = None) -> Tensor: ...
@overload
def bincount(ids: Tensor, bins: Dim[X], *, weights: None = None) -> Tensor[X]: ...
@overload
def bincount(ids: Tensor, bins: Dim, *, weights: Tensor | None = None) -> Tensor: ...

# Cutting and joining

@overload
def slice(x: T, dim: Along[T], start: int, size: int) -> T: ...
@overload
def slice(x: T, dim: Along[T], start: int, size: Dim) -> Tensor: ...
@overload
def pad(
    x: T, dim: Along[T], before: int = 0, after: int = 0, value: Any = 0, *, out: None = None
) -> T: ...
@overload
def pad(
    x: T, dim: Along[T], before: int = 0, after: int = 0, value: Any = 0, *, out: Dim | str
) -> Tensor: ...
@overload
def split(x: T, dim: Along[T], sizes: int | Sequence[int]) -> tuple[T, ...]: ...
@overload
def split(x: T, dim: Along[T], sizes: Sequence[int | Dim]) -> tuple[Tensor, ...]: ...
@overload
def concat(tensors: Sequence[Tensor[*Ds]], dim: Dim | str, *, out: None = None) -> Tensor[*Ds]: ...
@overload
def concat(
    tensors: Sequence[Tensor], dim: Dim | str, *, out: Dim | str | None = None
) -> Tensor: ...
@overload
def stack(tensors: Sequence[Unsure], dim: Dim | str) -> Tensor: ...
@overload
def stack(tensors: Sequence[Tensor], dim: UnsureName) -> Tensor: ...
@overload
def stack(tensors: Sequence[Tensor[*Ds]], dim: Dim[L]) -> Tensor[L, *Ds]: ...
@overload
def stack(tensors: Sequence[Tensor], dim: Dim | str) -> Tensor: ...
@overload
def top_k(x: T, dim: Along[T], k: int) -> tuple[T, T]: ...
@overload
def top_k(x: T, dim: Along[T], k: Dim) -> tuple[Tensor, Tensor]: ...

# Matrices of two dims

@overload
def eye(a: UnsureName, b: Dim, dtype: Any = ..., *, like: Tensor | None = None) -> Tensor: ...
@overload
def eye(a: Dim, b: UnsureName, dtype: Any = ..., *, like: Tensor | None = None) -> Tensor: ...
@overload
def eye(a: Dim[A], b: Dim[B], dtype: Any = ..., *, like: Tensor | None = None) -> Tensor[A, B]: ...
@overload
def eye(a: Dim | str, b: Dim | str, dtype: Any = ..., *, like: Tensor) -> Tensor: ...

# Windows

@slides
def conv(
    x: Tensor,
    kernel: Tensor,
    over: Mapping[Any, Dim | str],
    *,
    out: Elliptic | str | Iterable[Dim | str],
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = "SAME",
    into: Mapping[Any, Dim | str] = ...,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@slides
def conv_transpose(
    x: Tensor,
    kernel: Tensor,
    over: Mapping[Any, Dim | str],
    *,
    out: Elliptic | str | Iterable[Dim | str],
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = "SAME",
    into: Mapping[Any, Dim | str] = ...,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor: ...
@overload
def max_pool(
    x: T, window: Mapping[Any, int], *, stride: Any = None, padding: Any = "VALID"
) -> T: ...
@overload
def max_pool(
    x: Tensor,
    window: Mapping[Any, int],
    *,
    stride: Any = None,
    padding: Any = "VALID",
    into: Mapping[Any, Dim | str] = ...,
) -> Tensor: ...
@overload
def mean_pool(
    x: T, window: Mapping[Any, int], *, stride: Any = None, padding: Any = "VALID"
) -> T: ...
@overload
def mean_pool(
    x: Tensor,
    window: Mapping[Any, int],
    *,
    stride: Any = None,
    padding: Any = "VALID",
    into: Mapping[Any, Dim | str] = ...,
) -> Tensor: ...

# Control

@overload
def scan(
    fn: Callable[..., Any],
    carry: T,
    xs: Any = (),
    *,
    dim: Dim | str,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[T, Any]: ...
@overload
def scan(
    fn: Callable[..., Any],
    carry: Any,
    xs: Any = (),
    *,
    dim: Dim | str,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]: ...
@overload
def cond(
    predicate: Tensor[()],
    if_true: Callable[..., T],
    if_false: Callable[..., Any],
    *operands: Any,
    weights: tuple[int, int] | None = None,
) -> T: ...
@overload
def cond(
    predicate: Tensor[()],
    if_true: Callable[..., Any],
    if_false: Callable[..., Any],
    *operands: Any,
    weights: tuple[int, int] | None = None,
) -> Any: ...
@overload
def switch(index: Tensor[()], branches: Sequence[Callable[..., T]], *operands: Any) -> T: ...
@overload
def switch(index: Tensor[()], branches: Sequence[Callable[..., Any]], *operands: Any) -> Any: ...
@overload
def while_loop(cond: Callable[..., Any], body: Callable[..., Any], init: T) -> T: ...
@overload
def while_loop(cond: Callable[..., Any], body: Callable[..., Any], init: Any) -> Any: ...

# Calculus

def checkpoint(
    fn: Callable[P, R],
    policy: str = "full",
    *,
    save: str | Iterable[str] = (),
    offload: str | Iterable[str] = (),
    in_scan: bool = False,
) -> Callable[P, R]: ...
def custom_gradient(fn: Callable[P, tuple[R, Any]]) -> Callable[P, R]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[M, P], R],
    *,
    has_aux: Literal[False] = False,
    accumulate: None = None,
    compute: Any = None,
    reduce: Any = None,
) -> Callable[Concatenate[M, P], tuple[R, M]]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[M, P], tuple[R, Y]],
    *,
    has_aux: Literal[True],
    accumulate: None = None,
    compute: Any = None,
    reduce: Any = None,
) -> Callable[Concatenate[M, P], tuple[tuple[R, Y], M]]: ...
@overload
def value_and_grad(
    fn: Callable[..., Any],
    *,
    has_aux: bool = False,
    accumulate: Dim | str | None = None,
    compute: Any = None,
    reduce: Any = None,
) -> Callable[..., Any]: ...
def jvp(fn: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, R]: ...
def vjp(fn: Callable[..., R], *primals: *Ds) -> tuple[R, Callable[[Any], tuple[*Ds]]]: ...
@overload
def hvp(fn: Callable[..., Any], primals: tuple[*Ds], tangents: Sequence[Any]) -> tuple[*Ds]: ...
@overload
def hvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, ...]: ...

# Lowering

def lower(
    fn: Callable[P, R],
    layout: Layout,
    mesh: Mesh | None = None,
    *,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Lowered[P, R]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: UnsureNames,
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: tuple[()],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[()]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dim[A] | Dims1[A],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dims2[A, B],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A, B]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dims3[A, B, C],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A, B, C]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dims4[A, B, C, D],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A, B, C, D]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dims5[A, B, C, D, E],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A, B, C, D, E]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: Dims6[A, B, C, D, E, F],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor[A, B, C, D, E, F]: ...
@overload
def local(
    fn: Callable[..., Any],
    *tensors: Tensor,
    out: str | Iterable[Dim | str],
    whole: Which[Tensor] = (),
    sums: Which[Tensor] = (),
    starts: Which[Tensor] = (),
    name: str | None = None,
) -> Tensor: ...
