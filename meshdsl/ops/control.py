"""Control flow: scan, cond and checkpoint on trees of Tensors.

What crosses the boundary of a body is settled: split by the law for its own dims, with nothing pending. So the carry
of a scan has one split from step to step, and the branches of a cond agree.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, moves
from meshdsl.lowering.scope import Scope, common
from meshdsl.tensor import Place, Tensor, is_tensor


def scan(fn: Callable, carry, xs=(), *, dim: Dim, reverse: bool = False, unroll: int = 1):
    """Run `fn` over the elements of `dim`, one after another: `carry, y = fn(carry, x)`.

    Args:
      carry: a pytree of Tensors (and arrays); each keeps its dims and dtype from step to step.
      xs: a pytree of Tensors that have `dim`, and of arrays whose first dimension is it; `fn` gets them without it.
      dim: is whole while the scan runs, whatever the layout says of it.

    Returns:
      The last carry, and the results `y` with `dim` in front.

    Raises:
      MeshDSLError: a Tensor in `xs` lacks `dim`, or a carry changes its dims or dtype.
    """
    scope = _scope("scan", (carry, xs)) or _scope_of_result(fn, carry, xs, dim)
    carry = jax.tree.map(lambda t: _fixed(t, scope), carry, is_leaf=is_tensor)
    op = scope.recorder.begin("scan", (dim,), ((),)) if scope else None
    xs = jax.tree.map(lambda x: _stacked(x, dim, scope, op), xs, is_leaf=is_tensor)

    def body(carry, x):
        x = jax.tree.map(lambda t: _element(t, dim), x, is_leaf=is_tensor)
        after, y = fn(carry, x)
        after = _matching(jax.tree.map(lambda t: _fixed(t, scope), after, is_leaf=is_tensor), carry)
        return after, jax.tree.map(lambda t: _fixed(t, scope), y, is_leaf=is_tensor)

    with scope.recorder.repeated(dim.name, dim.size) if scope else nullcontext():
        carry, ys = lax.scan(body, carry, xs, length=dim.size, reverse=reverse, unroll=unroll)
    return carry, jax.tree.map(lambda t: _restacked(t, dim, scope, op), ys, is_leaf=is_tensor)


def _scope(name: str, tree) -> Scope | None:
    return common(name, [t for t in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(t)])


def _scope_of_result(fn, carry, xs, dim) -> Scope | None:
    """The scope of tensors that the body closes over, where nothing that it is given has one."""
    found = []

    def look(carry, xs):
        first = jax.tree.map(lambda x: _element(_first(_stacked(x, dim, None, None)), dim), xs, is_leaf=is_tensor)
        found.append(_scope("scan", fn(carry, first)))

    jax.eval_shape(look, carry, xs)
    return found[0]


def _first(x):
    return jax.tree.map(lambda a: a[0], x)


def _fixed(t, scope: Scope | None):
    """Settled, and with a type that varies over the axes that split it and no others."""
    if scope is None or not is_tensor(t):
        return t
    if t.place is None:
        t = Tensor(t.array, t.dims, t.role, Place(scope, ((),) * len(t.dims)))
    t = moves.settle(t)
    array = collectives.vary(t.array, [a for axes in t.place.axes for a in axes])
    return Tensor(array, t.dims, t.role, t.place)


def _stacked(x, dim: Dim, scope: Scope | None, op):
    """`x` with `dim` whole and in front, as `lax.scan` wants it."""
    if not is_tensor(x):
        if jnp.shape(x)[:1] != (dim.size,):
            raise MeshDSLError(f"scan: an array of shape {jnp.shape(x)} does not have {dim} in front")
        return x
    at = x.dims.index(dim_algebra.find("scan", x.dims, dim))
    place = x.place
    if place is not None and place.pending:
        x = moves.settle(x)
        place = x.place
    if place is not None and place.axes[at]:
        whole = tuple(() if i == at else axes for i, axes in enumerate(place.axes))
        x = moves.bring(x, whole, frozenset(), scope, op, lambda _: f"a scan needs `{dim.name}` whole")
        place = x.place
    if at == 0:
        return x
    order = (at, *(i for i in range(len(x.dims)) if i != at))
    dims = tuple(x.dims[i] for i in order)
    return Tensor(jnp.transpose(x.array, order), dims, x.role, place and place._replace(axes=tuple(place.axes[i] for i in order)))


def _element(x, dim: Dim):
    """One element of a stacked Tensor, as `lax.scan` hands it over: the array has lost `dim`, the names not yet."""
    if not is_tensor(x):
        return x
    assert x.dims[0] == dim
    return Tensor(x.array, x.dims[1:], x.role, x.place and x.place._replace(axes=x.place.axes[1:]))


def _restacked(x, dim: Dim, scope, op):
    if not is_tensor(x):
        return x
    dims = dim_algebra.distinct((dim, *x.dims), "scan")
    if x.place is None:
        return Tensor(x.array, dims, x.role)
    return moves.settle(Tensor(x.array, dims, x.role, x.place._replace(axes=((), *x.place.axes))))


def _matching(after, before):
    """`after` with each Tensor's dims lying as in `before`; a carry that changed is an error."""
    if jax.tree.structure(after, is_leaf=is_tensor) != jax.tree.structure(before, is_leaf=is_tensor):
        raise MeshDSLError("scan: the carry that the body returns has another structure than the one that it was given")

    def match(a, b):
        if not is_tensor(a) or not is_tensor(b):
            return a
        if set(a.dims) != set(b.dims) or a.dtype != b.dtype:
            raise MeshDSLError(
                f"scan: a carry {dim_algebra.show(b.dims)} of {b.dtype} comes back as {dim_algebra.show(a.dims)} of {a.dtype}"
            )
        if a.dims == b.dims:
            return Tensor(a.array, b.dims, b.role, a.place)
        order = tuple(a.dims.index(d) for d in b.dims)
        place = a.place and a.place._replace(axes=tuple(a.place.axes[i] for i in order))
        return Tensor(jnp.transpose(a.array, order), b.dims, b.role, place)

    return jax.tree.map(match, after, before, is_leaf=is_tensor)


def cond(predicate: Tensor, if_true: Callable, if_false: Callable, *operands):
    """`if_true(*operands)` or `if_false(*operands)`, whichever a Tensor without dims says; only that one runs.

    Raises:
      MeshDSLError: the predicate has dims, or the branches return different dims.
    """
    if not is_tensor(predicate) or predicate.dims:
        raise MeshDSLError("cond: the predicate is a Tensor without dims; use md.any, md.all, or md.where per element")
    scope = _scope("cond", (predicate, operands))
    predicate = moves.settle(predicate)
    kinds: list = []

    def branch(fn):
        def run(operands):
            out = jax.tree.map(lambda t: _fixed(t, scope), fn(*operands), is_leaf=is_tensor)
            leaves, tree = jax.tree.flatten(out, is_leaf=is_tensor)
            kinds.append((tree, [t.dims if is_tensor(t) else None for t in leaves]))
            if kinds[0] != kinds[-1]:
                first, second = ([dim_algebra.show(d) for d in k[1] if d is not None] for k in (kinds[0], kinds[-1]))
                raise MeshDSLError(f"cond: the branches return {', '.join(first)} and {', '.join(second)}")
            return out

        return run

    return lax.cond(predicate.array, branch(if_true), branch(if_false), operands)


POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "gathers": lambda prim, *_, **__: prim.name != "all_gather",
}


def checkpoint(fn: Callable, policy: str = "full") -> Callable:
    """`fn`, recomputed in the backward pass instead of remembered.

    Args:
      policy: what is recomputed: "full": everything; "dots": everything but matrix products; "gathers": only what was
        gathered from other devices, so that no device keeps whole parameters.
    """
    if policy not in POLICIES:
        raise MeshDSLError(f"checkpoint: no policy {policy!r}; known: {', '.join(POLICIES)}")
    return jax.checkpoint(fn, policy=POLICIES[policy])
