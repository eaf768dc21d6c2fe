"""over: a function of tensors without a dim, run for every element of it at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps

import jax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.scope import Scope
from meshdsl.ops.bodies import each, fixed, in_front, leaves_of, scope_of, varied
from meshdsl.ops.declare import along_a, op
from meshdsl.ops.softmax import softmax
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.values import array_of


@op(
    computes="the function, for all elements of its part at once",
    example=along_a(lambda over, x, a, b: over(a, lambda x: softmax(x, b))(x)),
)
def over(dim: Dim | str, fn: Callable) -> Callable:
    """`fn` of every element of `dim`, all at once: `jax.vmap` along a named dim.

    `dim` stays split: each device maps over its part of it. Inside, the axes that split it are
    spent: the law gives them to no other dim, and `dim` keeps them until the results leave. They
    are those that the law gives it in every argument that has it. Nested, each `over` spends axes
    of its own.

    Args:
      dim: a dim of an argument, or its name.
      fn: takes pytrees of Tensors and returns a pytree of Tensors. It may contain any op, loop or
        derivative. What it closes over is shared by all elements, as are arguments that lack `dim`.
        A random key is shared too: draws are the same for each element, unless the key has `dim`,
        as `md.tensor(jax.random.split(key, dim.size), (dim,))`.

    Returns:
      A function of the same arguments, in which Tensors may have `dim`; the results have it in
      front. A result that does not depend on it is repeated along it.

    Raises:
      MeshDSLError: no argument has `dim`, or `fn` returns something that is no Tensor.
    """

    @wraps(fn)
    def mapped(*args):
        tensors = [x for x in leaves_of(args) if is_tensor(x)]
        known = [d for t in tensors for d in t.dims]
        return _mapped(dim_algebra.resolve_one("over", known, dim, new=False), fn, args)

    return mapped


def _mapped(dim: Dim, fn: Callable, args: tuple):
    """`over(dim, fn)(*args)`."""
    leaves, tree = jax.tree.flatten(args, is_leaf=is_tensor)
    tensors = [x for x in leaves if is_tensor(x)]
    if not any(d.name == dim.name for t in tensors for d in t.dims):
        got = ", ".join(dim_algebra.show(t.dims) for t in tensors) or "none"
        raise MeshDSLError(f"over: no argument has {dim}; the Tensors among them are {got}")
    has = [is_tensor(x) and any(d.name == dim.name for d in x.dims) for x in leaves]
    for x in (x for x, h in zip(leaves, has, strict=True) if h):
        dim_algebra.find("over", x.dims, dim)
    scope = scope_of("over", args)
    axes = _axes(dim, [x.dims for x, h in zip(leaves, has, strict=True) if h], scope)
    op = scope.recorder.begin("over", (dim,), (axes,)) if scope else None
    entered = [
        _entered(x, dim, axes, scope, op) if h else x for x, h in zip(leaves, has, strict=True)
    ]

    def element(*arrays):
        arrays = iter(arrays)
        inside = [_element(x, next(arrays)) if h else x for x, h in zip(entered, has, strict=True)]
        result, out_tree = jax.tree.flatten(
            fn(*jax.tree.unflatten(tree, inside)), is_leaf=is_tensor
        )
        if others := sorted({type(x).__name__ for x in result if not is_tensor(x)}):
            raise MeshDSLError(
                f"over: the function returns Tensors, not {', '.join(others)}; give it dims "
                "with md.tensor"
            )
        result = [fixed(t, t.placement.scope if t.placement else scope) for t in result]
        return carried(jax.tree.unflatten(out_tree, result))

    with scope.spending(axes, dim) if scope else nullcontext():
        given = [array_of("over", x) for x, h in zip(entered, has, strict=True) if h]
        count = scope.part(dim, axes) if scope else dim.size
        if count == 1:  # kernels and loops need not know of a map
            results = jax.tree.map(lambda x: x[None], element(*[x[0] for x in given]))
        else:
            results = jax.vmap(element, axis_size=count)(*given)
    return each(lambda t: _left(t, dim, axes), uncarried(results))


def _axes(dim: Dim, operands: list[Dims], scope: Scope | None) -> tuple[str, ...]:
    """The axes that split `dim` in all of the operands."""
    if scope is None:
        return ()
    found = [scope.split(dims)[dims.index(dim)] for dims in operands]
    return tuple(a for a in found[0] if all(a in axes for axes in found))


def _entered(x: Tensor, dim: Dim, axes, scope: Scope | None, op) -> Tensor:
    """`x` with `dim` in front, split over `axes`, and each element split by the law."""
    x = in_front(x, dim, "over")
    if scope is None:
        return x
    if x.placement is not None:
        own = {a for split in x.placement.axes for a in split}.union(axes)
        # This use varies over all axes but those that split `x`, before or now.
        scope.note_use(x.placement.origin, set(scope.sizes) - own)
    x = resharding.take_sums(x)
    with scope.spending(axes, dim):
        split = (axes, *scope.split(x.dims[1:], x.placement.level if x.placement else "rules"))
        why = lambda _: f"one element of `{dim.name}` is split so"
        x = resharding.reshard(x, split, scope, op, why, varies=scope.spent)
    orders = scope.orders((dim,), (axes,))
    array = DeviceLoop({dim: axes}, scope, op, orders).filled(x.array, dim)
    return Tensor(array, x.dims, x.role, x.placement)


def _element(x: Tensor, array) -> Tensor:
    placement = x.placement and x.placement._replace(axes=x.placement.axes[1:])
    return Tensor(array, x.dims[1:], x.role, placement)


def _left(t: Tensor, dim: Dim, axes) -> Tensor:
    """A result of all elements on this device, split by the law."""
    dims, placement = dim_algebra.distinct((dim, *t.dims), "over"), t.placement
    if placement is None:
        return t.replace(dims=dims)
    placement = placement._replace(axes=(axes, *placement.axes))
    return resharding.take_sums(varied(t.replace(dims=dims, placement=placement), axes))
