"""Ops that rename, regroup or repeat: no arithmetic, so pending sums keep waiting.

A regrouping keeps the splits that it can (`splits/regrouping.py` says which), and is local where
that is what the law wants. Where it is not, the split moves before or after the regrouping,
whichever way fewer elements travel: in one all_to_all where it moves to another dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from einops import EinopsError
from einops.parsing import ParsedExpression

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.moves import turns
from meshdsl.lowering.scope import copy_of, with_copy
from meshdsl.ops.declare import Case, Draw, along_a, op
from meshdsl.splits import regrouping
from meshdsl.splits.regrouping import Group
from meshdsl.tensor import Tensor


def _reshape_example(reshape: Callable, draw: Draw) -> Case:
    a, b, c = draw.dims("a", "b", "c")
    v, w = draw.dims("v", "w")
    product, merged = Dim("a", v.size * w.size), Dim("v", a.size * b.size)
    longer = Dim("w", w.size * b.size)
    merge = Case(lambda x: reshape(x, (merged, c)), (draw.tensor(a, b, c),), (a, b))
    split = Case(lambda x: reshape(x, (b, v, w)), (draw.tensor(product, b),), (product,))
    x = transpose(draw.tensor(product, b), (product, b))
    across = Case(lambda x: reshape(x, (v, longer)), (x,), (product, b))
    return draw.pick(merge, split, across)


@op(
    computes="regroups what it has; of dims that do not divide, fetches the elements that it lacks "
    "at the ends",
    moves=("ppermute",),
    mesh_tensorflow="ReshapeOperation; an error where a split has no dim to move through, and "
    "wrong slices for [3, 2] -> [6] split in 2",
    example=_reshape_example,
)
def reshape(x: Tensor, to: tuple[Dim | str, ...] | str, **sizes: Dim | int) -> Tensor:
    """Split and merge dims.

        md.reshape(x, (batch, heads, head_dim))
        md.reshape(x, "batch (heads head_dim) -> batch heads head_dim", heads=8)

    Args:
      to: the dims of the result. Those that `x` has too, which may be given by their names, are
        kept; the others regroup the rest of the dims of `x` in order, major first. Or a pattern, in
        which a group in brackets stands for a dim that is their product: on the left any dim of
        `x`, on the right one that is called by the names joined with `_`, or as `sizes` says.
      sizes: for a pattern, sizes (or Dims) of names that `x` does not have.

    Raises:
      MeshDSLError: the sizes do not multiply up, or a name is unknown.
    """
    if isinstance(to, str):
        return _by_pattern(x, to, sizes)
    out = dim_algebra.distinct(dim_algebra.resolve("reshape", x.dims, to), "reshape")
    dim_algebra.union("reshape", [x.dims, out])
    old = tuple(d for d in x.dims if d not in out)
    new = tuple(d for d in out if d not in x.dims)
    return _regroup("reshape", x, _groups(x, old, new), out)


@op(
    computes="nothing",
    moves=("ppermute",),
    mesh_tensorflow="ReshapeOperation (`rename_dimension`)",
    example=along_a(lambda rename, x, a, b: rename(x, a, "v")),
)
def rename(x: Tensor, old: Dim | str | Mapping, new: Dim | str | None = None) -> Tensor:
    """`x` with the dim `old` called `new`, or with every key of a mapping called as its value says.

        md.rename(x, length, "memory")
        md.rename(x, {length: "memory", heads: "kv_heads"})

    Raises:
      MeshDSLError: no dim `old`, another size, or the new name is taken.
    """
    renamed: dict[Dim, Dim] = {}
    for key, value in old.items() if isinstance(old, Mapping) else [(old, new)]:
        dim = dim_algebra.find("rename", x.dims, key)
        value = Dim(value, dim.size) if isinstance(value, str) else value
        if not isinstance(value, Dim) or value.size != dim.size:
            got = value if isinstance(value, Dim) else quote(value)
            raise MeshDSLError(
                f"rename: {dim} can be called by a name or a Dim of its size, not {got}"
            )
        renamed[dim] = value
    out = dim_algebra.distinct([renamed.get(d, d) for d in x.dims], "rename")
    return _regroup("rename", x, [Group((dim,), (value,)) for dim, value in renamed.items()], out)


def _transpose_example(transpose: Callable, draw: Draw) -> Case:
    x = draw.tensor(*draw.dims("a", "b", "c"))
    return Case(lambda x: transpose(x, x.dims[::-1]), (x,))


@op(
    computes="a transpose of its own part",
    mesh_tensorflow="EinsumOperation (`transpose`)",
    example=_transpose_example,
)
def transpose(x: Tensor, dims) -> Tensor:
    """`x` with its dims in the order `dims`: another order in memory, and the same meaning."""
    out = dim_algebra.find_all("transpose", x.dims, dims)
    if len(out) != len(x.dims):
        absent = dim_algebra.show(dim_algebra.without(x.dims, out))
        raise MeshDSLError(
            f"transpose: {dim_algebra.show(out)} lacks {absent} of {dim_algebra.show(x.dims)}"
        )
    if out == x.dims:
        return x
    order = tuple(x.dims.index(d) for d in out)
    if x.placement is not None and x.placement.dtypes is not None:
        return _parameter_in_order(x, order)
    local = lambda _, a: jnp.transpose(a, order)
    return apply_op("transpose", local, (x,), loop=x.dims, out=out, in_order=(), linear=True)


def _parameter_in_order(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """A parameter with its dims in another order. It stays one whose dtype of use is another."""
    assert x.placement is not None
    there = x.placement._replace(axes=tuple(x.placement.axes[i] for i in order))
    stored, dims = jnp.transpose(x.stored, order), tuple(x.dims[i] for i in order)
    copy = copy_of(x)
    return with_copy(
        x.replace(array=stored, dims=dims, placement=there),
        None if copy is None else _parameter_in_order(copy, order),
    )


def _broadcast_example(broadcast: Callable, draw: Draw) -> Case:
    a, b, v = draw.dims("a", "b", "v")
    return Case(lambda x: broadcast(x, (b, v, a)), (draw.tensor(a, b),), (v,))


@op(
    computes="repeats what it has",
    mesh_tensorflow="BroadcastOperation",
    example=_broadcast_example,
)
def broadcast(x: Tensor, dims) -> Tensor:
    """`x` repeated along every dim of `dims` that it lacks; the result has its dims in this order.

        md.broadcast(x, (heads, "batch", "length"))   # x [batch, length]; a new dim needs a size

    Raises:
      MeshDSLError: `dims` lack a dim of `x`, or have it with another size.
    """
    out = dim_algebra.distinct(dim_algebra.resolve("broadcast", x.dims, dims), "broadcast")
    dim_algebra.union("broadcast", [x.dims, out])
    absent = dim_algebra.without(x.dims, out)
    if absent:
        raise MeshDSLError(
            f"broadcast: {dim_algebra.show(out)} lacks {dim_algebra.show(absent)} of "
            f"{dim_algebra.show(x.dims)}"
        )
    kept = tuple(d for d in out if d in x.dims)
    new = [i for i, d in enumerate(out) if d not in x.dims]
    order = tuple(x.dims.index(d) for d in kept)

    def local(loop, a):
        a = jnp.expand_dims(_transposed(a, order), new)
        return jnp.broadcast_to(a, tuple(loop.size(d) for d in out))

    return apply_op("broadcast", local, (x,), loop=out, out=out, in_order=(), linear=True)


def _transposed(a, order: tuple[int, ...]) -> jax.Array:
    """A transpose of an array; JAX would trace, and differentiate, one that moves nothing too."""
    return a if order == tuple(range(len(order))) else jnp.transpose(a, order)


def _groups(x: Tensor, old: Dims, new: Dims) -> list[Group]:
    """Groups of old and new dims of equal product, as small as possible, in order."""
    if dim_algebra.size(old) != dim_algebra.size(new):
        raise MeshDSLError(
            f"reshape: {dim_algebra.show(old)} has {dim_algebra.size(old)} elements and "
            f"{dim_algebra.show(new)} has {dim_algebra.size(new)}, in a tensor "
            f"{dim_algebra.show(x.dims)}"
        )
    if not dim_algebra.size(old):
        return [Group(old, new)]
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while dim_algebra.size(old[a:i]) != dim_algebra.size(new[b:j]):
            if (
                dim_algebra.size(old[a:i]) < dim_algebra.size(new[b:j]) and i < len(old)
            ) or j == len(new):
                i += 1
            else:
                j += 1
        groups.append(Group(old[a:i], new[b:j]))
    return groups


def _regroup(name: str, x: Tensor, groups: list[Group], out: Dims) -> Tensor:
    """An op by which each group's old dims become its new dims. `out` are the result's dims."""
    out = dim_algebra.distinct(out, name)
    regrouped = {d for group in groups for d in group.old}
    kept = tuple(d for d in x.dims if d not in regrouped)
    source = tuple(d for group in groups for d in group.old) + kept
    middle = tuple(d for group in groups for d in group.new) + kept
    order = tuple(x.dims.index(d) for d in source)
    final = tuple(middle.index(d) for d in out)

    def local(loop: DeviceLoop, a):
        a = _transposed(a, order)
        have = [math.prod(loop.size(d) for d in group.old) for group in groups]
        want = [math.prod(loop.result.size(d) for d in group.new) for group in groups]
        if have != want:
            a = jnp.reshape(a, (*have, *(loop.size(d) for d in kept)))
            for at, group in enumerate(groups):
                if have[at] != want[at]:
                    dim = next(d for d in group.old if loop.axes(d))
                    a = loop.exchange(
                        a,
                        at,
                        dim,
                        regrouping.runs(group, have[at], want[at], loop.parts(dim)),
                        want[at],
                    )
        return _transposed(jnp.reshape(a, [loop.result.size(d) for d in middle]), final)

    renamed = {g.new[0]: g.old[0] for g in groups if len(g.new) == len(g.old) == 1}
    torn = tuple(d for d in source if d not in renamed.values() and d not in kept)
    turns.follow(name, x, groups)
    route = lambda now, then, scope: turns.regrouped(now, then, x.dims, out, groups, scope)
    return apply_op(
        name,
        local,
        (x,),
        loop=x.dims,
        out=out,
        in_order=torn,
        same_order=tuple(renamed.items()),
        choose_splits=route,
        linear=True,
        sums=False,
        fill=None,
    )


def _sides(pattern: str) -> list[list[str | list[str]]]:
    """Both sides of a pattern: a name for a dim, a list of names for a group in brackets."""
    try:
        left, right = (ParsedExpression(side) for side in pattern.split("->"))
    except (EinopsError, ValueError) as e:
        why = f": {e}" if isinstance(e, EinopsError) else ""
        raise MeshDSLError(
            f'reshape: {pattern!r} is not of the form "a (b c) -> (a b) c"{why}'
        ) from None
    if left.has_ellipsis or right.has_ellipsis:
        raise MeshDSLError(f"reshape: {pattern!r} names every dim; `...` stands for none")
    return [
        [item[0] if len(item) == 1 else item for item in side.composition] for side in (left, right)
    ]


def _by_pattern(x: Tensor, pattern: str, sizes) -> Tensor:
    """Split the groups on the left of the pattern, then merge those on the right."""
    left, right = _sides(pattern)
    sizes = {
        name: value if isinstance(value, Dim) else Dim(name, value) for name, value in sizes.items()
    }
    _check_names(left, right, sizes, pattern)
    x, used = _name_left(x, left, sizes, pattern)
    flat = {d.name: d for dims in used for d in dims}
    out, groups = [], []
    for item in right:
        if isinstance(item, str):
            out.append(flat[item])
            continue
        old, name = tuple(flat[n] for n in item), "_".join(item)
        merged = sizes.get(name) or Dim(name, dim_algebra.size(old))
        if merged.size != dim_algebra.size(old):
            raise MeshDSLError(
                f"reshape: {dim_algebra.show(old)} cannot be merged into {merged}, in {pattern!r}"
            )
        groups.append(Group(old, (merged,)))
        out.append(merged)
    return _regroup("reshape", x, groups, tuple(out))


def _check_names(left, right, sizes, pattern) -> None:
    """Raise a MeshDSLError unless both sides, and `sizes`, speak of the same names."""
    names, again = (
        [n for item in side for n in ([item] if isinstance(item, str) else item)]
        for side in (left, right)
    )
    if set(names) != set(again):
        raise MeshDSLError(
            f"reshape: the two sides of {pattern!r} name different dims: {sorted(names)} and "
            f"{sorted(again)}"
        )
    known = {*names, *("_".join(item) for item in right if not isinstance(item, str))}
    for name in sizes:
        if name not in known:
            raise MeshDSLError(
                f"reshape: {pattern!r} has no `{name}` to give a size to{nearest(name, known)}"
            )


def _name_left(x: Tensor, left, sizes, pattern) -> tuple[Tensor, list[Dims]]:
    """`x` with the groups of the left side split, and for each item on that side its dims.

    The n-th group stands for the n-th of those dims of `x` that no item names.
    """
    if len(left) != len(x.dims):
        raise MeshDSLError(
            f"reshape: {pattern!r} has {len(left)} items on the left for {dim_algebra.show(x.dims)}"
        )
    named = {item for item in left if isinstance(item, str)}
    rest = iter([d for d in x.dims if d.name not in named])
    known = dict(sizes)
    groups, used = [], []
    for item in left:
        if isinstance(item, str):
            used.append((dim_algebra.find("reshape", x.dims, sizes.get(item, item)),))
            continue
        old = next(rest)
        missing = [n for n in item if n not in known]
        if len(missing) > 1:
            raise MeshDSLError(
                f"reshape: {pattern!r} leaves the sizes of {', '.join(missing)} open; give all but "
                "one"
            )
        if missing:
            given = math.prod(known[n].size for n in item if n not in missing)
            known[missing[0]] = Dim(missing[0], old.size // given if given else 0)
        new = tuple(known[n] for n in item)
        if dim_algebra.size(new) != old.size:
            raise MeshDSLError(
                f"reshape: {old} cannot be split into {dim_algebra.show(new)}, in {pattern!r}"
            )
        groups.append(Group((old,), new))
        used.append(new)
    return _regroup("reshape", x, groups, tuple(d for dims in used for d in dims)), used
