# pyright: reportOverlappingOverload=false

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, overload

from typing_extensions import TypeVar

from meshdsl._types import HasName, L, Takes, UnsureName

N = TypeVar("N", default=Any)

@dataclass(frozen=True, slots=True)
class Dim(Generic[N]):
    """A dim, whose type knows its name where that is written out.

    `Dim("batch", 8)` is a `Dim[Literal["batch"]]`.
    """

    name: N
    size: int

    @overload
    def __init__(self: Dim[L], name: L, size: int) -> None: ...
    @overload
    def __init__(self: Dim[Any], name: str, size: int) -> None: ...

    # At run time there is nothing of this: it is what the protocols of `_types` ask of a dim.
    @overload
    def _belongs(self: UnsureName) -> Any: ...
    @overload
    def _belongs(self) -> Takes[HasName[N]]: ...

Dims: TypeAlias = tuple[Dim, ...]

def listed(given: Any) -> tuple[Any, ...]: ...
def show(dims: Iterable[Dim]) -> str: ...
def size(dims: Iterable[Dim]) -> int: ...
def distinct(dims: Dim | Iterable[Dim], where: str) -> Dims: ...
def union(where: str, operands: Sequence[Dims]) -> Dims: ...
def find(where: str, dims: Dims, wanted: Dim | str) -> Dim: ...
def find_all(where: str, dims: Dims, wanted: Dim | str | Iterable[Dim | str] | None) -> Dims: ...
def without(dims: Dims, gone: Iterable[Dim]) -> Dims: ...
def replace(dims: Dims, old: Dim, new: Dims) -> Dims: ...
