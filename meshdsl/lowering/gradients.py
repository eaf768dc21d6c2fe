"""Gradients: JAX differentiates the lowered program; this file only decides where the sums over devices are taken.

A parameter that several ops use is, by its type, equal on all devices, so JAX would sum its gradient over the
devices at every use: in a scan over layers, once per layer and per microbatch. Instead the parameter is made to vary,
before differentiation, over the axes over which *all* of its uses vary. Its gradient then comes out as one pending
sum, which the law settles once: a psum, or a psum_scatter where the layout splits optimizer state (ZeRO-1). In which dtypes
this happens, and what else a layout may ask for, is said in `held`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.parameter_copies import held
from meshdsl.lowering.scope import common
from meshdsl.tensor import Tensor, is_tensor


def value_and_grad(
    fn: Callable, *, has_aux: bool = False, accumulate: Dim | None = None, compute=None, reduce=None
) -> Callable:
    """A function that returns the value of `fn` and its gradient by the first argument.

    Args:
      fn: called with a pytree of Tensors and any other arguments; returns a Tensor without dims, and with `has_aux`
        also a pytree of Tensors.
      accumulate: a dim of microbatches. Every Tensor among the other arguments that has it is cut along it, the
        gradients of the cuts are averaged, and only the average is summed over devices: one reduction per step
        for parameters that are not split. Value and auxiliary results are averaged too.
      compute: the dtype in which `fn` gets the first argument, and in which it is gathered where it is split; by default its own.
      reduce: the dtype in which gradients travel and are summed over devices; by default that of the first argument.
        Over microbatches they are summed in the latter.

    Returns:
      A function of the same arguments, giving `(value, gradients)` or `((value, aux), gradients)`. Gradients have the
      dims and dtypes of the parameters and, in a lowering, the layout's split for optimizer state (`rules` and all lists below it).
      What `aux` has is no gradient: it is split as a value, or as a parameter where it comes from
      parameters alone.

    Raises:
      MeshDSLError: the value has dims or is no real floating-point number, `accumulate` is empty or
        not a dim of any argument, or a dtype is no floating-point one.
    """
    compute, reduce = _float("compute", compute), _float("reduce", reduce)

    def scalar(params, *args):
        made = fn(params, *args)
        if has_aux and (not isinstance(made, tuple) or len(made) != 2):
            got = dim_algebra.show(made.dims) if is_tensor(made) else quote(made)
            raise MeshDSLError(
                f"value_and_grad: with has_aux the function returns (value, aux), not {got}"
            )
        value, aux = made if has_aux else (made, ())
        if not is_tensor(value) or value.dims:
            shown = dim_algebra.show(value.dims) if is_tensor(value) else quote(value)
            several = isinstance(value, tuple)
            advice = "set has_aux=True to return more" if several else "take md.mean or md.sum"
            raise MeshDSLError(
                f"value_and_grad: the value is a Tensor without dims, not {shown}; {advice}"
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise MeshDSLError(
                f"value_and_grad: the value is a real floating-point number, not {value.dtype}; "
                "use md.cast, or md.real or md.abs of a complex number"
            )
        aux = jax.tree.map(
            lambda x: _settled_result(x) if is_tensor(x) else x, aux, is_leaf=is_tensor
        )
        value = _settled_result(value)
        return value.array, carried((value, aux))

    def of_arrays(tensors, tree, arrays, *args):
        params = [
            t.replace(array=a if t.place or compute is None else a.astype(compute))
            for a, t in zip(arrays, tensors, strict=True)
        ]
        return scalar(jax.tree.unflatten(tree, params), *args)

    def value_and_gradients(params, *args):
        leaves, tree = jax.tree.flatten(params, is_leaf=is_tensor)
        tensors = [t for t in leaves if is_tensor(t)]
        if len(tensors) != len(leaves) or not tensors:
            others = sorted({type(t).__name__ for t in leaves if not is_tensor(t)})
            raise MeshDSLError(
                f"value_and_grad: the first argument is a pytree of Tensors, but it has {', '.join(others) or 'none'}"
            )
        _check_floats(params)
        inputs = jax.tree.leaves(args, is_leaf=is_tensor)
        scope = common("value_and_grad", [*tensors, *filter(is_tensor, inputs)])
        if accumulate is not None and not any(
            is_tensor(x) and accumulate in x.dims for x in inputs
        ):
            raise MeshDSLError(
                f"value_and_grad: no argument has the dim {accumulate} to accumulate over"
            )
        if accumulate is not None and not accumulate.size:
            raise MeshDSLError(
                f"value_and_grad: {accumulate} has no microbatch to take a gradient of; "
                "give it a size of 1 or more"
            )
        if scope is not None:
            tensors = [
                held(entered(resharding.placed(resharding.plain(t), scope)), compute, reduce)
                for t in tensors
            ]
            args = _in_turn(args, accumulate, scope)

        uses = [()] * len(tensors)
        if scope is not None:
            uses = find_uses(scalar, tensors, tree, _cut(args, accumulate, 0), scope)
            tensors = [varied(t, axes, scope) for t, axes in zip(tensors, uses, strict=True)]
        run = partial(of_arrays, tensors, tree)
        arrays = [t.stored for t in tensors]
        if accumulate is None:
            (_, out), grads = jax.value_and_grad(lambda arrays: run(arrays, *args), has_aux=True)(
                arrays
            )
        else:
            out, grads = _accumulated(run, arrays, args, accumulate, scope)
        value, aux = uncarried(out)
        grads = [Tensor(g, t.dims, t.role, t.place) for g, t in zip(grads, tensors, strict=True)]
        if scope is not None:
            grads = [gradient(g, axes) for g, axes in zip(grads, uses, strict=True)]
        return ((value, aux) if has_aux else value), jax.tree.unflatten(tree, grads)

    return value_and_gradients


def _check_floats(params) -> None:
    """Raise a MeshDSLError for a parameter of whole numbers, with its path."""
    for path, t in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_tensor):
        if not jnp.issubdtype(t.dtype, jnp.inexact):
            at = jax.tree_util.keystr(path, simple=True, separator=".")
            what = f"`{at}`" if at else "the first argument"
            raise MeshDSLError(
                f"value_and_grad: {what} {dim_algebra.show(t.dims)} is of {t.dtype}, which has no "
                "gradient; give it as another argument, or cast it"
            )


def entered(t: Tensor) -> Tensor:
    """`t`, to be differentiated by. Inside `over` each element has a derivative of its own, so nothing is summed over
    the axes that its dim is split over: `t` is made whole, and varying, over these beforehand.
    """
    spent = t.place.scope.in_mesh_order(t.place.scope.layout.spent)
    return varied(resharding.settle(t), spent, t.place.scope) if spent else t


def _settled_result(x: Tensor) -> Tensor:
    """What a differentiated function returns, settled; no gradient, whatever it comes from."""
    if x.place is None:
        return x
    x.place.scope.note_use(x.place.origin, ())
    if x.place.level == "gradient":
        x = x.replace(place=x.place._replace(level="parameter"))
    return resharding.plain(resharding.settle(x))


def _float(name: str, dtype):
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise MeshDSLError(
            f"value_and_grad: {name} is a floating-point dtype such as bfloat16, not {quote(dtype)}"
        )
    return found


def find_uses(scalar, tensors, tree, args, scope) -> list[tuple[str, ...]]:
    """For each parameter the axes over which every one of its uses varies, found by tracing the value once."""
    marked = [
        t.replace(place=t.place._replace(origin=frozenset((i,)))) for i, t in enumerate(tensors)
    ]
    with scope.looking_for_uses() as uses:
        value = lambda params: scalar(uncarried(params), *args)[0]  # noqa: E731
        jax.eval_shape(value, carried(jax.tree.unflatten(tree, marked)))
    own = [
        scope.layout.spent.union(*t.place.axes) for t in tensors
    ]  # a loop over a dim that they split has gathered it before
    return [scope.in_mesh_order(set(uses.get(i, ())) - own[i]) for i in range(len(tensors))]


def varied(t: Tensor, axes, scope) -> Tensor:
    """`t` with a type that varies over `axes`; recorded, because a second derivative sums over them."""
    if not axes:
        return t
    with jax.named_scope(scope.recorder.begin("vary", t.dims, t.place.axes).tag):
        return t.replace(array=collectives.vary(t.stored, axes))


def gradient(grad: Tensor, axes, level: str = "optimizer") -> Tensor:
    """`grad`, of which each device along `axes` has a term, summed in the dtype that it says and split as `level` says."""
    array, dtype = grad.stored, grad.stored.dtype
    with jax.named_scope("gradient"):
        dtypes = grad.place.dtypes
        if axes and dtypes:
            array = lax.optimization_barrier(
                array.astype(dtypes.sums)
            )  # see `derivatives.to_sum`; the cast up may lie further back
        place = grad.place._replace(pending=tuple(axes), level=level, dtypes=None)
        term = Tensor(array, grad.dims, grad.role, place)
        rules = grad.place.scope.layout.at("value")
        term.because = {
            a: " or ".join(dict.fromkeys(str(rule) for rule in rules if rule.axis == a))
            for a in axes
        }
        settled = resharding.settle(term, "gradient")
        return settled.replace(array=settled.stored.astype(dtype))


def _in_turn(args, dim: Dim | None, scope):
    """`args` with every Tensor that has `dim` split as its elements along `dim` are, one after another."""
    if dim is None:
        return args
    op = scope.recorder.begin("accumulate", (dim,), ((),))

    def turn(x):
        return resharding.in_turn(x, (dim,), op) if is_tensor(x) and dim in x.dims else x

    return jax.tree.map(turn, args, is_leaf=is_tensor)


def _cut(args, dim: Dim | None, index):
    """`args` with every Tensor that has `dim` cut to one element of it."""

    def cut(x):
        if not is_tensor(x) or dim not in x.dims:
            return x
        at = x.dims.index(dim)
        place = x.place and x.place._replace(axes=x.place.axes[:at] + x.place.axes[at + 1 :])
        return Tensor(
            lax.dynamic_index_in_dim(x.array, index, at, keepdims=False),
            dim_algebra.without(x.dims, (dim,)),
            x.role,
            place,
        )

    return args if dim is None else jax.tree.map(cut, args, is_leaf=is_tensor)


def _accumulated(run, arrays, args, dim: Dim, scope):
    """Values and gradients averaged over `dim`; the carried gradients are sums that no device has shared yet."""

    def body(total, index):
        cut = _cut(args, dim, index)
        (_, out), grads = jax.value_and_grad(lambda arrays: run(arrays, *cut), has_aux=True)(arrays)
        return jax.tree.map(jnp.add, total, grads), out

    zeros = [collectives.vary(jnp.zeros_like(a), collectives.varying(a)) for a in arrays]
    if scope is None:
        total, outs = lax.scan(body, zeros, jnp.arange(dim.size))
    else:
        with scope.recorder.repeated(dim.name, dim.size):
            total, outs = lax.scan(body, zeros, jnp.arange(dim.size))
    mean = lambda a: jnp.mean(a, axis=0)  # noqa: E731
    return jax.tree.map(mean, outs), jax.tree.map(lambda g: g / dim.size, total)
