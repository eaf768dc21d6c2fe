"""What becomes of an equation that calls something: inlined, or a program of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend import core as jex

from meshdsl.lowering.equation_keys import Alike
from meshdsl.plain_jax import gradients
from meshdsl.plain_jax.primitives import is_elementwise
from meshdsl.plain_jax.program import CALLS, REMATERIALISED
from meshdsl.plain_jax.rules.elementwise import with_derivative
from meshdsl.plain_jax.source import is_library, shown
from meshdsl.program.recorder import Lines

# Over the positions of an array, as `jax.vmap` leaves those that had the name of its axis.
_COLLECTIVES: dict[str, Callable] = {
    "psum": lax.reduce_sum,
    "pmax": lax.reduce_max,
    "pmin": lax.reduce_min,
}
_RULES = ("jvp_jaxpr_fun",)  # of functions inside of a rule, see `elementwise.run_elementwise`


class Called(NamedTuple):
    """What an equation calls.

    Attributes:
      inlined: the closed jaxpr whose equations take its place; None where it stays.
      bodies: the closed jaxprs of its bodies.
      notes: what its rule needs.
      remark: what there is to say to the user; empty for nothing.
      within: what an equation of the bodies calls; None for `called` itself.
    """

    inlined: Any = None
    bodies: tuple = ()
    notes: dict[str, Any] | None = None
    remark: str = ""
    within: Callable | None = None


def called(e: Any, lines: Lines, *, in_gradient: bool = False) -> Called:
    """What an equation of a jaxpr calls.

    Args:
      lines: of the user's code, that it comes from.
      in_gradient: whether it stands in a rule of a gradient. Functions that bring a gradient are
        inlined there, since their own rules call them.
    """
    name, params = e.primitive.name, e.params
    if name in _COLLECTIVES and all(isinstance(axis, int) for axis in params["axes"]):
        return Called(_reduction(e))
    if name == "custom_linear_solve":
        return Called(_solve(e)) if in_gradient else _own_gradient(e, lines)
    if name in CALLS:
        return Called(_closed(params[CALLS[name]]))
    if name == "custom_jvp_call":
        return _custom_jvp(e, lines, in_gradient=in_gradient)
    if name == "custom_vjp_call":
        return Called(params["call_jaxpr"]) if in_gradient else _own_gradient(e, lines)
    if name == "scan" or name in REMATERIALISED:
        return Called(bodies=(_closed(params["jaxpr"]),))
    if name == "while":
        return Called(bodies=(_closed(params["cond_jaxpr"]), _closed(params["body_jaxpr"])))
    if name == "cond":
        return Called(bodies=tuple(_closed(b) for b in params["branches"]))
    return Called()


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else jex.ClosedJaxpr(jaxpr, ())


def _reduction(e: Any) -> Any:
    """The sum, or the like, that a collective over positions is."""
    reduce, axes = _COLLECTIVES[e.primitive.name], e.params["axes"]
    return _traced(e, lambda *xs: [reduce(x, axes) for x in xs])


def _solve(e: Any) -> Any:
    """What `jax.lax.custom_linear_solve` computes: the solver that was given to it."""
    lengths, solve = e.params["const_lengths"], e.params["jaxprs"].solve
    before, after = lengths.matvec + lengths.vecmat, sum(lengths)

    def run(*xs):
        own = xs[before : before + lengths.solve]
        return jex.jaxpr_as_fun(solve)(*own, *xs[after:])

    return _traced(e, run)


def _traced(e: Any, run: Callable) -> Any:
    """The closed jaxpr of `run`, which takes what an equation takes."""
    return jax.make_jaxpr(run)(
        *[jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in e.invars]
    )


def _custom_jvp(e: Any, lines: Lines, *, in_gradient: bool) -> Called:
    """An elementwise function keeps its rule, and another one its gradient.

    Functions that JAX itself has are inlined: the derivative of their body is the same.
    """
    body = e.params["call_jaxpr"]
    what = f"`{_name_of(body)}` at {shown(lines)}"
    with gradients.naming(f"{what} has no derivative"):
        rule = _rule_of(e.params)
    elementwise = rule is not None and is_elementwise(rule.jaxpr) and is_elementwise(body.jaxpr)
    if elementwise and len(body.jaxpr.outvars) == 1:
        function = _with_derivative(*[Alike(x, without=_RULES) for x in (body, rule)])
        return Called(notes={"function": function})
    if in_gradient or is_library(body):
        return Called(body)
    said = f"`{_name_of(body)}`: its rule by jax.custom_jvp holds for gradients, not for md.jvp"
    return _own_gradient(e, lines)._replace(remark=said)


def _name_of(body: Any) -> str:
    """What the user calls a function, of its closed jaxpr."""
    return getattr(getattr(body.jaxpr, "debug_info", None), "func_name", "a function")


def _own_gradient(e: Any, lines: Lines) -> Called:
    """A function whose gradient is not that of its body: the rules are bodies of the equation.

    Raises:
      MeshDSLError: JAX cannot trace the rules.
    """
    body = e.params.get("call_jaxpr")
    name = _name_of(body) if body is not None else e.primitive.name
    what = f"`{name}` at {shown(lines)}"
    with gradients.naming(f"{what} has no gradient"):
        found = gradients.rules_of(e, what)
    within = partial(called, in_gradient=True)
    return Called(bodies=found.bodies, notes={"gradient": found}, within=within)


@lru_cache(maxsize=64)
def _with_derivative(body: Alike, rule: Alike) -> Callable:
    """An elementwise function with its rule, under `jit`: one that JAX differentiates once."""
    return jax.jit(with_derivative(body.closed, rule.closed))


def _rule_of(params: dict[str, Any]) -> Any:
    """The closed jaxpr of a rule; None where it cannot be had without its values."""
    thunk: Callable = params["jvp_jaxpr_fun"]
    count = len(params["call_jaxpr"].jaxpr.invars)
    if params["num_consts"] or params["symbolic_zeros"]:
        return None
    trace = getattr(thunk, "call_wrapped", thunk)
    jaxpr, consts, *_ = trace(*[False] * count)
    return jex.ClosedJaxpr(jaxpr, consts)
