"""Tensors that enter or leave a body: of a loop, a branch, a mapped or a differentiated function.

Such a Tensor is settled: it is split by the law for its own dims, no sum is pending, and its type
varies over the axes that split it and no others. So the carry of a loop has the same split in every
iteration, the branches of a choice agree, and a cotangent has the type of its primal. Inside of
`over` every Tensor also varies over the axes that are spent.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.moves.move import nbytes
from meshdsl.lowering.scope import Scope, check_alike, common, copy_of, with_copy
from meshdsl.program.recorder import Move, next_op_number
from meshdsl.tensor import Tensor, is_tensor, is_value


def leaves_of(tree) -> list:
    return jax.tree.leaves(tree, is_leaf=is_tensor)


def each(fn: Callable, tree, *others):
    """`fn` of every Tensor and array of a tree."""
    return jax.tree.map(fn, tree, *others, is_leaf=is_tensor)


def arrays_in(name: str, what: str, tree, scope: Scope | None = None):
    """`tree`, after checking that it has Tensors, arrays and numbers and nothing else.

    Args:
      what: what the message calls the tree: `carry`, `result`.
      scope: the scope of a lowering, in which arrays must be the same on all devices.
    """
    for x in leaves_of(tree):
        if not is_value(x):
            raise MeshDSLError(
                f"{name}: the {what} is a pytree of Tensors, arrays and numbers, and has one "
                f"leaf {quote(x)}"
            )
        if scope is not None and not is_tensor(x):
            check_alike(f"{name}: a leaf of the {what}", x, scope)
    return tree


def two_results(name: str, returned, scope: Scope | None):
    """`returned` by the body of a scan, after checking that it is a carry and a result."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise MeshDSLError(
            f"{name}: the body returns the carry and a result, `(carry, y)`, not {quote(returned)}"
        )
    return arrays_in(name, "result of the body", returned, scope)


def scope_of(name: str, tree) -> Scope | None:
    return common(name, [t for t in leaves_of(tree) if is_tensor(t)])


def scope_within(name: str, body: Callable) -> Scope | None:
    """The scope of the tensors that a body closes over, found by tracing it once.

    Callers ask for it if the arguments of the body have no scope.
    """
    found = []
    first_op = next_op_number()
    jax.eval_shape(lambda: found.append(scope_of(name, body())))
    scope = found[0]
    if scope is not None:
        scope.recorder.forget(first_op)  # the body will be traced, and recorded, again
    return scope


def varied(t: Tensor, axes) -> Tensor:
    """`t` with a type that varies over `axes` too; recorded, as its gradient is summed there."""
    scope = t.placement.scope
    missing = scope.in_mesh_order(scope.of_mesh(axes) - collectives.varying(t.array))
    if not missing:
        return t
    op = scope.recorder.begin("vary", t.dims, t.placement.axes)
    if scope.parts(missing) > 1:
        op.moves.append(
            Move(
                "vary",
                missing,
                nbytes(t.array),
                "what it meets differs between devices",
                "psum",
            )
        )
    with jax.named_scope(op.tag):
        return Tensor(collectives.vary(t.array, missing), t.dims, t.role, t.placement)


def fixed(t, scope: Scope | None):
    """`t`, settled and with the type of Tensors that enter or leave a body."""
    if scope is None or not is_tensor(t):
        return t
    t = resharding.plain(resharding.take_sums(resharding.placed(t, scope)))
    axes = scope.of_mesh(a for axes in t.placement.axes for a in axes)
    return varied(t, axes | scope.spent)


def value(t, scope: Scope | None):
    """As `fixed`, and as a value, even if `t` is a parameter.

    The body may combine the carry with a value in any iteration, so it is one from the beginning.
    """
    if not is_tensor(t):
        return t
    if t.placement is not None:
        t.placement.scope.note_use(t.placement.origin, ())
    return fixed(
        t.replace(
            role=None,
            placement=t.placement and t.placement._replace(level="rules", origin=frozenset()),
        ),
        scope,
    )


def agreed(t: Tensor) -> Tensor:
    """`t`, settled: a condition by which all devices decide alike what to run next.

    The parameters that it is computed from are not made to vary for their gradients. Otherwise the
    condition would vary by its type, and with it all results of what is run.
    """
    if t.placement is not None:
        t.placement.scope.note_use(t.placement.origin, ())
    return resharding.take_sums(t)


def lying_as(x: Tensor, dims: Dims) -> Tensor:
    """`x` with its dims in the order of `dims`."""
    if x.dims == dims:
        return x
    order = tuple(x.dims.index(d) for d in dims)
    placement = x.placement and x.placement._replace(axes=tuple(x.placement.axes[i] for i in order))
    copy = copy_of(x)
    x = x.replace(array=x.stored.transpose(order), dims=dims, placement=placement)
    return x if copy is None else with_copy(x, lying_as(copy, dims))


def kind(x):
    """The dims (or the shape) and the dtype of a leaf, which one in its place must have too."""
    if is_tensor(x):
        return frozenset(x.dims), x.dtype
    return jnp.shape(x), jnp.result_type(x)


def shown(x) -> str:
    dims, dtype = kind(x)
    return f"{dim_algebra.show(x.dims) if is_tensor(x) else f'array of shape {dims}'} of {dtype}"


def matching(name: str, after, before):
    """The carry `after` the body, with the dims of each Tensor in the order that they had `before`.

    Raises:
      MeshDSLError: a leaf has changed its dims or its dtype, or the tree its structure.
    """
    if jax.tree.structure(after, is_leaf=is_tensor) != jax.tree.structure(
        before, is_leaf=is_tensor
    ):
        raise MeshDSLError(
            f"{name}: the carry that the body returns has another structure than the one that it "
            "was given"
        )

    def match(a, b):
        if is_tensor(a) != is_tensor(b) or kind(a) != kind(b):
            raise MeshDSLError(f"{name}: a carry {shown(b)} comes back as {shown(a)}")
        return lying_as(a, b.dims) if is_tensor(a) else a

    return each(match, after, before)


# -- the elements of a dim that a loop runs over ---------------------------------------------------


def dim_of(name: str, tree, dim: Dim | str) -> Dim:
    """`dim` as a Dim; a name stands for the dim with this name in the Tensors of `tree`."""
    tensors = [x for x in leaves_of(tree) if is_tensor(x)]
    return dim_algebra.resolve_one(name, [d for t in tensors for d in t.dims], dim)


def first_of(xs, dim: Dim, name: str):
    """The first element of `xs` along `dim`, as a scan gives it to its body."""
    xs = each(lambda x: stacked(x, dim, None, name), xs)
    firsts = uncarried(jax.tree.map(_at_first, carried(xs)))
    return each(lambda x: element(x, dim), firsts)


def _at_first(a):
    """The first element of an array; zeros of its shape if there is no element."""
    if a.shape[0]:
        return a[0]
    return collectives.zeros_of(jax.typeof(a), a.shape[1:])


def stacked(x, dim: Dim, op, name: str):
    """`x` as `lax.scan` takes it: `dim` whole and in front, and each element split by the law."""
    if not is_tensor(x):
        if jnp.shape(x)[:1] != (dim.size,):
            raise MeshDSLError(
                f"{name}: an array of shape {jnp.shape(x)} does not have {dim} in front"
            )
        return x
    found = dim_algebra.find(name, x.dims, dim)
    if op is not None:
        x = resharding.whole_along(x, (found,), op)
    return in_front(x, found, name)


def in_front(x: Tensor, dim: Dim, name: str) -> Tensor:
    """`x` with `dim` as the first of its dims."""
    dim_algebra.find(name, x.dims, dim)
    return lying_as(x, (dim, *dim_algebra.without(x.dims, (dim,))))


def element(x, dim: Dim):
    """One element of a stacked Tensor as `lax.scan` gives it: `x`, whose array lacks `dim`."""
    if not is_tensor(x):
        return x
    assert x.dims[0] == dim
    placement = x.placement and x.placement._replace(axes=x.placement.axes[1:])
    copy = copy_of(x)
    x = x.replace(dims=x.dims[1:], placement=placement)
    return x if copy is None else with_copy(x, element(copy, dim))


def restacked(x, dim: Dim, name: str):
    """The inverse of `element` for all elements together, split by the law."""
    if not is_tensor(x):
        return x
    dims = dim_algebra.distinct((dim, *x.dims), name)
    if x.placement is None:
        return Tensor(x.array, dims, x.role)
    return resharding.take_sums(
        Tensor(x.array, dims, x.role, x.placement._replace(axes=((), *x.placement.axes)))
    )
