"""Kernels: functions of local arrays, such as Pallas kernels, that JAX cannot follow by its types.

Inside a lowering JAX follows, for every array, the axes over which it may differ between devices.
A Pallas kernel has no such types: JAX refuses it, or, where it interprets the kernel on a CPU,
finds types that do not meet. Here such a function becomes one opaque operation. It is traced by
itself, as if on one device, and its results vary over every axis that one of its operands varies
over, which is all that a function of local arrays can make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec

from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.record.jaxpr import body_of, sub_jaxprs
from meshdsl.record.kernel_flops import flops_scope

_OPAQUE = Primitive("local_kernel")
_OPAQUE.multiple_results = True


class Product(NamedTuple):
    """`batch` products of m x k by k x n in a kernel, of which it computes `flops`."""

    batch: int
    m: int
    k: int
    n: int
    flops: int
    dtype: str


Products = tuple[Product, ...]


def called(fn: Callable, arrays: Sequence[jax.Array], name: str):
    """`fn(*arrays)` on one device of a lowering, where `fn` may contain a Pallas kernel.

    A function without one is called as it is. One with a kernel has the derivative that JAX finds
    for it, in reverse mode and of first order: what Pallas can differentiate, or what the
    function states by `jax.custom_vjp`.

    Args:
      name: of the op, for messages.
    """
    if not _has_kernel(_traced(fn, arrays)[0].jaxpr):
        return fn(*arrays)
    axes = frozenset().union(*map(collectives.varying, arrays))
    arrays = [collectives.vary(x, axes) for x in arrays]
    floats = [i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def of_floats(arrays):
        def run(*some):
            merged = dict(enumerate(arrays)) | dict(zip(floats, some, strict=True))
            return fn(*[merged[i] for i in range(len(arrays))])

        return run, [arrays[i] for i in floats]

    def with_pullback(*arrays):
        run, some = of_floats(arrays)
        return jax.vjp(run, *some)

    @jax.custom_vjp
    def kernel(*arrays):
        return opaque(fn, *arrays)

    def forward(*arrays):
        try:
            return opaque(with_pullback, *arrays)
        except (NotImplementedError, AssertionError, ValueError, TypeError) as error:
            raise MeshDSLError(
                f"{name}: JAX cannot differentiate this kernel ({type(error).__name__}); give the "
                "function its own derivative with jax.custom_vjp, or keep gradients from it with "
                "md.stop_gradient"
            ) from error

    def backward(pullback, cotangent):
        pulled = lambda pullback, cotangent: pullback(cotangent)
        found = opaque(pulled, pullback, cotangent)
        by_index = dict(zip(floats, found, strict=True))
        return tuple(by_index.get(i) for i in range(len(arrays)))

    kernel.defvjp(forward, backward)
    return kernel(*arrays)


def opaque(fn: Callable, *args, products: Products | None = None):
    """`fn` of pytrees of local arrays, as one operation that varies over the axes of all.

    It has no derivative: it is for the two functions of a `jax.custom_vjp`.

    Args:
      products: what estimates count in the place of the code of `fn`.
    """
    leaves, tree = jax.tree.flatten(args)
    axes = frozenset().union(*map(collectives.varying, leaves))
    leaves = [collectives.vary(x, axes) for x in leaves]
    closed, out_tree = _traced(lambda *xs: fn(*jax.tree.unflatten(tree, xs)), leaves)
    if products is None:
        return jax.tree.unflatten(out_tree, _OPAQUE.bind(*leaves, jaxpr=closed, products=None))
    with jax.named_scope(flops_scope(sum(product.flops for product in products))):
        return jax.tree.unflatten(out_tree, _OPAQUE.bind(*leaves, jaxpr=closed, products=products))


def _traced(fn: Callable, arrays: Sequence) -> tuple[Any, Any]:
    """The jaxpr of `fn` for arrays of these shapes, traced as if outside of `shard_map`, and the
    structure of its result.
    """
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    found: list = []

    def unchecked():
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*shapes)
        found[:] = [closed, jax.tree.structure(out)]
        return jnp.zeros(())

    # A shard_map over no further axis, without checks, is the public way to switch the checks off
    # for one function. Where the mesh has no axes it has to be given one.
    mesh = jax.sharding.get_abstract_mesh()
    alone: Any = jax.sharding.AbstractMesh((1,), ("alone",))
    how = {"mesh": alone} if mesh.empty else {}
    jax.eval_shape(
        jax.shard_map(unchecked, in_specs=(), out_specs=PartitionSpec(), check_vma=False, **how)
    )
    closed, tree = found
    return closed, tree


def _has_kernel(jaxpr) -> bool:
    return any(
        eqn.primitive.name == "pallas_call" or any(map(_has_kernel, sub_jaxprs(eqn.params)))
        for eqn in body_of(jaxpr).eqns
    )


@_OPAQUE.def_abstract_eval
def _types(*operands, jaxpr, products):
    return [
        operands[0].update(shape=a.shape, dtype=a.dtype, weak_type=False) for a in jaxpr.out_avals
    ]


def _lowered(context, *operands, jaxpr, products):
    bare = context.replace(avals_in=jaxpr.in_avals, avals_out=jaxpr.out_avals)
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(bare, *operands)


def _batched(operands, batch_dims, *, jaxpr, products):
    size = next(x.shape[at] for x, at in zip(operands, batch_dims, strict=True) if at is not None)
    mapped = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=batch_dims, out_axes=0, axis_size=size)
    if products is not None:
        products = tuple(p._replace(batch=p.batch * size, flops=p.flops * size) for p in products)
    made = opaque(lambda *xs: mapped(*xs), *operands, products=products)
    return made, [0] * len(made)


mlir.register_lowering(_OPAQUE, _lowered)
batching.primitive_batchers[_OPAQUE] = _batched
