# pyright: reportOverlappingOverload=false
"""Overloads that many ops share: which dims the result has for which dims of the operands.

There is a table for each kind of op. A decorator, such as `reduces`, gives an op the overloads of
its table; parameters that the table does not name stay as the op has them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Generic, TypeAlias, TypedDict, Unpack, overload

import jax
import numpy as np

from meshdsl._types import (
    A,
    Along,
    B,
    C,
    D,
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
    Holder,
    Number,
    One,
    Only,
    Operand,
    P,
    Pair,
    T,
    Three,
    Unsure,
    UnsureName,
    UnsureNames,
    Which,
    X,
    Y,
    Z,
)
from meshdsl.dims import Dim
from meshdsl.tensor import Tensor

class _Function:
    __name__: str
    __qualname__: str

class Unary(_Function):
    """A component-wise function of one operand."""

    @overload
    def __call__(self, x: Tensor[*Ds], /) -> Tensor[*Ds]: ...
    @overload
    def __call__(self, x: jax.Array | np.ndarray, /) -> Tensor[()]: ...

class Tuned(_Function):
    """A component-wise function of one operand, and of settings."""

    @overload
    def __call__(self, x: Tensor[*Ds], /, *settings: Number, **options: Any) -> Tensor[*Ds]: ...
    @overload
    def __call__(self, x: Operand, /, *settings: Operand, **options: Any) -> Tensor: ...

class Binary(_Function):
    """A component-wise function of two operands, of which one has the dims of both."""

    @overload
    def __call__(self, x: Unsure, y: Operand, /) -> Tensor: ...
    @overload
    def __call__(self, x: Operand, y: Unsure, /) -> Tensor: ...
    @overload
    def __call__(self, x: T, y: Fits[T] | Number, /) -> T: ...
    @overload
    def __call__(self, x: Number, y: T, /) -> T: ...
    @overload
    def __call__(self, x: X, y: Holder[X, T], /) -> T: ...

class Ternary(_Function):
    """A component-wise function of three operands, of which one has the dims of all."""

    @overload
    def __call__(self, x: Unsure, y: Operand, z: Operand, /) -> Tensor: ...
    @overload
    def __call__(self, x: Operand, y: Unsure, z: Operand, /) -> Tensor: ...
    @overload
    def __call__(self, x: Operand, y: Operand, z: Unsure, /) -> Tensor: ...
    @overload
    def __call__(self, x: T, y: Fits[T] | Number, z: Fits[T] | Number, /) -> T: ...
    @overload
    def __call__(self, x: Number, y: T, z: Fits[T] | Number, /) -> T: ...
    @overload
    def __call__(self, x: Number, y: Number, z: T, /) -> T: ...
    @overload
    def __call__(self, x: X, y: Holder[X, T], z: Fits[T] | Number, /) -> T: ...
    @overload
    def __call__(self, x: X, y: Number, z: Holder[X, T], /) -> T: ...
    @overload
    def __call__(self, x: Number, y: X, z: Holder[X, T], /) -> T: ...
    @overload
    def __call__(self, x: X, y: X, z: Holder[X, T], /) -> T: ...

class Makes(_Function, Generic[X, Y, P]):
    """A tensor of given dims; `Y` is all that an op takes for its dims."""

    @overload
    def __call__(
        self, first: X, dims: UnsureNames, *args: P.args, **kwargs: P.kwargs
    ) -> Tensor: ...
    @overload
    def __call__(
        self, first: X, dims: tuple[()], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[()]: ...
    @overload
    def __call__(
        self, first: X, dims: Dim[A] | Dims1[A], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A]: ...
    @overload
    def __call__(
        self, first: X, dims: Dims2[A, B], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B]: ...
    @overload
    def __call__(
        self, first: X, dims: Dims3[A, B, C], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C]: ...
    @overload
    def __call__(
        self, first: X, dims: Dims4[A, B, C, D], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, D]: ...
    @overload
    def __call__(
        self, first: X, dims: Dims5[A, B, C, D, E], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, D, E]: ...
    @overload
    def __call__(
        self, first: X, dims: Dims6[A, B, C, D, E, F], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, D, E, F]: ...
    @overload
    def __call__(self, first: X, dims: Y, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, *, dims: Y, **kwargs: Any) -> Tensor: ...

def makes(op: Callable[Concatenate[X, Y, P], Tensor]) -> Makes[X, Y, P]: ...

class Removes(_Function, Generic[P]):
    """A tensor without one of its dims."""

    @overload
    def __call__(self, x: Unsure, dim: Dim | str, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, dim: UnsureName, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(
        self, x: Tensor[*Ds, X], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, *Ds], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, *Ds], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, X, *Ds], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, C, X, *Ds], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, C, D, X, *Ds], dim: One[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, D, *Ds]: ...
    @overload
    def __call__(self, x: T, dim: Along[T], *args: P.args, **kwargs: P.kwargs) -> Tensor: ...

def removes(op: Callable[Concatenate[Tensor, Any, P], Tensor]) -> Removes[P]: ...

class Reduces(_Function, Generic[P]):
    """A tensor without some of its dims, by default without any of them.

    Two or three dims together are followed where they are among the first five.
    """

    @overload
    def __call__(
        self, x: Tensor, dims: None = None, *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[()]: ...
    @overload
    def __call__(
        self, x: Unsure, dims: Which[Tensor], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        dims: UnsureNames | tuple[UnsureName, ...],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Tensor: ...
    @overload
    def __call__(
        self, x: Tensor[*Ds, X], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, *Ds], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, *Ds], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, X, *Ds], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, C, X, *Ds], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, C, D, X, *Ds], dims: Only[X], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, D, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[*Ds, X, Y], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, A, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, A, B, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, A, B, C, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, B, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, B, C, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, X, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, B, X, C, Y, *Ds], dims: Pair[X, Y], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, B, C, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, Y, Z, *Ds], dims: Three[X, Y, Z], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[*Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, Y, A, Z, *Ds], dims: Three[X, Y, Z], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[X, A, Y, Z, *Ds], dims: Three[X, Y, Z], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(
        self, x: Tensor[A, X, Y, Z, *Ds], dims: Three[X, Y, Z], *args: P.args, **kwargs: P.kwargs
    ) -> Tensor[A, *Ds]: ...
    @overload
    def __call__(self, x: T, dims: Which[T], *args: P.args, **kwargs: P.kwargs) -> Tensor: ...

def reduces(op: Callable[Concatenate[Tensor, Any, P], Tensor]) -> Reduces[P]: ...

class _Settings(TypedDict, total=False):
    stride: Any
    dilation: Any
    padding: Any
    precision: Any
    preferred_element_type: Any

_Over: TypeAlias = Mapping[Any, Dim | str]

class Slides(_Function):
    """A convolution.

    Where `into` gives dims other names, `out` may have the old ones, and nothing is known of the
    result.
    """

    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Any,
        into: _Over,
        **settings: Unpack[_Settings],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: UnsureNames,
        **settings: Unpack[_Settings],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: tuple[()],
        **settings: Unpack[_Settings],
    ) -> Tensor[()]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dim[A] | Dims1[A],
        **settings: Unpack[_Settings],
    ) -> Tensor[A]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dims2[A, B],
        **settings: Unpack[_Settings],
    ) -> Tensor[A, B]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dims3[A, B, C],
        **settings: Unpack[_Settings],
    ) -> Tensor[A, B, C]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dims4[A, B, C, D],
        **settings: Unpack[_Settings],
    ) -> Tensor[A, B, C, D]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dims5[A, B, C, D, E],
        **settings: Unpack[_Settings],
    ) -> Tensor[A, B, C, D, E]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Dims6[A, B, C, D, E, F],
        **settings: Unpack[_Settings],
    ) -> Tensor[A, B, C, D, E, F]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        kernel: Tensor,
        over: _Over,
        *,
        out: Elliptic | str | Iterable[Dim | str],
        **settings: Unpack[_Settings],
    ) -> Tensor: ...

def slides(op: Callable[..., Tensor]) -> Slides: ...
