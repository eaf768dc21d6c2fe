"""Elementwise primitives, and functions of these that bring a derivative of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from meshdsl.dims import Dims
from meshdsl.lowering import collectives
from meshdsl.lowering.law import apply_op
from meshdsl.lowering.pending_sums import sums_alike
from meshdsl.ops import checkpoint, component
from meshdsl.plain_jax import gradients
from meshdsl.plain_jax.evaluate import (
    RULES,
    Evaluation,
    bind,
    is_inexact,
    numpy_scalar,
    rule,
    where,
)
from meshdsl.plain_jax.positions import like_result
from meshdsl.plain_jax.primitives import ELEMENTWISE, LINEAR
from meshdsl.plain_jax.program import CALLS, Equation
from meshdsl.tensor import Tensor, is_tensor

# Operands that may stay a number where the others have dims.
_NUMBERS = {"select_n": (0,), "clamp": (0, 2)}


@rule(*ELEMENTWISE)
def elementwise(_: Evaluation, e: Equation, xs: list) -> list:
    """Any elementwise primitive."""
    params = tuple(e.params.items())

    def function(*arrays):
        return e.primitive.bind(*arrays, **dict(params))

    if e.primitive not in ad.primitive_jvps:
        function = gradients.named(function, f"`{e.name}` at {where(e)}")
    return [_applied(e, xs, function, linear=_is_linear(e, xs))]


def _is_linear(e: Equation, xs: list) -> bool:
    """Whether sums over devices that are pending in all Tensors among `xs` may be taken later."""
    tensors = [is_tensor(x) for x in xs]
    dtypes = e.ins[0].dtype, e.outs[0].dtype
    if e.name == "convert_element_type":
        return sums_alike(*dtypes)
    if e.name in LINEAR:
        return all(tensors)
    if e.name == "mul":
        return sum(tensors) == 1
    return e.name == "div" and tensors == [True, False] and is_inexact(dtypes[0])


def _applied(e: Equation, xs: list, function: Callable, *, linear: bool = False) -> Tensor:
    """An elementwise function of the operands, which may lack dims that the result has."""
    out = e.outs[0]
    xs = [like_result(x, v, out) for x, v in zip(xs, e.ins, strict=True)]
    tensors = tuple(x for x in xs if is_tensor(x))
    if not tensors:
        tensors = (Tensor(jnp.asarray(xs[0]), ()),)
        xs = [tensors[0], *xs[1:]]
    present = {d for t in tensors for d in t.dims}
    dims: Dims = tuple(d for d in out.flat if d in present)
    numbers = tuple(None if is_tensor(x) else numpy_scalar(x) for x in xs)
    places = tuple(is_tensor(x) for x in xs)
    all_dims = tuple(t.dims for t in tensors)
    # Numbers stay such, where the primitive has taken them as such.
    kept = tuple(i for i, v in enumerate(e.ins) if not v.shape) if out.shape else ()

    def local(loop, *arrays):
        sizes = tuple(loop.size(d) for d in dims)
        spread = iter([_spread(a, d, dims, sizes) for a, d in zip(arrays, all_dims, strict=True)])
        given = [
            next(spread) if p else jnp.asarray(n) for p, n in zip(places, numbers, strict=True)
        ]
        return function(*alike(given, sizes, kept))

    fill = None if linear else 1
    how = {"in_order": (), "linear": linear, "fill": fill}
    return apply_op(e.name, local, tensors, loop=dims, out=dims, **how)


def _spread(array: jax.Array, have: Dims, dims: Dims, sizes: tuple[int, ...]) -> jax.Array:
    """An array with the dims `have` along all of `dims`, whose sizes on a device are given."""
    kept = tuple(d for d in dims if d in have)
    if kept != have:
        array = jnp.transpose(array, [have.index(d) for d in kept])
    if not have or kept == dims:  # a number may stay one
        return array
    return lax.broadcast_in_dim(array, sizes, [dims.index(d) for d in kept])


def alike(arrays: list, shape: tuple[int, ...], kept: tuple[int, ...] = ()) -> list:
    """Arrays of one shape, and of types that vary over the same axes, as primitives want them.

    Args:
      kept: the numbers of those that stay numbers, where they are.
    """
    axes = frozenset().union(*[collectives.varying(a) for a in arrays])
    arrays = [collectives.vary(a, axes) for a in arrays]
    if len(arrays) == 1:
        return arrays
    return [
        a if a.shape == shape or (a.ndim == 0 and i in kept) else jnp.broadcast_to(a, shape)
        for i, a in enumerate(arrays)
    ]


@rule("custom_jvp_call")
def custom_jvp(at: Evaluation, e: Equation, xs: list) -> list:
    """An elementwise function with a derivative of its own: both, on what each device has."""
    if "function" not in e.notes:  # not elementwise
        return RULES["custom_vjp_call"](at, e, xs)
    return [_applied(e, xs, e.notes["function"])]


def with_derivative(body: Any, tangents: Any) -> Callable:
    """The function of a `custom_jvp_call` that is elementwise, for arrays of any shape.

    Args:
      body: its closed jaxpr.
      tangents: the closed jaxpr of its rule: from the operands and their tangents to the result
        and its tangent.
    """

    @jax.custom_jvp
    def function(*arrays):
        return run_elementwise(body.jaxpr, body.consts, arrays)[0]

    @function.defjvp
    def _(primals, given):
        made, tangent = run_elementwise(tangents.jaxpr, tangents.consts, [*primals, *given])
        made = jnp.broadcast_to(made, jnp.broadcast_shapes(*[p.shape for p in primals]))
        tangent = jnp.broadcast_to(tangent, made.shape).astype(made.dtype)
        axes = collectives.varying(made) | collectives.varying(tangent)
        return collectives.vary(made, axes), collectives.vary(tangent, axes)

    return function


def run_elementwise(jaxpr: Any, consts: Any, args: Any) -> list:
    """An elementwise jaxpr on arrays of any one shape. What is broadcast of a number stays one."""
    env = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    read = lambda v: jnp.asarray(v.val, v.aval.dtype) if hasattr(v, "val") else env[v]
    for e in jaxpr.eqns:
        xs, name = [read(v) for v in e.invars], e.primitive.name
        if name in CALLS or name == "custom_jvp_call":
            inner = e.params[CALLS.get(name, "call_jaxpr")]
            made = run_elementwise(inner.jaxpr, inner.consts, xs)
        elif name == "broadcast_in_dim":
            made = xs
        else:
            shape = jnp.broadcast_shapes(*[jnp.shape(x) for x in xs])
            xs = alike([jnp.asarray(x) for x in xs], shape, _NUMBERS.get(name, ()))
            made = [e.primitive.bind(*xs, **e.params)]
        env.update(zip(e.outvars, made, strict=True))
    return [read(v) for v in jaxpr.outvars]


@rule("bitcast_convert_type")
def bitcast(at: Evaluation, e: Equation, xs: list) -> list:
    """The bits as another dtype of the same width."""
    if e.ins[0].shape != e.outs[0].shape:
        return at.fall_back(e, xs)
    return elementwise(at, e, xs)


@rule("optimization_barrier")
def barrier(_: Evaluation, e: Equation, xs: list) -> list:
    """What the compiler is to keep apart."""
    made = []
    for x, v, out in zip(xs, e.ins, e.outs, strict=True):
        x = component.materialize(x) if is_tensor(x) else x
        made.append(like_result(x, v, out))
    return made


@rule("name")
def checkpoint_name(_: Evaluation, e: Equation, xs: list) -> list:
    """A save point of rematerialisation."""
    (x,) = xs
    if not is_tensor(x):
        return bind(e, [x])
    return [like_result(checkpoint.checkpoint_name(x, e.params["name"]), e.ins[0], e.outs[0])]


@rule("sharding_constraint", "device_put")
def constraint(_: Evaluation, e: Equation, xs: list) -> list:
    """Nothing: the layout says how tensors are split."""
    return [like_result(x, v, out) for x, v, out in zip(xs, e.ins, e.outs, strict=True)]
