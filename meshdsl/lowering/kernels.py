"""Kernels: functions of local arrays, such as Pallas kernels, that JAX cannot follow by its types.

Inside a lowering JAX keeps track, for every array, of the axes over which it may differ between
devices. A Pallas kernel has no such types. JAX refuses the kernel, or, where it interprets the
kernel on a CPU, finds types that do not match. Here such a function becomes one opaque operation.
The function is traced by itself, as if on one device. The results of the operation vary over every
axis that one of its operands varies over: a function of local arrays cannot vary over any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec

from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.program.jaxpr import body_of, sub_jaxprs
from meshdsl.program.name_stacks import Stated, flops_scope

OPAQUE = "local_kernel"
_OPAQUE = Primitive(OPAQUE)
_OPAQUE.multiple_results = True


class Product(NamedTuple):
    """`batch` matrix products of m x k by k x n in a kernel, for which it computes `flops`.

    Attributes:
      uneven: whether some devices compute more than others, so that `flops` is their mean.
      grouped: of products of groups of rows, the FLOPs that the kernel computes, which multiplies
        some rows for two groups; 0 for other products.
      contract: which of the products of groups of rows it is, in the words of
        `meshdsl.proof.sorting`; empty for other products.
    """

    batch: int
    m: int
    k: int
    n: int
    flops: int
    dtype: str
    uneven: bool = False
    grouped: int = 0
    contract: str = ""


Products = tuple[Product, ...]


def called(fn: Callable, arrays: Sequence[jax.Array], name: str):
    """`fn(*arrays)` on one device of a lowering, where `fn` may contain a Pallas kernel.

    A function without a kernel is called as it is. A function with a kernel has the derivative that
    JAX finds for it, in reverse mode and of first order: the one that it states by
    `jax.custom_vjp`, or else one that Pallas finds.

    Args:
      name: the name of the op, for messages.
    """
    closed, out_tree = _call(fn, *jax.tree.flatten(tuple(arrays))).traced()
    if not _has_kernel(closed.jaxpr):
        return fn(*arrays)
    arrays = collectives.vary_together(arrays)
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
        return _bound(closed, out_tree, arrays, None)

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


def opaque(fn: Callable, *args, products: Products | None = None, results: Any = None):
    """`fn(*args)`, of pytrees of local arrays, as one operation.

    Its results vary over all axes over which any of the arrays varies. The operation has no
    derivative: it is for the two functions of a `jax.custom_vjp`.

    Args:
      fn: a function. If it is a `partial` of a function without a closure, and of values that can
        be compared, it is traced once for all calls with equal values on arrays of equal types.
      products: the products that estimates count in the place of the code of `fn`.
      results: the shapes and dtypes of the results of such a `partial`, as `ShapeDtypeStruct`s.
        Then `fn` is not traced before the program is lowered for a compiler.
    """
    leaves, tree = jax.tree.flatten(args)
    call = _call(_comparable(fn) or fn, leaves, tree)
    if results is None or not isinstance(call.fn, _Comparable):
        return _bound(*call.traced(), leaves, products)
    later = _TracedLater(call, tuple(jax.tree.leaves(results)))
    return _bound(later, jax.tree.structure(results), leaves, products)


def _bound(kernel: Any, out_tree: Any, leaves: Sequence, products: Products | None):
    """The results of the operation that runs `kernel`: a closed jaxpr, or a `_TracedLater`."""
    leaves = collectives.vary_together(leaves)
    with _stating(products):
        return jax.tree.unflatten(out_tree, _OPAQUE.bind(*leaves, jaxpr=kernel, products=products))


def _stating(products: Products | None) -> AbstractContextManager:
    if products is None:
        return nullcontext()
    flops, grouped = sum(p.grouped or p.flops for p in products), any(p.grouped for p in products)
    return jax.named_scope(flops_scope(Stated(flops, grouped)))


class _Comparable:
    """A `partial` that is equal to any other of the same function and of equal values."""

    def __init__(self, fn: partial, key: Any):
        self._fn, self._key = fn, key

    def __eq__(self, other):
        return isinstance(other, _Comparable) and self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def __repr__(self):
        return self._fn.func.__name__

    def __call__(self, *args):
        return self._fn(*args)


_MOST_BYTES = 4096  # larger arrays of NumPy are not compared
# Python's errors for values that have no hash, cannot be compared, or contain themselves.
_NOT_COMPARABLE = (TypeError, ValueError, RecursionError)


def _key_of(x: Any) -> Any:
    """A key for a value or a function. Where two keys are equal, kernels cannot tell the values.

    Raises:
      TypeError: there is no such key, as for a value without a hash and a large array of NumPy.
    """
    match x:
        case FunctionType():
            cells = [_key_of(c.cell_contents) for c in x.__closure__ or ()]
            return x.__code__, tuple(cells), _key_of(x.__defaults__), _key_of(x.__kwdefaults__)
        case tuple() | list():
            return type(x), tuple([_key_of(y) for y in x])
        case dict():
            return tuple([(k, _key_of(v)) for k, v in x.items()])
        case np.ndarray():
            return x.shape, x.dtype, x.tobytes() if x.nbytes <= _MOST_BYTES else hash(x)
        case bool() | int() | float() | complex():
            return type(x), x
        case partial():
            return _key_of((x.func, x.args, x.keywords))
        case MethodType():
            return x.__func__, _key_of(x.__self__)
    hash(x)
    return x


def _comparable(fn: Callable) -> _Comparable | None:
    """`fn` as a `_Comparable`; None if its results may depend on what cannot be compared."""
    if not isinstance(fn, partial) or getattr(fn.func, "__closure__", fn) is not None:
        return None
    try:
        key = fn.func, _key_of((fn.args, fn.keywords))
        hash(key)
    except _NOT_COMPARABLE:
        return None
    return _Comparable(fn, key)


@lru_cache(maxsize=64)
def _jitted(fn: _Comparable) -> Any:
    """`fn` of the structure and the leaves of its arguments, under `jit`, which keeps traces."""
    return jax.jit(lambda tree, *leaves: fn(*jax.tree.unflatten(tree, leaves)), static_argnums=0)


class _Call(NamedTuple):
    """A function of pytrees of arrays, and the types of the arrays that it is called with."""

    fn: Callable
    tree: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    def traced(self) -> tuple[Any, Any]:
        """The closed jaxpr of the call, traced as if outside of `shard_map`, and the structure of
        its result.
        """
        found: list = []

        def unchecked():
            if isinstance(self.fn, _Comparable):
                traced = _jitted(self.fn).trace(self.tree, *self.shapes)
                closed, out = traced.jaxpr, traced.out_info
            else:
                run = lambda *leaves: self.fn(*jax.tree.unflatten(self.tree, leaves))
                closed, out = jax.make_jaxpr(run, return_shape=True)(*self.shapes)
            found[:] = [closed, jax.tree.structure(out)]
            return jnp.zeros(())

        # A shard_map over no further axis, without checks, is the public way to switch the checks
        # off for one function. Where no mesh is set, shard_map has to be given one.
        empty = jax.sharding.get_abstract_mesh().empty
        mesh: Any = jax.sharding.AbstractMesh((1,), ("alone",)) if empty else None
        jax.eval_shape(
            jax.shard_map(
                unchecked, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False
            )
        )
        closed, tree = found
        return closed, tree


def _call(fn: Callable, leaves: Sequence, tree: Any) -> _Call:
    return _Call(fn, tree, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))


class _TracedLater:
    """A call that is not traced before the program that contains it is lowered.

    No two of these are equal, because each has its own place in a program.
    """

    def __init__(self, call: _Call, results: tuple[jax.ShapeDtypeStruct, ...]):
        self._call, self.out_avals = call, results

    def __repr__(self):
        return f"<{self._call.fn!r}, traced later>"

    def closed(self) -> Any:
        closed, _ = self._call.traced()
        stated, found = ([(x.shape, x.dtype) for x in k.out_avals] for k in (self, closed))
        assert stated == found, f"stated {stated}, found {found}"
        return closed


def _closed(kernel: Any) -> Any:
    return kernel.closed() if isinstance(kernel, _TracedLater) else kernel


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
    jaxpr = _closed(jaxpr)
    bare = context.replace(avals_in=jaxpr.in_avals, avals_out=jaxpr.out_avals)
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(bare, *operands)


def _batched(operands, batch_dims, *, jaxpr, products):
    size = next(x.shape[at] for x, at in zip(operands, batch_dims, strict=True) if at is not None)
    mapped = jax.vmap(jaxpr_as_fun(_closed(jaxpr)), in_axes=batch_dims, out_axes=0, axis_size=size)
    if products is not None:
        more = [{"batch": p.batch * size, "flops": p.flops * size} for p in products]
        pairs = zip(products, more, strict=True)
        products = tuple(p._replace(**each, contract="") for p, each in pairs)
    result = opaque(lambda *xs: mapped(*xs), *operands, products=products)
    return result, [0] * len(result)


mlir.register_lowering(_OPAQUE, _lowered)
batching.primitive_batchers[_OPAQUE] = _batched
