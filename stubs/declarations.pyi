"""What types say of dims and no signature says; `make.py` makes the stubs of it and of the code.

A dim is known by the type of its name, a literal string, and a tensor by those of its dims, in
order. What a checker does not know is `Any`; an op on something that is in part `Any` gives a plain
`Tensor`, which may be used as any tensor. So no legal program is rejected for what could not be
followed. The rows reach to six dims; a tensor with more is plain, too.

Sets of dims are compared by handing them over: a tensor takes what lies within its dims (`Takes`,
which is contravariant), and an operand goes with each tensor that takes it.
"""

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from types import EllipsisType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    LiteralString,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    overload,
)

import jax
import numpy as np
from typing_extensions import TypeIs, TypeVar, TypeVarTuple

from meshdsl.lowering import lower
from meshdsl.tensor import Parameter, Placement

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
Es = TypeVarTuple("Es")  # in methods, where `Ds` are the dims of the Tensor
L = TypeVar("L", bound=LiteralString)  # keeps a literal a literal
T = TypeVar("T", bound=Tensor)
M = TypeVar("M", bound=Any)  # the bound lets a lambda's parameter be anything
N = TypeVar("N", default=Any)
P = ParamSpec("P")
R = TypeVar("R")
X_co = TypeVar("X_co", covariant=True)
X_contra = TypeVar("X_contra", contravariant=True)

Number: TypeAlias = complex | np.generic | np.ndarray | jax.Array  # of a component-wise op
Operand: TypeAlias = Tensor | Number
# Collections other than tuples: of these no element is known.
Many: TypeAlias = list[Any] | Set[Any] | Iterator[Any] | Mapping[Any, Any] | ValuesView[Any]

Dims1: TypeAlias = tuple[Dim[A]]
Dims2: TypeAlias = tuple[Dim[A], Dim[B]]
Dims3: TypeAlias = tuple[Dim[A], Dim[B], Dim[C]]
Dims4: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D]]
Dims5: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D], Dim[E]]
Dims6: TypeAlias = tuple[Dim[A], Dim[B], Dim[C], Dim[D], Dim[E], Dim[F]]

Nobody: TypeAlias = Literal["a name that no dim has"]  # so only `Any` goes for it
UnsureName: TypeAlias = Dim[Nobody] | Dim[LiteralString] | Dim[str]
Somewhere: TypeAlias = (  # a tuple that has an X among its first six
    tuple[X, *tuple[Any, ...]]
    | tuple[Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, Any, X, *tuple[Any, ...]]
    | tuple[Any, Any, Any, Any, Any, X, *tuple[Any, ...]]
)
UnsureNames: TypeAlias = UnsureName | Somewhere[UnsureName]
Named: TypeAlias = str | Somewhere[str]  # dims of which at least one is given by its name
Elliptic: TypeAlias = Somewhere[EllipsisType]
Rest: TypeAlias = tuple[EllipsisType, X]
Rest2: TypeAlias = tuple[EllipsisType, X, Y]
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

class Within(Protocol[X_co]):  # a tensor with no other dims than these
    @property
    def _names(self) -> Sequence[X_co]: ...

class Holds(Protocol[X_contra]):  # a tensor with the dims of all of these tensors
    def _holds(self) -> Takes[X_contra]: ...

class Holder(Protocol[X_contra, X_co]):  # the same, and which it is
    def _holds(self) -> Takes[X_contra]: ...
    @property
    def _self(self) -> X_co: ...

class Fits(Protocol[X_contra]):  # a tensor whose dims are among those of this tensor
    def _fits(self) -> Takes[X_contra]: ...

class Permutes(Protocol[X_contra, X_co]):  # the same, with as many dims as this tuple
    def _fits(self) -> Takes[X_contra]: ...
    @property
    def _names(self) -> X_co: ...

class HasName(Protocol[X_contra]):  # a tensor with a dim of this name
    def _has(self) -> Takes[X_contra]: ...

class DimOf(Protocol[X_contra]):  # a dim that this tensor has
    def _belongs(self) -> Takes[X_contra]: ...

Along: TypeAlias = DimOf[T] | str  # one dim of a tensor; a `str` may be any name
RestOf: TypeAlias = Rest[DimOf[T]] | Rest2[DimOf[T], Any] | Rest2[Any, DimOf[T]]
Function: TypeAlias = Callable[Concatenate[M, P], R]
Index: TypeAlias = int | builtins.slice | Tensor | jax.Array | np.integer
Some: TypeAlias = DimOf[T] | str | tuple[DimOf[T] | str, ...] | Many
Which: TypeAlias = Some[T] | None  # some dims of a tensor; `None` is all of them
One: TypeAlias = Dim[X] | X
Only: TypeAlias = One[X] | tuple[One[X]]
Pair: TypeAlias = tuple[One[X] | One[Y], One[X] | One[Y]]
Three: TypeAlias = tuple[
    One[X] | One[Y] | One[Z], One[X] | One[Y] | One[Z], One[X] | One[Y] | One[Z]
]

class Lowered(lower.Lowered, Generic[P, R]):  # with the arguments and results of the function
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class DimsOf: ...

# Members that the code does not have in this form. Those with an underscore there is nothing of at
# run time: the protocols ask for them.

class Dim(Generic[N]):
    name: N

class Tensor(Generic[*Ds]):
    stored: Any
    dims: DimsOf
    role: Parameter | Any
    placement: Placement | Any
    def local_shards(self) -> list[tuple[Any, np.ndarray]]: ...
    def __hash__(self) -> int: ...
    def __radd__(self, other: Number) -> Tensor[*Ds]: ...
    @property
    def _self(self) -> Tensor[*Ds]: ...
    @property
    def _names(self) -> tuple[*Ds]: ...
    def _fits(self) -> Takes[Holds[Tensor[*Ds]]]: ...

# For each name its overloads: a row has the types of parameters that it narrows, and the result;
# others stay as the signature has them, a new type has no default unless the row says one. A line
# without a result changes the signature for the rows below it. What ops declare as their `result`
# is a name here. `use NAME PARAMETER` takes the rows of NAME, with PARAMETER for `it`.
# `A..` is A; A, B; up to six; `Dims[A..]` is `Dims1[A]`, `Dims2[A, B]`, ..., and `Made[A..]` the
# same with `Dim[A]` alone for one. `<X>` is X at any place among other dims, and `<>` these dims.
ROWS = """
removes
    x: Unsure, dim: Dim | str -> Tensor
    dim: UnsureName -> Tensor
    x: Tensor[<X>], dim: One[X] -> Tensor[<>]
    x: T -> Tensor
reduces
    dims: None = None -> Tensor[()]
    x: Unsure, dims: Which[Tensor] -> Tensor
    dims: UnsureNames | tuple[UnsureName, ...] -> Tensor
    x: Tensor[<X>], dims: Only[X] -> Tensor[<>]
    x: Tensor[<X, Y>], dims: Pair[X, Y] -> Tensor[<>]
    x: Tensor[<X, Y, Z>], dims: Three[X, Y, Z] -> Tensor[<>]
    x: T, dims: Which[T] -> Tensor
makes
    it: UnsureNames -> Tensor
    it: tuple[()] -> Tensor[()]
    it: Made[A..] -> Tensor[A..]
    -> Tensor
Unary
    x: Tensor[*Ds], / -> Tensor[*Ds]
    x: jax.Array | np.ndarray, / -> Tensor[()]
Tuned
    x: Tensor[*Ds], /, *settings: Number, **options: Any -> Tensor[*Ds]
    x: Operand, /, *settings: Operand, **options: Any -> Tensor
Binary
    x: Unsure, y: Operand, / -> Tensor
    x: Operand, y: Unsure, / -> Tensor
    x: T, y: Fits[T] | Number, / -> T
    x: Number, y: T, / -> T
    x: X, y: Holder[X, T], / -> T
Ternary
    x: Unsure, y: Operand, z: Operand, / -> Tensor
    x: Operand, y: Unsure, z: Operand, / -> Tensor
    x: Operand, y: Operand, z: Unsure, / -> Tensor
    x: T, y: Fits[T] | Number, z: Fits[T] | Number, / -> T
    x: Number, y: T, z: Fits[T] | Number, / -> T
    x: Number, y: Number, z: T, / -> T
    x: X, y: Holder[X, T], z: Fits[T] | Number, / -> T
    x: X, y: Number, z: Holder[X, T], / -> T
    x: Number, y: X, z: Holder[X, T], / -> T
    x: X, y: X, z: Holder[X, T], / -> T
map
    x: Tensor[*Ds], *operands: Number -> Tensor[*Ds]
    *operands: Operand -> Tensor
attention
    memory: Dim | str = ..., head_dim: Dim | str = ... -> Tensor
cross_entropy
    vocab: Dim | str = ... -> tuple[Tensor, Tensor]
einsum
    out: Elliptic | str | Iterable[Dim | str], contract: Which[Tensor] = None
    out: UnsureNames -> Tensor
    out: tuple[()] -> Tensor[()]
    out: Made[A..] -> Tensor[A..]
    out: Elliptic, contract: Some[Tensor] -> Tensor
    contract: None = None
    x: Unsure, *tensors: Tensor, out: Elliptic -> Tensor
    x: Tensor, w: Unsure, out: Elliptic -> Tensor
    x: T, *tensors: Tensor, out: RestOf[T] -> Tensor
    x: Tensor[*Ds, X], w: Tensor[X, A] | Tensor[A, X], out: Rest[Dim[A]] -> Tensor[*Ds, A]
    x: Tensor[*Ds, X], w: Tensor[X, A, B], out: Rest2[Dim[A], Dim[B]] -> Tensor[*Ds, A, B]
    x: Tensor[*Ds, X, Y], w: Tensor[X, Y, A], out: Rest[Dim[A]] -> Tensor[*Ds, A]
    contract: Which[Tensor] = None
    -> Tensor
rename
    old: Mapping[Any, Dim | str], new: None = None -> Tensor
    x: Unsure, old: Dim | str, new: Dim | str -> Tensor
    old: UnsureName, new: Dim | str -> Tensor
    old: Dim | str, new: UnsureName -> Tensor
    x: Tensor[<X>], old: One[X], new: Dim[L] -> Tensor[<L>]
    x: T, old: Along[T], new: Dim | str -> Tensor
transpose
    dims: UnsureNames -> Tensor
    x: Permutes[Tensor[A..], tuple[Any..]], dims: Dims[A..] -> Tensor[A..]
    x: T, dims: Which[T] -> Tensor
broadcast
    dims: UnsureNames -> Tensor
    x: Unsure | Fits[Tensor[A..]], dims: Made[A..] -> Tensor[A..]
    dims: tuple[UnsureName, ...] | Named | Many -> Tensor
reshape
    to: UnsureNames -> Tensor
    to: tuple[()] -> Tensor[()]
    to: Dims[A..] -> Tensor[A..]
    to: str | Iterable[Dim | str] -> Tensor
take
    x: Unsure -> Tensor
    ids: Unsure -> Tensor
    dim: UnsureName -> Tensor
    x: Tensor[X], ids: Tensor[*Ds], dim: One[X] -> Tensor[*Ds]
    x: Tensor[*Ds, X], ids: Tensor[*Ds], dim: One[X] -> Tensor[*Ds]
    x: Tensor[X, A], ids: HasName[A], dim: One[X] -> Tensor
    x: Tensor[X, A], ids: Tensor[*Ds], dim: One[X] -> Tensor[*Ds, A]
    x: T -> Tensor
one_hot
    ids: Unsure -> Tensor
    dim: UnsureName -> Tensor
    ids: Tensor[*Ds], dim: Dim[X] -> Tensor[*Ds, X]
iota random.permutation
    dim: UnsureName -> Tensor
    dim: Dim[X] -> Tensor[X]
    dim: str, like: Tensor -> Tensor
segment_sum
    ids: T -> Tensor
bincount
    bins: UnsureName -> Tensor
    bins: Dim[X], weights: None = None -> Tensor[X]
    -> Tensor
slice
    x: T, size: int -> T
    x: T, size: Dim -> Tensor
pad
    x: T, out: None = None -> T
    x: T, out: Dim | str -> Tensor
split
    x: T, sizes: int | Sequence[int] -> tuple[T, ...]
    x: T, sizes: Sequence[int | Dim] -> tuple[Tensor, ...]
concat
    tensors: Sequence[Tensor[*Ds]], dim: Dim | str, out: None = None -> Tensor[*Ds]
    dim: Dim | str -> Tensor
stack
    tensors: Sequence[Unsure], dim: Dim | str -> Tensor
    dim: UnsureName -> Tensor
    tensors: Sequence[Tensor[*Ds]], dim: Dim[L] -> Tensor[L, *Ds]
    dim: Dim | str -> Tensor
top_k
    x: T, k: int -> tuple[T, T]
    x: T, k: Dim -> tuple[Tensor, Tensor]
eye
    a: UnsureName, b: Dim -> Tensor
    a: Dim, b: UnsureName -> Tensor
    a: Dim[A], b: Dim[B] -> Tensor[A, B]
    like: Tensor -> Tensor
conv conv_transpose
    out: Elliptic | str | Iterable[Dim | str], into: Mapping[Any, Dim | str] = ...
    out: Any, into: Mapping[Any, Dim | str] -> Tensor
    use makes out
max_pool mean_pool
    window: Mapping[Any, int], into: Mapping[Any, Dim | str] = ...
    into: Mapping[Any, Dim | str] -> Tensor
    x: T -> T
scan
    dim: Dim | str
    carry: T -> tuple[T, Any]
    -> tuple[Any, Any]
cond
    predicate: Tensor[()], if_true: Callable[..., T] -> T
    predicate: Tensor[()] -> Any
switch
    index: Tensor[()], branches: Sequence[Callable[..., T]] -> T
    index: Tensor[()], branches: Sequence[Callable[..., Any]] -> Any
while_loop
    init: T -> T
    -> Any
checkpoint
    fn: Callable[P, R] -> Callable[P, R]
custom_gradient
    fn: Callable[P, tuple[R, Any]] -> Callable[P, R]
value_and_grad
    accumulate: None = None
    fn: Function[M, P, R], has_aux: Literal[False] = False -> Function[M, P, tuple[R, M]]
    fn: Function[M, P, tuple[R, Y]], has_aux: Literal[True] -> Function[M, P, tuple[tuple[R, Y], M]]
    fn: Callable[..., Any], accumulate: Dim | str | None = None -> Callable[..., Any]
jvp
    fn: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any] -> tuple[R, R]
vjp
    fn: Callable[..., R], *primals: *Ds -> tuple[R, Callable[[Any], tuple[*Ds]]]
hvp
    primals: tuple[*Ds], tangents: Sequence[Any] -> tuple[*Ds]
    primals: Sequence[Any], tangents: Sequence[Any] -> tuple[Any, ...]
local
    out: str | Iterable[Dim | str], whole: Which[Tensor] = ()
    sums: Which[Tensor] = (), starts: Which[Tensor] = ()
    use makes out
lower
    fn: Callable[P, R] -> Lowered[P, R]
random.categorical
    logits: Unsure, dim: Dim | str -> Tensor
    dim: UnsureName -> Tensor
    logits: Tensor[<X>], dim: One[X] -> Tensor[<>]
    logits: T -> Tensor
normal truncated_normal uniform
    std: Any = None
    use makes dims
full
    value: Any -> Tensor
tensor parameter from_local
    dims: Dim | Iterable[Dim]
    use makes dims
abstract
    dims: Dim | Iterable[Dim] -> Tensor
is_tensor
    x: object -> TypeIs[Tensor]
Dim.__init__
    self: Dim[L], name: L, size: int -> None
    self: Dim[Any], name: str, size: int -> None
Dim.alias
    name: L -> Dim[L]
    -> Dim
Dim._belongs
    self: UnsureName -> Any
    self -> Takes[HasName[N]]
DimsOf.__get__
    self, tensor: Unsure, owner: Any -> tuple[Dim, ...]
    self, tensor: Tensor[()], owner: Any -> tuple[()]
    self, tensor: Tensor[A..], owner: Any -> Dims[A..]
    self, tensor: Any, owner: Any -> tuple[Dim, ...]
Tensor.__init__
    self: Tensor[*tuple[Any, ...]], dims: UnsureNames -> None
    self: Tensor[()], dims: tuple[()] -> None
    self: Tensor[A..], dims: Dims[A..] -> None
    self: Tensor[*tuple[Any, ...]] -> None
Tensor.dim
    name: L -> Dim[L]
    -> Dim
Tensor.__add__
    self: Unsure, other: Operand -> Tensor
    self, other: Unsure -> Tensor
    self, other: Fits[Tensor[*Ds]] | Number -> Tensor[*Ds]
    self, other: Holder[Tensor[*Ds], T] -> T
Tensor.__eq__ Tensor.__ne__
    self, other: None -> bool
    use Tensor.__add__ it
Tensor.__getitem__
    self: Unsure, index: tuple[Dim | str, Any, *tuple[Any, ...]] -> Tensor
    self: T, index: tuple[Along[T], builtins.slice] -> T
    self: T, index: tuple[Along[T], builtins.slice, Along[T], builtins.slice] -> T
    self, index: tuple[UnsureName, Any, *tuple[Any, ...]] -> Tensor
    self: Tensor[<X>], index: tuple[One[X], int] -> Tensor[<>]
    self: T, index: tuple[Along[T], Index] -> Tensor
    self: T, index: tuple[Along[T], Any, Along[T], Any, *tuple[Any, ...]] -> Tensor
Tensor._holds
    self: Tensor[*Es, A] -> Takes[Tensor[*Es] | Tensor[A]]
    self: Tensor[A, *Es] -> Takes[Tensor[*Es] | Tensor[A]]
    self: Tensor[A..] -> Takes[Within[A|..]]
    self: Tensor[*Es] -> Takes[Tensor[*Es] | Tensor[()]]
Tensor._has
    self: Unsure -> Any
    self: Tensor[*Es, A] -> Takes[A]
    self: Tensor[A, *Es] -> Takes[A]
    self: Tensor[A..] -> Takes[A|..]
"""
