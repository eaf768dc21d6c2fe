"""Tensors by the positions that their dims have in arrays of the plain function.

A Tensor that stands for a variable has some of its dims, in any order. A rule says for each
position which dims it wants there. Where they are as large as those that are there, these are
renamed; else the elements are regrouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.scope import Scope
from meshdsl.ops import reshape
from meshdsl.plain_jax.program import Value, Variable
from meshdsl.tensor import Tensor, is_tensor

_SCOPE: ContextVar[Scope | None] = ContextVar("scope", default=None)


def scope_of(x: Tensor | None) -> Scope | None:
    """The lowering that `x` belongs to."""
    return None if x is None or x.placement is None else x.placement.scope


@contextmanager
def evaluated_in(like: Tensor | None) -> Iterator[None]:
    """What runs inside is evaluated in the lowering of `like`, see `current_scope`."""
    token = _SCOPE.set(scope_of(like))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_scope() -> Scope | None:
    """The lowering that a program is evaluated in."""
    return _SCOPE.get()


@contextmanager
def as_op(name: str, dims: Dims) -> Iterator[None]:
    """What runs inside is recorded as an op, though all its operands are arrays of every device.

    The ops of the language run such arrays, as a mask is, as outside of any lowering.
    """
    scope = current_scope()
    if scope is None:
        yield
        return
    with jax.named_scope(scope.recorder.begin(name, dims, ((),) * len(dims)).tag):
        yield


def as_tensor(x: Any, v: Value) -> Tensor:
    """`x`, which stands for `v`, as a Tensor."""
    if is_tensor(x):
        return x
    array = jnp.asarray(x)
    return Tensor(array, ()) if array.ndim == 0 else constant_of(array, v)


def constant_of(array: Any, v: Value) -> Tensor:
    """An array that has the shape of `v`."""
    return Tensor(jnp.reshape(array, [d.size for d in v.flat]), v.flat)


def full(x: Any, v: Value, dims: Dims | None = None) -> Tensor:
    """`x`, which stands for `v`, with all of `dims`; by default all that `v` has."""
    return with_dims(as_tensor(x, v), v.flat if dims is None else dims)


def with_dims(x: Tensor, dims: Dims) -> Tensor:
    """`x` with all of `dims` beside its own."""
    missing = dim_algebra.without(dims, x.dims)
    if not missing:
        return x
    wanted = (*missing, *x.dims)
    if x.placement is not None:
        return reshape.broadcast(x, wanted)
    with as_op("broadcast", wanted):
        return reshape.broadcast(x, wanted)


def ordered(x: Any, v: Value) -> Tensor:
    """`x`, which stands for `v`, with all of its dims, in order."""
    return in_order(full(x, v), v.flat)


def in_order(x: Tensor, dims: Dims) -> Tensor:
    """`x`, whose dims are `dims`, with them in that order."""
    return x if x.dims == dims else reshape.transpose(x, dims)


def renamed(x: Any, names: dict[str, str]) -> Any:
    """`x` with those of its dims renamed that are in `names`, all at once."""
    if not is_tensor(x):
        return x
    present = {d.name for d in x.dims}
    names = {a: b for a, b in names.items() if a != b and a in present}
    return reshape.rename(x, names) if names else x


def fits(have: Iterable[Dims], want: Iterable[Dims]) -> bool:
    """Whether the factors at each position have the same sizes."""
    sizes = lambda positions: [[d.size for d in dims] for dims in positions]
    return sizes(have) == sizes(want)


def as_positions(x: Any, v: Value, want: Mapping[int, Dims]) -> Any:
    """`x`, which stands for `v`, with the dims that are wanted at some positions.

    Dims at other positions must not be called as those that are wanted. A position that `x` lacks,
    because all elements along it are equal, is still lacking afterwards.
    """
    if not is_tensor(x):
        return x
    names: dict[str, str] = {}
    torn = []
    for i, dims in want.items():
        if fits([v.dims[i]], [dims]):
            names.update((a.name, b.name) for a, b in zip(v.dims[i], dims, strict=True))
        elif any(d in x.dims for d in v.dims[i]):
            torn.append((v.dims[i], dims))
    if not torn:
        return renamed(x, names)
    x = full(x, v, tuple(d for a, _ in torn for d in a))
    aside = {d.name: f"{d.name}__torn" for a, _ in torn for d in a}
    x = renamed(x, {**names, **aside})
    for a, b in torn:
        x = regrouped(x, tuple(d.alias(aside[d.name]) for d in a), b)
    return x


def regrouped(x: Tensor, old: Dims, new: Dims) -> Tensor:
    """`x`, whose dims `old` become `new`: as many elements, in the same order."""
    rest = dim_algebra.without(x.dims, old)
    return reshape.reshape(in_order(x, (*rest, *old)), (*rest, *new))


def like_result(
    x: Any, v: Value, out: Variable, pairs: Iterable[tuple[int, int]] | None = None
) -> Any:
    """Operand `x`, which stands for `v`, with the names of the result where they correspond.

    Args:
      pairs: positions of the operand and of the result, by default each and itself. A position of
        one element in the operand has no dims, whatever the result has there.
    """
    if not is_tensor(x):
        return x
    if pairs is None:
        pairs = [(i, i) for i in range(len(v.shape))] if len(v.shape) == len(out.shape) else []
    same = {i: out.dims[j] for i, j in pairs if v.shape[i] == out.shape[j]}
    return as_positions(x, v, same)


def with_positions(x: Any, v: Value, want: Mapping[int, Dims]) -> Tensor:
    """`x`, which stands for `v`, with all of the dims that are wanted at each position."""
    x, have = _in_parts(as_tensor(x, v), dict(enumerate(v.dims)), want)
    x = as_positions(x, _standing(v, have), want)
    return full(x, v, tuple(d for i in sorted(want) for d in want[i]))


def as_result(x: Tensor, have: Mapping[int, Dims], out: Variable) -> Tensor:
    """`x`, which has or lacks the given dims at each position of a result, as that result."""
    want = dict(enumerate(out.dims))
    x, have = _in_parts(x, have, want)
    return as_positions(x, _standing(out, have), want)


def _standing(v: Value, dims: Mapping[int, Dims]) -> Variable:
    """A variable like `v` with other dims."""
    return Variable(v.shape, v.dtype, dims=tuple(dims[i] for i in range(len(v.shape))))


def _in_parts(
    x: Tensor, have: Mapping[int, Dims], want: Mapping[int, Dims]
) -> tuple[Tensor, dict[int, Dims]]:
    """`x` with its dims, or those that are wanted, at each position; and these.

    A dim that comes apart into a dim of its name and others, or the other way round, stays split.
    """
    found = dict(have)
    for i, b in want.items():
        a = have[i]
        beside = {d.name for d in x.dims if d not in a}
        alike = a and b and a[0].name == b[0].name and 1 in (len(a), len(b))
        free = beside.isdisjoint(d.name for d in b) and all(d in x.dims for d in a)
        if alike and free and not fits([a], [b]):
            x, found[i] = _parts_regrouped(x, a, b), b
    return x, found


def _parts_regrouped(x: Tensor, old: Dims, new: Dims) -> Tensor:
    """`x`, whose dims `old` become `new` on each device; the first of both have the same split."""
    rest = dim_algebra.without(x.dims, old)
    x = in_order(x, (*rest, *old))
    inner = [d.size for d in new[1:]]
    local = lambda loop, a: jnp.reshape(a, (*a.shape[: len(rest)], -1, *inner))
    how = {"unsplit": old[1:], "in_order": old, "linear": True, "fill": None}
    carried = ((new[0], old[0]),)
    return apply_op(
        "reshape", local, (x,), loop=x.dims, out=(*rest, *new), same_split=carried, **how
    )


def one_dim(dims: Dims, size: int, name: str) -> Dims:
    """The dim of a position that has one; else a dim of all its elements, called `name`."""
    return dims if len(dims) == 1 else (Dim(name, size),)
