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
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.lowering import collectives, moves
from meshdsl.lowering.scope import Scope, common
from meshdsl.plan.record import op_count
from meshdsl.tensor import Place, Tensor, is_tensor


def scan(fn: Callable, carry, xs=(), *, dim: Dim, reverse: bool = False, unroll: int = 1):
    """Run `fn` over the elements of `dim`, one after another: `carry, y = fn(carry, x)`.

    Args:
      carry: a pytree of Tensors (and arrays); each keeps its dims and dtype from step to step. A parameter in it is a
        value from then on.
      xs: a pytree of Tensors that have `dim`, and of arrays whose first dimension is it; `fn` gets them without it.
      dim: is whole while the scan runs, whatever the layout says of it.

    Returns:
      The last carry, and the results `y` with `dim` in front.

    Raises:
      MeshDSLError: a Tensor in `xs` lacks `dim`, or a carry changes its dims or dtype.
    """
    if not isinstance(dim, Dim):
        raise MeshDSLError(f"scan: `dim` is the Dim to run over, not {quote(dim)}")
    scope = _scope("scan", (carry, xs)) or _scope_within("scan", lambda: fn(carry, _first(xs, dim)))
    carry = jax.tree.map(lambda t: _value(t, scope), carry, is_leaf=is_tensor)
    op = scope.recorder.begin("scan", (dim,), ((),)) if scope else None
    xs = jax.tree.map(lambda x: _stacked(x, dim, op), xs, is_leaf=is_tensor)

    def body(carry, x):
        x = jax.tree.map(lambda t: _element(t, dim), x, is_leaf=is_tensor)
        after, y = fn(carry, x)
        after = _matching(jax.tree.map(lambda t: _value(t, scope), after, is_leaf=is_tensor), carry)
        return after, jax.tree.map(lambda t: _fixed(t, scope), y, is_leaf=is_tensor)

    if scope is not None and scope.uses is not None:  # one step uses what all of them do
        carry, y = body(carry, jax.tree.map(lambda a: a[0], xs))
        ys = jax.tree.map(lambda a: jnp.broadcast_to(a, (dim.size, *a.shape)), y)
        return carry, jax.tree.map(lambda t: _restacked(t, dim, scope, op), ys, is_leaf=is_tensor)
    with scope.recorder.repeated(dim.name, dim.size) if scope else nullcontext():
        carry, ys = lax.scan(body, carry, xs, length=dim.size, reverse=reverse, unroll=unroll)
    return carry, jax.tree.map(lambda t: _restacked(t, dim, scope, op), ys, is_leaf=is_tensor)


def _scope(name: str, tree) -> Scope | None:
    return common(name, [t for t in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(t)])


def _scope_within(name: str, body: Callable) -> Scope | None:
    """The scope of tensors that a body closes over, where nothing that it is given has one: that of its results."""
    found = []
    seen = op_count()
    jax.eval_shape(lambda: found.append(_scope(name, body())))
    scope = found[0]
    if scope is not None:
        scope.recorder.forget(seen)  # the body will be traced, and recorded, again
    return scope


def _first(xs, dim: Dim):
    """The first of the elements that a scan hands to its body."""
    stacked = jax.tree.map(lambda x: _stacked(x, dim, None), xs, is_leaf=is_tensor)
    return jax.tree.map(lambda x: _element(jax.tree.map(lambda a: a[0], x), dim), stacked, is_leaf=is_tensor)


def _fixed(t, scope: Scope | None):
    """Settled, and with a type that varies over the axes that split it and no others."""
    if scope is None or not is_tensor(t):
        return t
    if t.place is None:
        t = Tensor(t.array, t.dims, t.role, Place(scope, ((),) * len(t.dims)))
    t = moves.settle(t)
    array = collectives.vary(t.array, [a for axes in t.place.axes for a in axes])
    return Tensor(array, t.dims, t.role, t.place)


def _value(t, scope: Scope | None):
    """`t` as `_fixed` makes it, and a value even where it was a parameter: what it meets may make it one at any step."""
    if not is_tensor(t):
        return t
    if t.place is not None:
        scope.note_use(t.place.origin, ())
    return _fixed(Tensor(t.array, t.dims, None, t.place and t.place._replace(level="value", origin=frozenset())), scope)


def _stacked(x, dim: Dim, op):
    """`x` with `dim` whole and in front, as `lax.scan` wants it, and each element split by the law."""
    if not is_tensor(x):
        if jnp.shape(x)[:1] != (dim.size,):
            raise MeshDSLError(f"scan: an array of shape {jnp.shape(x)} does not have {dim} in front")
        return x
    at = x.dims.index(dim_algebra.find("scan", x.dims, dim))
    if op is not None:
        x = moves.in_turn(x, dim, op)
    return _lying_as(x, (x.dims[at], *x.dims[:at], *x.dims[at + 1 :]))


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
        if is_tensor(a) != is_tensor(b) or _kind(a) != _kind(b):
            raise MeshDSLError(f"scan: a carry {_shown(b)} comes back as {_shown(a)}")
        return _lying_as(a, b.dims) if is_tensor(a) else a

    return jax.tree.map(match, after, before, is_leaf=is_tensor)


def _kind(x):
    """What a leaf must have in common with one that takes its place."""
    return (frozenset(x.dims) if is_tensor(x) else jnp.shape(x)), jnp.result_type(x.array if is_tensor(x) else x)


def _shown(x) -> str:
    dims, dtype = _kind(x)
    return f"{dim_algebra.show(x.dims) if is_tensor(x) else f'array of shape {dims}'} of {dtype}"


def _lying_as(x: Tensor, dims: Dims) -> Tensor:
    if x.dims == dims:
        return x
    order = tuple(x.dims.index(d) for d in dims)
    place = x.place and x.place._replace(axes=tuple(x.place.axes[i] for i in order))
    return Tensor(jnp.transpose(x.array, order), dims, x.role, place)


def cond(predicate: Tensor, if_true: Callable, if_false: Callable, *operands):
    """`if_true(*operands)` or `if_false(*operands)`, whichever a Tensor without dims says; only that one runs.

    Raises:
      MeshDSLError: the predicate has dims, or the branches return different structures, dims or dtypes.
    """
    if not is_tensor(predicate) or predicate.dims:
        got = dim_algebra.show(predicate.dims) if is_tensor(predicate) else quote(predicate)
        raise MeshDSLError(f"cond: the predicate is a Tensor without dims, not {got}; use md.any, md.all, or md.where per element")
    scope = _scope("cond", (predicate, operands))
    scope = scope or _scope_within("cond", lambda: (if_true(*operands), if_false(*operands)))
    predicate = moves.settle(predicate)
    first: list = []

    def branch(fn):
        def run(operands):
            out = jax.tree.map(lambda t: _value(t, scope), fn(*operands), is_leaf=is_tensor)
            leaves, tree = jax.tree.flatten(out, is_leaf=is_tensor)
            if not first:
                first.extend([tree, leaves])
            if tree != first[0] or [_kind(x) for x in leaves] != [_kind(x) for x in first[1]]:
                one, other = (", ".join(map(_shown, x)) or "nothing" for x in (first[1], leaves))
                raise MeshDSLError(f"cond: the branches return {one} and {other}")
            leaves = [_lying_as(x, y.dims) if is_tensor(x) else x for x, y in zip(leaves, first[1], strict=True)]
            return jax.tree.unflatten(tree, leaves)

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
        raise MeshDSLError(f"checkpoint: no policy {quote(policy)}{nearest(str(policy), POLICIES)}")
    remembered = jax.checkpoint(fn, policy=POLICIES[policy])

    def checkpointed(*args):
        scope = _scope("checkpoint", args)
        looking = scope is not None and scope.uses is not None
        return fn(*args) if looking else remembered(*args)

    return checkpointed
