# pyright: reportIncompatibleMethodOverride=false, reportOverlappingOverload=false
# Comparing gives a Tensor, where `object` promises a bool; and later overloads are for the names
# that earlier ones refuse.

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, Self, TypeAlias, overload

import jax
import numpy as np
from jax.typing import DTypeLike
from typing_extensions import TypeIs, TypeVarTuple

from meshdsl._tables import makes
from meshdsl._types import (
    A,
    B,
    C,
    D,
    Dims1,
    Dims2,
    Dims3,
    Dims4,
    Dims5,
    Dims6,
    E,
    F,
    Fits,
    Holder,
    Holds,
    L,
    Number,
    Operand,
    T,
    Takes,
    Unsure,
    UnsureNames,
    Within,
)
from meshdsl.dims import Dim, Dims

Ds = TypeVarTuple("Ds")
Es = TypeVarTuple("Es")

class Parameter(NamedTuple):
    ins: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()

class Dtypes(NamedTuple):
    use: np.dtype[Any]
    sums: np.dtype[Any]

class Placement(NamedTuple):
    scope: Any
    axes: tuple[tuple[str, ...], ...]
    pending: tuple[str, ...] = ()
    level: str = "value"
    origin: frozenset[int] = frozenset()
    dtypes: Dtypes | None = None
    reasons: tuple[tuple[str, str], ...] = ()

class _Dims:
    @overload
    def __get__(self, tensor: Unsure, owner: Any) -> Dims: ...
    @overload
    def __get__(self, tensor: Tensor[()], owner: Any) -> tuple[()]: ...
    @overload
    def __get__(self, tensor: Tensor[A], owner: Any) -> Dims1[A]: ...
    @overload
    def __get__(self, tensor: Tensor[A, B], owner: Any) -> Dims2[A, B]: ...
    @overload
    def __get__(self, tensor: Tensor[A, B, C], owner: Any) -> Dims3[A, B, C]: ...
    @overload
    def __get__(self, tensor: Tensor[A, B, C, D], owner: Any) -> Dims4[A, B, C, D]: ...
    @overload
    def __get__(self, tensor: Tensor[A, B, C, D, E], owner: Any) -> Dims5[A, B, C, D, E]: ...
    @overload
    def __get__(self, tensor: Tensor[A, B, C, D, E, F], owner: Any) -> Dims6[A, B, C, D, E, F]: ...
    @overload
    def __get__(self, tensor: Any, owner: Any) -> Dims: ...

_Role: TypeAlias = Parameter | None
_Placement: TypeAlias = Placement | None

class Tensor(Generic[*Ds]):
    """A tensor, whose type knows the names of its dims, in order.

    Of the dims batch and length it is a `Tensor[Literal["batch"], Literal["length"]]`.
    """

    stored: Any
    dims: _Dims
    role: Parameter | Any
    placement: Placement | Any

    @overload
    def __init__(
        self: Tensor[*tuple[Any, ...]],
        array: Any,
        dims: UnsureNames,
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[()],
        array: Any,
        dims: tuple[()],
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[A],
        array: Any,
        dims: Dims1[A],
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[A, B],
        array: Any,
        dims: Dims2[A, B],
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[A, B, C],
        array: Any,
        dims: Dims3[A, B, C],
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[A, B, C, D],
        array: Any,
        dims: Dims4[A, B, C, D],
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Tensor[*tuple[Any, ...]],
        array: Any,
        dims: Dims,
        role: _Role = None,
        placement: _Placement = None,
    ) -> None: ...
    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...
    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]: ...
    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Self: ...
    def replace(self, **changes: Any) -> Tensor: ...
    @property
    def array(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def size(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def pending(self) -> tuple[str, ...]: ...
    @property
    def split(self) -> dict[Dim, tuple[str, ...]]: ...
    @overload
    def dim(self, name: L) -> Dim[L]: ...
    @overload
    def dim(self, name: str) -> Dim: ...
    def item(self) -> Any: ...
    def local_shards(self) -> list[tuple[Any, np.ndarray]]: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __complex__(self) -> complex: ...
    def __format__(self, spec: str) -> str: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
    def __hash__(self) -> int: ...
    def __neg__(self) -> Tensor[*Ds]: ...
    __abs__ = __invert__ = __neg__
    @overload
    def __add__(self: Unsure, other: Operand) -> Tensor: ...
    @overload
    def __add__(self, other: Unsure) -> Tensor: ...
    @overload
    def __add__(self, other: Fits[Tensor[*Ds]] | Number) -> Tensor[*Ds]: ...
    @overload
    def __add__(self, other: Holder[Tensor[*Ds], T]) -> T: ...
    def __radd__(self, other: Number) -> Tensor[*Ds]: ...
    __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = (
        __xor__
    ) = __add__
    __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rand__ = (
        __ror__
    ) = __rxor__ = __radd__
    __lt__ = __le__ = __gt__ = __ge__ = __add__
    @overload
    def __eq__(self, other: None) -> bool: ...
    @overload
    def __eq__(self: Unsure, other: Operand) -> Tensor: ...
    @overload
    def __eq__(self, other: Unsure) -> Tensor: ...
    @overload
    def __eq__(self, other: Fits[Tensor[*Ds]] | Number) -> Tensor[*Ds]: ...
    @overload
    def __eq__(self, other: Holder[Tensor[*Ds], T]) -> T: ...
    @overload
    def __ne__(self, other: None) -> bool: ...
    @overload
    def __ne__(self: Unsure, other: Operand) -> Tensor: ...
    @overload
    def __ne__(self, other: Unsure) -> Tensor: ...
    @overload
    def __ne__(self, other: Fits[Tensor[*Ds]] | Number) -> Tensor[*Ds]: ...
    @overload
    def __ne__(self, other: Holder[Tensor[*Ds], T]) -> T: ...

    # At run time there is nothing of this: it is what the protocols of `_types` ask of a tensor.
    @property
    def _self(self) -> Tensor[*Ds]: ...
    @property
    def _names(self) -> tuple[*Ds]: ...
    def _fits(self) -> Takes[Holds[Tensor[*Ds]]]: ...
    @overload
    def _holds(self: Tensor[*Es, A]) -> Takes[Tensor[*Es] | Tensor[A]]: ...
    @overload
    def _holds(self: Tensor[A, *Es]) -> Takes[Tensor[*Es] | Tensor[A]]: ...
    @overload
    def _holds(self: Tensor[A, B]) -> Takes[Within[A | B]]: ...
    @overload
    def _holds(self: Tensor[A, B, C]) -> Takes[Within[A | B | C]]: ...
    @overload
    def _holds(self: Tensor[A, B, C, D]) -> Takes[Within[A | B | C | D]]: ...
    @overload
    def _holds(self: Tensor[A, B, C, D, E]) -> Takes[Within[A | B | C | D | E]]: ...
    @overload
    def _holds(self: Tensor[A, B, C, D, E, F]) -> Takes[Within[A | B | C | D | E | F]]: ...
    @overload
    def _holds(self: Tensor[*Es]) -> Takes[Tensor[*Es] | Tensor[()]]: ...
    @overload
    def _has(self: Unsure) -> Any: ...
    @overload
    def _has(self: Tensor[*Es, A]) -> Takes[A]: ...
    @overload
    def _has(self: Tensor[A, *Es]) -> Takes[A]: ...
    @overload
    def _has(self: Tensor[A, B]) -> Takes[A | B]: ...
    @overload
    def _has(self: Tensor[A, B, C]) -> Takes[A | B | C]: ...
    @overload
    def _has(self: Tensor[A, B, C, D]) -> Takes[A | B | C | D]: ...
    @overload
    def _has(self: Tensor[A, B, C, D, E]) -> Takes[A | B | C | D | E]: ...
    @overload
    def _has(self: Tensor[A, B, C, D, E, F]) -> Takes[A | B | C | D | E | F]: ...

def is_tensor(x: object) -> TypeIs[Tensor]: ...
def is_value(x: object) -> bool: ...
def notation(dims: Dims, axes: tuple[tuple[str, ...], ...]) -> str: ...
def axes_of(x: Tensor) -> tuple[tuple[str, ...], ...]: ...
@makes
def tensor(array: Any, dims: Dim | Iterable[Dim]) -> Tensor: ...
def abstract(dims: Dim | Iterable[Dim], dtype: DTypeLike = ...) -> Tensor: ...
@makes
def parameter(
    array: Any, dims: Dim | Iterable[Dim], *, ins: Dim | str | Iterable[Dim | str] = ()
) -> Tensor: ...
@makes
def from_local(
    shards: Any,
    dims: Dim | Iterable[Dim],
    mesh: jax.sharding.Mesh,
    split: Mapping[Any, str | Iterable[str]],
) -> Tensor: ...
