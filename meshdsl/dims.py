"""Dims, and the algebra of tuples of them.

A dim is a name and a size. It belongs to a tensor; an axis belongs to the mesh. Two dims with one
name and two sizes never meet in one op: that is an error wherever it happens. Only the scales of
numbers in few bits may have a dim that is called as one of the numbers' is, with an element for
each block of it. The order of a tensor's dims says how it lies in memory and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import GenericAlias

import jax

from meshdsl.errors import MeshDSLError, nearest, quote, whole_number


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension of `size` elements, over all devices."""

    name: str
    size: int

    # `Dim[Literal["batch"]]` says more to a type checker, see stubs/declarations.pyi.
    __class_getitem__ = classmethod(GenericAlias)

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise MeshDSLError(
                f"Dim: a name is an identifier such as `d_model`, not {quote(self.name)}"
            )
        object.__setattr__(
            self, "size", whole_number(f"Dim: the size of `{self.name}`", self.size, 0)
        )

    def __hash__(self):
        return hash(self.name)  # no set or dict has many dims of one name, and some ask often

    def __repr__(self):
        return f"{self.name}={self.size}"

    def alias(self, name: str) -> Dim:
        """The same size under another name: `length.alias("memory")`."""
        return Dim(name, self.size)


Dims = tuple[Dim, ...]


def show(dims: Iterable[Dim]) -> str:
    """`[batch=8, length=128]`, the form in which every message quotes dims."""
    return f"[{', '.join(map(repr, dims))}]"


def size(dims: Iterable[Dim]) -> int:
    return math.prod(d.size for d in dims)


def listed(given) -> tuple:
    """What is given as one or as several, as a tuple; whoever looks at an element refuses it."""
    several = (
        isinstance(given, Iterable) and not isinstance(given, str) and not hasattr(given, "dtype")
    )
    return tuple(given) if several else (given,)


def distinct(dims: Dim | Iterable[Dim], where: str) -> Dims:
    """`dims` (or one Dim) as a tuple, after checking that no name occurs twice."""
    dims = listed(dims)
    for d in dims:
        if not isinstance(d, Dim):
            raise MeshDSLError(f"{where}: dims are Dims such as Dim('batch', 8), not {quote(d)}")
    names = [d.name for d in dims]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise MeshDSLError(
            f"{where}: `{twice}` occurs twice in {show(dims)}; names are unique in a tensor"
        )
    return dims


def union(where: str, operands: Sequence[Dims]) -> Dims:
    """Every dim of the operands, in order of first appearance.

    Raises:
      MeshDSLError: one name has two sizes.
    """
    found: dict[str, Dim] = {}
    for dims in operands:
        for d in dims:
            if found.setdefault(d.name, d).size != d.size:
                raise _unequal(where, operands, d, found[d.name])
    return tuple(found.values())


def _unequal(where, operands, d, first) -> MeshDSLError:
    at = [i for i, dims in enumerate(operands) for e in dims if e in (first, d)]
    i, j = at[0], next(i for i, dims in enumerate(operands) if d in dims)
    return MeshDSLError(
        f"{where}: `{d.name}` is {first.size} in operand {i} {show(operands[i])} "
        f"and {d.size} in operand {j} {show(operands[j])}"
    )


def find(where: str, dims: Dims, wanted: Dim | str) -> Dim:
    """The dim of `dims` that `wanted` (a Dim or a name) means."""
    if not isinstance(wanted, (Dim, str)):
        raise MeshDSLError(
            f"{where}: a dim is given as a Dim or by its name, not {quote(wanted)}; the dims are "
            f"{show(dims)}"
        )
    name = wanted if isinstance(wanted, str) else wanted.name
    for d in dims:
        if d.name == name:
            if isinstance(wanted, Dim) and wanted.size != d.size:
                raise MeshDSLError(
                    f"{where}: `{name}` is {wanted.size} here and {d.size} in {show(dims)}"
                )
            return d
    raise MeshDSLError(
        f"{where}: no dim `{name}` in {show(dims)}" + nearest(name, [d.name for d in dims])
    )


def find_all(where: str, dims: Dims, wanted: Dim | str | Iterable[Dim | str] | None) -> Dims:
    """The dims of `dims` that `wanted` means; `None` means all of them."""
    if wanted is None:
        return dims
    return distinct([find(where, dims, w) for w in listed(wanted)], where)


def resolve(where: str, known: Iterable[Dim], given, *, new: bool = True) -> tuple:
    """`given`, which is one dim or several, with every name replaced by the Dim that it means.

    Dims stay as they are, whether they are known or not, and so does anything else: who uses the
    result refuses that.

    Args:
      known: the dims of the operands, among which names are looked up.
      new: a Dim that no operand has would be legal here, so that the error for an unknown name says
        how to give one.

    Raises:
      MeshDSLError: no dim of `known` has that name.
    """
    known = tuple(dict.fromkeys(known))
    return tuple(_sized(where, known, g, new) if isinstance(g, str) else g for g in listed(given))


def resolve_one(where: str, known: Iterable[Dim], given: Dim | str, *, new: bool = True) -> Dim:
    """The same for one dim, which is given as a Dim or by its name."""
    if isinstance(given, Dim):
        return given
    known = tuple(dict.fromkeys(known))
    return _sized(where, known, given, new) if isinstance(given, str) else find(where, known, given)


def _sized(where: str, known: Dims, name: str, new: bool) -> Dim:
    for d in known:
        if d.name == name:
            return d
    if not new:
        return find(where, known, name)
    example = f"Dim({name!r}, 8)" if name.isidentifier() else "Dim('batch', 8)"
    absent = f"no dim `{name}` in {show(known)}; " if known else ""
    raise MeshDSLError(
        f"{where}: {absent}a dim that no operand has is given with its size, such as {example}, "
        f"not as {name!r}{nearest(name, [d.name for d in known])}"
    )


def without(dims: Dims, gone: Iterable[Dim]) -> Dims:
    gone = set(gone)
    return tuple(d for d in dims if d not in gone)


def replace(dims: Dims, old: Dim, new: Dims) -> Dims:
    """`dims` with `old` replaced in place by the dims `new`."""
    return tuple(e for d in dims for e in (new if d == old else (d,)))
