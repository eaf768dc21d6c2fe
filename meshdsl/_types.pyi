"""The vocabulary of the stubs: what a tensor, a number or a choice of dims is to a type checker.

A dim is known by the type of its name, a literal string, and a tensor by those of its dims, in
order. What a checker does not know is `Any`; an op on something that is in part `Any` gives a plain
`Tensor`, which may be used as any tensor. So no legal program is rejected for what could not be
followed. The tables reach to six dims; a tensor with more is plain, too.

Sets of dims are compared by handing them over: a tensor takes what lies within its dims (`Takes`,
which is contravariant), and an operand goes with each tensor that takes it.
"""

from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from types import EllipsisType
from typing import Any, Generic, Literal, LiteralString, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from typing_extensions import TypeVarTuple

from meshdsl.dims import Dim
from meshdsl.lowering import lower
from meshdsl.tensor import Tensor

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
X = TypeVar("X")
Y = TypeVar("Y")
Z = TypeVar("Z")
Ds = TypeVarTuple("Ds")
L = TypeVar("L", bound=LiteralString)  # keeps a literal a literal
T = TypeVar("T", bound=Tensor)
M = TypeVar("M", bound=Any)  # the bound lets a lambda's parameter be anything
P = ParamSpec("P")
R = TypeVar("R")
X_co = TypeVar("X_co", covariant=True)
X_contra = TypeVar("X_contra", contravariant=True)

Number: TypeAlias = complex | np.generic | np.ndarray | jax.Array
"""What a component-wise op takes instead of a Tensor: one number."""
Operand: TypeAlias = Tensor | Number
Many: TypeAlias = list[Any] | Set[Any] | Iterator[Any] | Mapping[Any, Any] | ValuesView[Any]
"""Collections other than tuples: of these no element is known."""

Dims1: TypeAlias = tuple[Dim[A]]
Dims2: TypeAlias = tuple[Dim[A], Dim[B]]
Dims3: TypeAlias = tuple[Dim[A], Dim[B], Dim[C]]
Dims4: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D]]
Dims5: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D], Dim[E]]
Dims6: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D], Dim[E], Dim[F]]

# No dim is called that, so only `Any` goes for it.
Nobody: TypeAlias = Literal["a name that no dim has"]
UnsureName: TypeAlias = Dim[Nobody] | Dim[LiteralString] | Dim[str]

# A tuple that has an X among its first six.
_Somewhere: TypeAlias = (
    tuple[X, *tuple[Any, ...]]
    | tuple[Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, Any, Any, X, *tuple[Any, ...]]
)
UnsureNames: TypeAlias = UnsureName | _Somewhere[UnsureName]
Named: TypeAlias = str | _Somewhere[str]
"""Dims of which at least one is given by its name."""
Elliptic: TypeAlias = _Somewhere[EllipsisType]
Unsure: TypeAlias = (
    Tensor[Nobody, *tuple[Any, ...]]
    | Tensor[Any, Nobody, *tuple[Any, ...]]
    | Tensor[Any, Any, Nobody, *tuple[Any, ...]]
    | Tensor[Any, Any, Any, Nobody, *tuple[Any, ...]]
    | Tensor[Any, Any, Any, Any, Nobody, *tuple[Any, ...]]
    | Tensor[Any, Any, Any, Any, Any, Nobody, *tuple[Any, ...]]
    | Tensor[Any, Any, Any, Any, Any, Any, Any, *tuple[Any, ...]]
)

class Takes(Generic[X_contra]):
    def take(self, x: X_contra, /) -> None: ...

class Within(Protocol[X_co]):
    """A tensor with no other dims than these."""

    @property
    def _names(self) -> Sequence[X_co]: ...

class Holds(Protocol[X_contra]):
    """A tensor with the dims of all of these tensors."""

    def _holds(self) -> Takes[X_contra]: ...

class Holder(Protocol[X_contra, X_co]):
    """The same, and which it is."""

    def _holds(self) -> Takes[X_contra]: ...
    @property
    def _self(self) -> X_co: ...

class Fits(Protocol[X_contra]):
    """A tensor whose dims are among those of this tensor."""

    def _fits(self) -> Takes[X_contra]: ...

class Permutes(Protocol[X_contra, X_co]):
    """The same, with as many dims as this tuple."""

    def _fits(self) -> Takes[X_contra]: ...
    @property
    def _names(self) -> X_co: ...

class HasName(Protocol[X_contra]):
    """A tensor with a dim of this name."""

    def _has(self) -> Takes[X_contra]: ...

class DimOf(Protocol[X_contra]):
    """A dim that this tensor has."""

    def _belongs(self) -> Takes[X_contra]: ...

Along: TypeAlias = DimOf[T] | str
"""One dim of a tensor. A name is not checked: a `str` may be any."""
Some: TypeAlias = DimOf[T] | str | tuple[DimOf[T] | str, ...] | Many
"""Some dims of a tensor."""
Which: TypeAlias = Some[T] | None
"""Some dims of a tensor; `None` is all of them."""

One: TypeAlias = Dim[X] | X
Only: TypeAlias = One[X] | tuple[One[X]]
Pair: TypeAlias = tuple[One[X] | One[Y], One[X] | One[Y]]
Three: TypeAlias = tuple[
    One[X] | One[Y] | One[Z], One[X] | One[Y] | One[Z], One[X] | One[Y] | One[Z]
]

class Lowered(lower.Lowered, Generic[P, R]):
    """What `lower` gives: a function with the arguments and results of the one that was lowered."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
