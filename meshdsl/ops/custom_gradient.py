"""custom_gradient: a function of Tensors that brings its own backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import jax
import jax.numpy as jnp

from meshdsl.errors import MeshDSLError
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.moves.turns import check_whole
from meshdsl.lowering.scope import Scope
from meshdsl.ops.bodies import fixed, kind, scope_of, shown
from meshdsl.ops.calculus import as_cotangent
from meshdsl.ops.declare import of_x, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.tensor import Tensor, is_tensor


def _custom_gradient_example(custom_gradient: Callable, x: Tensor) -> Tensor:
    return custom_gradient(lambda x: (FUNCTIONS["round"](x), lambda cotangent: cotangent))(x)


@op(
    computes="the function, and the gradient that it brings",
    mesh_tensorflow="CustomGradientOperation; a graph is patched",
    example=of_x(_custom_gradient_example),
)
def custom_gradient(fn: Callable) -> Callable:
    """`fn` with the gradient that it brings, instead of the one that JAX finds.

            md.custom_gradient(lambda x: (md.round(x), lambda cotangent: cotangent))

    It is written as if on one device. Cotangents arrive split by the law, with no sum pending. What
    the backward function returns may be split in any way and may wait for sums, which are then
    taken.

    Args:
      fn: takes pytrees of Tensors (and arrays) and returns `(result, backward)`. The result is a
        pytree of Tensors. `backward` takes a pytree like it, the cotangents, and returns one pytree
        for each argument: a tuple of them where there are several. `None` in place of a Tensor, or
        of a whole argument, says that no gradient flows to it. What `fn` closes over must not
        depend on anything that is differentiated (JAX raises UnexpectedTracerError): give it as an
        argument.

    Returns:
      A function of the same arguments that returns the result. It has no derivative in forward
      mode.

    Raises:
      MeshDSLError: the function does not return a result and a function, the result is no tree of
        Tensors, or a cotangent that comes back has not the dims and the dtype of its argument; or
        an argument has rows of one microbatch of a pipeline.
    """

    def differentiable(*args):
        leaves, tree = jax.tree.flatten(args, is_leaf=is_tensor)
        scope = scope_of("custom_gradient", args)
        given = []
        for x in leaves:
            if is_tensor(x):
                check_whole("custom_gradient", x)
            if scope is not None and is_tensor(x) and x.placement:
                scope.note_use(x.placement.origin, ())
                x = Tensor(x.array, x.dims, x.role, x.placement._replace(origin=frozenset()))
            given.append(fixed(x, scope))
        ops: list = []  # those of `fn`, which JAX may trace twice: for its value and its gradient

        @jax.custom_gradient
        def run(*arrays):
            with scope.recorder.once(ops) if scope else nullcontext():
                return differentiated(*arrays)

        def differentiated(*arrays):
            inside = [
                Tensor(a, x.dims, x.role, x.placement) if is_tensor(x) else a
                for a, x in zip(arrays, given, strict=True)
            ]
            result, backward = _two_results(fn(*jax.tree.unflatten(tree, inside)))
            out = _settled(result, scope)

            def pull(cotangents):
                back = backward(uncarried(cotangents))
                return tuple(_returned(back if len(args) > 1 else (back,), args, inside, scope))

            return carried(out), pull

        return uncarried(run(*[x.array if is_tensor(x) else jnp.asarray(x) for x in given]))

    return differentiable


def _two_results(returned):
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
        raise MeshDSLError(
            "custom_gradient: the function returns (result, backward), not "
            f"{type(returned).__name__}"
        )
    return returned


def _settled(result, scope: Scope | None):
    leaves, tree = jax.tree.flatten(result, is_leaf=is_tensor)
    if others := sorted({type(x).__name__ for x in leaves if not is_tensor(x)}):
        raise MeshDSLError(
            f"custom_gradient: the result is a pytree of Tensors, not of {', '.join(others)}"
        )
    return jax.tree.unflatten(tree, [fixed(t, scope) for t in leaves])


def _returned(back, args, inside, scope: Scope | None):
    """An array of cotangents, or None, for each leaf of the arguments."""
    if not isinstance(back, tuple) or len(back) != len(args):
        raise MeshDSLError(
            f"custom_gradient: backward returns a tuple with a cotangent for each of {len(args)} "
            "arguments, or None"
        )
    at = 0
    for ct, arg in zip(back, args, strict=True):
        leaves, tree = jax.tree.flatten(arg, is_leaf=is_tensor)
        try:
            cts = [None] * len(leaves) if ct is None else tree.flatten_up_to(ct)
        except ValueError:
            raise MeshDSLError(
                "custom_gradient: a cotangent has another structure than its argument"
            ) from None
        for leaf, x in zip(cts, inside[at : at + len(leaves)], strict=True):
            yield None if leaf is None else _cotangent(leaf, x, scope).array
        at += len(leaves)


def _cotangent(ct, x, scope: Scope | None) -> Tensor:
    if not is_tensor(ct) or not is_tensor(x) or kind(ct) != kind(x):
        shape = shown(ct) if is_tensor(ct) else type(ct).__name__
        raise MeshDSLError(
            f"custom_gradient: the cotangent of {shown(x)} comes back as {shape}; only Tensors "
            "that are alike, or None"
        )
    return as_cotangent(ct, x, scope)
