"""A lowered program that is mapped along axes of the mesh from the outside, as by `jax.vmap`.

The program is traced as it is for one element of the map: nothing in it varies over these axes, so
the law, the gradients and the record are those of a program that knows nothing of them. What runs
on a device is this program for each element that the device has. There every value varies over the
axes too, also constants, because types must agree where two values meet.

JAX can map a `shard_map` as well, but leaves the types of constants as they were (jax 0.10 to
0.12).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshdsl.lowering import collectives
from meshdsl.lowering.collectives import Axes
from meshdsl.lowering.kernels import OPAQUE
from meshdsl.lowering.linearized import cut_from

_MOVES_NO_TYPES = (OPAQUE, "pallas_call")  # what is traced without types
_RULES = ("custom_jvp_call", "custom_vjp_call")  # no gradient is taken of a program that is mapped


def mappable(closed: Any, axes: Axes) -> Callable:
    """A function that computes the program `closed`, and that `jax.vmap` maps along `axes`.

    Args:
      closed: a closed jaxpr of one `shard_map`, which does not mention `axes`.
      axes: major first; they divide the size of the map.
    """
    (equation,) = closed.jaxpr.eqns
    call = jax.custom_batching.custom_vmap(jex.jaxpr_as_fun(closed))

    @call.def_vmap
    def mapped(size: int, is_mapped: list[bool], *arrays: Any) -> tuple[list, list[bool]]:
        mesh, consts = equation.params["mesh"], closed.consts
        given = dict(zip(closed.jaxpr.invars, zip(arrays, is_mapped, strict=True), strict=True))
        given |= {v: (c, False) for v, c in zip(closed.jaxpr.constvars, consts, strict=True)}
        operands, along = zip(*[given[v] for v in equation.invars], strict=True)
        ahead = lambda spec: PartitionSpec(axes, *spec)
        specs = zip(equation.params["in_specs"], along, strict=True)
        each = _varying_over(equation.params["jaxpr"], (), axes)
        alone = size == prod(mesh.shape[axis] for axis in axes)

        def local(*parts: Any) -> list:
            varying = [collectives.vary(x, axes) for x in parts]
            if not alone:
                return jax.vmap(each, in_axes=[0 if m else None for m in along])(*varying)
            one = [x[0] if m else x for x, m in zip(varying, along, strict=True)]
            return [x[None] for x in each(*one)]

        results = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=tuple(ahead(spec) if m else spec for spec, m in specs),
            out_specs=[ahead(spec) for spec in equation.params["out_specs"]],
        )(*operands)
        by_variable = dict(zip(equation.outvars, results, strict=True))
        return [by_variable[v] for v in closed.jaxpr.outvars], [True] * len(closed.jaxpr.outvars)

    return call


def _varying_over(jaxpr: Any, consts: Any, axes: Axes) -> Callable:
    """What a jaxpr computes, of arrays that vary over `axes` too; all its values do."""

    def run(*args: Any) -> list:
        vary = lambda x: collectives.vary(x, axes)
        literal = lambda v: vary(jnp.asarray(v.val, v.aval.dtype))
        read = lambda v: literal(v) if isinstance(v, jex.Literal) else values[v]
        values = dict(zip(jaxpr.constvars, map(vary, consts), strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))
        for equation in jaxpr.eqns:
            results = _run(jaxpr, equation, [read(v) for v in equation.invars], axes)
            values.update(zip(equation.outvars, map(vary, results), strict=True))
        return [read(v) for v in jaxpr.outvars]

    return run


def _run(jaxpr: Any, equation: Any, operands: list, axes: Axes) -> list:
    """The results of one equation of a jaxpr."""
    name, params = equation.primitive.name, equation.params
    if name in _RULES:
        closed = params["call_jaxpr"]
        return _varying_over(closed.jaxpr, closed.consts, axes)(*operands)
    if name not in _MOVES_NO_TYPES:
        params = {key: _with_types(value, axes) for key, value in params.items()}
    variables = jax.make_jaxpr(lambda *xs: xs)(*map(jax.typeof, operands)).jaxpr.invars
    one = equation.replace(invars=variables, params=params)
    return jex.jaxpr_as_fun(cut_from(jaxpr, variables, [one], equation.outvars))(*operands)


def _with_types(value: Any, axes: Axes) -> Any:
    """A parameter of an equation, of whose jaxprs every value varies over `axes` too."""
    if isinstance(value, (tuple, list)) and any(map(_is_jaxpr, value)):
        return type(value)(_with_types(each, axes) for each in value)
    if not _is_jaxpr(value):
        return value
    is_open = isinstance(value, jex.Jaxpr)
    closed: Any = jex.ClosedJaxpr(value, ()) if is_open else value
    opened, consts = closed.jaxpr, closed.consts

    def run(*args: Any) -> list:
        return _varying_over(opened, consts, axes)(*[collectives.vary(x, axes) for x in args])

    types = [v.aval for v in opened.invars]
    varying = jax.eval_shape(lambda *xs: [collectives.vary(x, axes) for x in xs], *types)
    made = jax.make_jaxpr(run)(*varying)
    assert not made.consts, f"{len(made.consts)} arrays in an inner jaxpr"
    return made.jaxpr if is_open else made


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))
