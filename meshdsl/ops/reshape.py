"""Ops that only rename, regroup or repeat: no arithmetic, so pending sums keep waiting.

A split or merged dim is local where the outermost of the old dims and of the new ones are split alike; what the law
wants beyond that is a move.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.lowering.loop import Loop, run
from meshdsl.tensor import Tensor


def rename(x: Tensor, old: Dim | str | Mapping, new: Dim | str | None = None) -> Tensor:
    """`x` with `old` called `new`; or with every key of a mapping called as its value says.

    Raises:
      MeshDSLError: no dim `old`, another size, or the new name is taken.
    """
    pairs = old if isinstance(old, Mapping) else {old: new}
    renamed: dict[Dim, Dim] = {}
    for key, value in pairs.items():
        dim = dim_algebra.find("rename", x.dims, key)
        value = Dim(value, dim.size) if isinstance(value, str) else value
        if not isinstance(value, Dim) or value.size != dim.size:
            raise MeshDSLError(f"rename: {dim} can be called by a name or a Dim of its size, not {value!r}")
        renamed[dim] = value
    out = dim_algebra.distinct([renamed.get(d, d) for d in x.dims], "rename")
    carried = {value: dim for dim, value in renamed.items()}
    return run("rename", lambda _, a: a, (x,), loop=x.dims, out=out, carried=carried, linear=True)


def transpose(x: Tensor, dims) -> Tensor:
    """`x` with its dims lying in the order `dims`. Changes the layout in memory, never the meaning."""
    out = dim_algebra.find_all("transpose", x.dims, dims)
    if len(out) != len(x.dims):
        absent = dim_algebra.show(dim_algebra.without(x.dims, out))
        raise MeshDSLError(f"transpose: {dim_algebra.show(out)} lacks {absent} of {dim_algebra.show(x.dims)}")
    if out == x.dims:
        return x
    order = tuple(x.dims.index(d) for d in out)
    return run("transpose", lambda _, a: jnp.transpose(a, order), (x,), loop=x.dims, out=out, linear=True)


def broadcast(x: Tensor, dims) -> Tensor:
    """`x` repeated along every dim of `dims` that it lacks, with its dims lying in the order `dims`."""
    out = dim_algebra.distinct(dims, "broadcast")
    dim_algebra.union("broadcast", [x.dims, out])
    absent = dim_algebra.without(x.dims, out)
    if absent:
        raise MeshDSLError(f"broadcast: {dim_algebra.show(out)} lacks {dim_algebra.show(absent)} of {dim_algebra.show(x.dims)}")
    kept = tuple(d for d in out if d in x.dims)
    new = [i for i, d in enumerate(out) if d not in x.dims]
    order = tuple(x.dims.index(d) for d in kept)

    def local(loop, a):
        a = jnp.expand_dims(jnp.transpose(a, order), new)
        return jnp.broadcast_to(a, tuple(loop.size(d) for d in out))

    return run("broadcast", local, (x,), loop=out, out=out, linear=True)


def reshape(x: Tensor, to: tuple[Dim, ...] | str, **sizes: Dim | int) -> Tensor:
    """Split and merge dims.

    Args:
      to: the dims of the result: those that `x` has too are kept, the others regroup the rest of `x`'s dims in
        order, major first. Or a pattern `"batch (heads head_dim) -> batch heads head_dim"`, in which a group in
        brackets stands for a dim that is their product (on the left any of `x`'s, on the right one called by the names
        joined with `_`, or as `sizes` says).
      sizes: for a pattern, sizes (or Dims) of names that `x` does not have.

    Raises:
      MeshDSLError: the sizes do not multiply up, or a name is unknown.
    """
    if isinstance(to, str):
        return _by_pattern(x, to, sizes)
    out = dim_algebra.distinct(to, "reshape")
    dim_algebra.union("reshape", [x.dims, out])
    old = tuple(d for d in x.dims if d not in out)
    new = tuple(d for d in out if d not in x.dims)
    return _regroup(x, _groups(x, old, new), out)


def _groups(x: Tensor, old: Dims, new: Dims) -> list[tuple[Dims, Dims]]:
    """Pairs of old and new dims of equal product, as small as possible, in order."""
    if dim_algebra.size(old) != dim_algebra.size(new):
        raise MeshDSLError(
            f"reshape: {dim_algebra.show(old)} has {dim_algebra.size(old)} elements and {dim_algebra.show(new)} has "
            f"{dim_algebra.size(new)}, in a tensor {dim_algebra.show(x.dims)}"
        )
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while dim_algebra.size(old[a:i]) != dim_algebra.size(new[b:j]):
            if dim_algebra.size(old[a:i]) < dim_algebra.size(new[b:j]) and i < len(old) or j == len(new):
                i += 1
            else:
                j += 1
        groups.append((old[a:i], new[b:j]))
    return groups


def _regroup(x: Tensor, groups: list[tuple[Dims, Dims]], out: Dims) -> Tensor:
    """Each group's old dims become its new dims; local where only the outermost old dim is split, and evenly."""
    scope = x.place.scope if x.place else None
    split = dict(zip(x.dims, scope.split(x.dims, x.place.level), strict=True)) if scope else {}
    whole, carried = [], {}
    for old, new in groups:
        old, new = _long(old), _long(new)
        whole += old[1:]
        if old and new and new[0].size % (scope.parts(split[old[0]]) if scope else 1) == 0:
            carried[new[0]] = old[0]
        else:
            whole += old[:1]
    regrouped = {d for old, _ in groups for d in old}
    kept = tuple(d for d in x.dims if d not in regrouped)
    source = tuple(d for old, _ in groups for d in old) + kept
    middle = tuple(d for _, new in groups for d in new) + kept
    order = tuple(x.dims.index(d) for d in source)
    final = tuple(middle.index(d) for d in out)

    def local(loop: Loop, a):
        shape = [d.size // loop.parts(carried.get(d, d)) for d in middle]
        return jnp.transpose(jnp.reshape(jnp.transpose(a, order), shape), final)

    return run("reshape", local, (x,), loop=x.dims, out=out, whole=tuple(whole), carried=carried, linear=True, sums=False)


def _long(dims: Dims) -> Dims:
    return tuple(d for d in dims if d.size != 1)


_SIDE = re.compile(r"\(([\w\s]*)\)|(\w+)")


def _by_pattern(x: Tensor, pattern: str, sizes) -> Tensor:
    sides = pattern.split("->")
    if len(sides) != 2 or any(_SIDE.sub("", side).strip() for side in sides):
        raise MeshDSLError(f'reshape: {pattern!r} is not of the form "a (b c) -> (a b) c"')
    left, right = ([m[1].split() if m[2] is None else m[2] for m in _SIDE.finditer(side)] for side in sides)
    known = {d.name: d for d in x.dims}
    for name, value in sizes.items():
        known[name] = value if isinstance(value, Dim) else Dim(name, value)
    names = [n for item in left for n in ([item] if isinstance(item, str) else item)]
    again = [n for item in right for n in ([item] if isinstance(item, str) else item)]
    if sorted(names) != sorted(again):
        raise MeshDSLError(f"reshape: the two sides of {pattern!r} name different dims: {sorted(names)} and {sorted(again)}")
    x, used = _name_left(x, left, known, pattern)
    flat = [d for dims in used for d in dims]
    out, groups = [], []
    for item in right:
        if isinstance(item, str):
            out.append(_lookup(item, {d.name: d for d in flat}, pattern))
        else:
            old = tuple(_lookup(n, {d.name: d for d in flat}, pattern) for n in item)
            name = "_".join(item)
            merged = known.get(name) if name in sizes else Dim(name, dim_algebra.size(old))
            groups.append((old, (merged,)))
            out.append(merged)
    return _regroup(x, groups, tuple(out))


def _name_left(x: Tensor, left, known, pattern) -> tuple[Tensor, list[Dims]]:
    """Split the bracketed groups of the left side; the n-th item stands for the n-th dim of `x` or one by its name."""
    if len(left) != len(x.dims):
        raise MeshDSLError(f"reshape: {pattern!r} has {len(left)} items on the left for {dim_algebra.show(x.dims)}")
    named = {item for item in left if isinstance(item, str)}
    rest = iter([d for d in x.dims if d.name not in named])
    groups, used = [], []
    for item in left:
        if isinstance(item, str):
            used.append((dim_algebra.find("reshape", x.dims, item),))
            continue
        old = next(rest)
        missing = [n for n in item if n not in known]
        if len(missing) > 1:
            raise MeshDSLError(f"reshape: {pattern!r} leaves the sizes of {', '.join(missing)} open; give all but one")
        if missing:
            given = math.prod(known[n].size for n in item if n not in missing)
            known[missing[0]] = Dim(missing[0], old.size // given)
        new = tuple(known[n] for n in item)
        if dim_algebra.size(new) != old.size:
            raise MeshDSLError(f"reshape: {old} cannot be split into {dim_algebra.show(new)}")
        groups.append(((old,), new))
        used.append(new)
    return _regroup(x, groups, tuple(d for dims in used for d in dims)), used


def _lookup(name: str, known: dict[str, Dim], pattern: str) -> Dim:
    if name not in known:
        raise MeshDSLError(f"reshape: no dim `{name}` on the left of {pattern!r}{nearest(name, known)}")
    return known[name]
