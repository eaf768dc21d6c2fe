"""Derivatives of functions on trees of Tensors: forwards, backwards, and of gradients.

They work inside a lowering too. JAX differentiates the local program; here arrays get the types
that make the result right. A tangent and a cotangent are split as their primal is, and the
cotangent of a Tensor that all devices share is summed over the devices once, as in
`value_and_grad`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshdsl import dims as dim_algebra
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, gradient_sums, gradients, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.scope import Scope
from meshdsl.ops.bodies import (
    fixed,
    kind,
    leaves_of,
    lying_as,
    scope_of,
    scope_within,
    shown,
    varied,
)
from meshdsl.ops.declare import of_x, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.reduce import mean
from meshdsl.tensor import Tensor, is_tensor


def _example(x: Tensor) -> Tensor:
    """A function to differentiate."""
    return mean(FUNCTIONS["square"](FUNCTIONS["tanh"](x)))


op(
    computes="the function and its backward pass",
    mesh_tensorflow="none: `gradients` builds ops, each class with a gradient of its own",
    example=of_x(lambda value_and_grad, x: value_and_grad(_example)(x)),
    floats=True,
    module=__name__,
)(gradients.value_and_grad)


@op(
    computes="the function, and its derivative along a tangent",
    example=of_x(lambda jvp, x: jvp(_example, (x,), (FUNCTIONS["sin"](x),))),
    floats=True,
)
def jvp(fn: Callable, primals: tuple, tangents: tuple):
    """`fn(*primals)`, and its derivative along `tangents` (forward mode).

    Args:
      fn: takes and returns pytrees of floating-point Tensors.
      primals, tangents: one pytree for each argument of `fn`; a tangent has the dims and dtype of
        its primal.

    Returns:
      The result and its derivative, two pytrees of Tensors.

    Raises:
      MeshDSLError: a leaf is no floating-point Tensor, or a tangent has other dims or another dtype
        than its primal.
    """
    leaves, tree = _floats("jvp", primals, "a primal")
    others, other_tree = _floats("jvp", tangents, "a tangent")
    if tree != other_tree:
        raise MeshDSLError(
            "jvp: primals and tangents have different structures; give one tangent for each Tensor"
        )
    for x, t in zip(leaves, others, strict=True):
        _alike("jvp: a tangent", t, "its primal", x)
    scope = scope_of("jvp", (leaves, others)) or scope_within("jvp", lambda: fn(*primals))
    leaves = [fixed(x, scope) for x in leaves]
    others = [as_cotangent(t, x, scope) for t, x in zip(others, leaves, strict=True)]
    if scope is not None:
        # A primal that is a parameter may vary over more axes than split it. So does its tangent.
        both = [
            collectives.varying(x.array) | collectives.varying(t.array)
            for x, t in zip(leaves, others, strict=True)
        ]
        leaves, others = (
            [varied(x, axes) for x, axes in zip(xs, both, strict=True)] for xs in (leaves, others)
        )
    run = _of_arrays(_body("jvp", fn, tree, scope), leaves)
    return uncarried(jax.jvp(run, [[x.array for x in leaves]], [[t.array for t in others]]))


def _vjp_example(vjp: Callable, x: Tensor):
    value, back = vjp(_example, x)
    return back(Tensor(jnp.ones((), value.dtype), ()))


@op(
    computes="the function, and its backward pass for a cotangent",
    example=of_x(_vjp_example),
    floats=True,
)
def vjp(fn: Callable, *primals):
    """`fn(*primals)`, and its backward pass (reverse mode).

    Args:
      fn: takes and returns pytrees of floating-point Tensors.

    Returns:
      The result, and a function `back`. It takes a cotangent of the result, a pytree like it, and
      returns those of the arguments, a tuple of pytrees like `primals`. Cotangents of parameters
      come out as `value_and_grad` gives them: summed over devices once, and split as gradients are.

    Raises:
      MeshDSLError: a leaf is no floating-point Tensor, or a cotangent is not like the result.
    """
    leaves, tree = _floats("vjp", primals, "a primal")
    scope = scope_of("vjp", leaves) or scope_within("vjp", lambda: fn(*primals))
    body = _body("vjp", fn, tree, scope)
    if scope is None:
        run, uses = _of_arrays(body, leaves), [()] * len(leaves)
    else:
        leaves = [gradients.made_whole(fixed(x, scope)) for x in leaves]
        run, leaves, uses = gradients.traced(body, leaves, scope)
    found, pull = jax.vjp(run, [x.array for x in leaves])
    out = uncarried(found)

    def back(cotangent):
        given, given_tree = _floats("vjp", cotangent, "a cotangent")
        wanted, out_tree = jax.tree.flatten(out, is_leaf=is_tensor)
        if given_tree != out_tree:
            raise MeshDSLError(
                "vjp: the cotangent has another structure than the result; give a Tensor for "
                "each Tensor of it"
            )
        for ct, x in zip(given, wanted, strict=True):
            _alike("vjp: a cotangent", ct, "its result", x)
        given = [as_cotangent(ct, x, scope) for ct, x in zip(given, wanted, strict=True)]
        arrays = jax.tree.unflatten(jax.tree.structure(found), [ct.array for ct in given])
        (cotangents,) = pull(arrays)
        return jax.tree.unflatten(
            tree, [_summed(a, x, axes) for a, x, axes in zip(cotangents, leaves, uses, strict=True)]
        )

    return out, back


@op(
    computes="the derivative of the backward pass along a tangent",
    example=of_x(lambda hvp, x: hvp(_example, (x,), (FUNCTIONS["sin"](x),))),
    gradients=False,
    floats=True,
)
def hvp(fn: Callable, primals: tuple, tangents: tuple):
    """The derivative of the gradient of `fn` along `tangents`: its Hessian times a vector.

    It is computed by forward over reverse mode.

    Args:
      fn: takes pytrees of floating-point Tensors and returns a Tensor without dims.
      primals, tangents: as in `jvp`.

    Returns:
      A tuple of pytrees like `primals`.

    Raises:
      MeshDSLError: as in `jvp`, or the value has dims.
    """

    def gradient(*primals):
        value, back = vjp(fn, *primals)
        if not is_tensor(value) or value.dims:
            got = ", ".join(dim_algebra.show(t.dims) for t in leaves_of(value)) or "nothing"
            raise MeshDSLError(
                f"hvp: the value is a Tensor without dims, not {got}; take md.mean or md.sum"
            )
        return back(Tensor(jnp.ones((), value.dtype), ()))

    return jvp(gradient, primals, tangents)[1]


def as_cotangent(ct: Tensor, x: Tensor, scope: Scope | None) -> Tensor:
    """`ct`, which has the dims of `x`, settled, with the order of dims, split and type of `x`."""
    ct = lying_as(ct, x.dims)
    if scope is None:
        return Tensor(ct.array, x.dims, x.role)
    if ct.placement is not None:
        scope.note_use(ct.placement.origin, ())
    ct = resharding.placed(ct, scope)
    ct = resharding.take_sums(
        Tensor(
            ct.array,
            ct.dims,
            x.role,
            ct.placement._replace(level=x.placement.level, origin=frozenset()),
        ),
        split=x.placement.axes,
    )
    return varied(ct, collectives.varying(x.array))


def _summed(array, x: Tensor, axes) -> Tensor:
    """The cotangent of `x`, of which each device along `axes` has a term, summed."""
    if x.placement is None:
        return Tensor(array, x.dims, x.role)
    level = "rules" if x.placement.level == "rules" else "optimizer"
    return gradient_sums.gradient(
        Tensor(array, x.dims, x.role, x.placement._replace(origin=frozenset())), axes, level
    )


def _floats(name: str, tree, what: str):
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    for x in leaves:
        if not is_tensor(x) or not jnp.issubdtype(x.dtype, jnp.inexact):
            got = shown(x) if is_tensor(x) else type(x).__name__
            raise MeshDSLError(
                f"{name}: {what} is a floating-point Tensor, not {got}; close over what has no "
                "derivative"
            )
    return leaves, structure


def _alike(what: str, a: Tensor, whose: str, b: Tensor) -> None:
    if kind(a) != kind(b):
        raise MeshDSLError(f"{what} {shown(a)} is not like {whose} {shown(b)}")


def _results(name: str, out, scope: Scope | None):
    """The results of a differentiated function, settled."""
    leaves, tree = _floats(name, out, "a result")
    for t in leaves:
        if t.placement is not None:
            t.placement.scope.note_use(t.placement.origin, ())
    leaves = [fixed(t, scope) for t in leaves]
    without_origin = [
        t.replace(placement=t.placement and t.placement._replace(origin=frozenset()))
        for t in leaves
    ]
    return jax.tree.unflatten(tree, without_origin)


def _body(name: str, fn: Callable, tree, scope: Scope | None) -> Callable:
    """`fn` as a function of a list of Tensors, which returns its results carried."""
    return lambda tensors, _=(): carried(
        _results(name, fn(*jax.tree.unflatten(tree, tensors)), scope)
    )


def _of_arrays(body: Callable, leaves: list[Tensor]) -> Callable:
    """`body` as a function of the arrays of `leaves`."""
    return lambda arrays: body([x.replace(array=a) for a, x in zip(arrays, leaves, strict=True)])
