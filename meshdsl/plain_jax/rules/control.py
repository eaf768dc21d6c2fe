"""Loops, branches and rematerialisation: their bodies are programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.ops import branch, component, loops, reduce
from meshdsl.ops import checkpoint as rematerialisation
from meshdsl.ops import scan as scanning
from meshdsl.ops.custom_gradient import custom_gradient
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.factors import leaves
from meshdsl.plain_jax.positions import (
    as_positions,
    as_result,
    as_tensor,
    full,
    like_result,
    with_dims,
)
from meshdsl.plain_jax.program import Equation, Program, Value, Variable
from meshdsl.plain_jax.saving import saving
from meshdsl.program.jaxpr import scan_counts
from meshdsl.tensor import Tensor


def _given(x: Any, v: Value, w: Value) -> Any:
    """What stands for `v`, as the variable `w` of a body."""
    if v.is_key:
        return x
    return like_result(as_tensor(x, v), v, w)  # pyright: ignore[reportArgumentType]


def _whole(x: Any, v: Value, w: Value) -> Any:
    """The same with all dims of `w`."""
    return x if v.is_key else full(_given(x, v, w), w)


def _each(how: Callable, *parts: Iterable) -> tuple:
    """`how(x, v, w)` of all that stands for variables, with these and with what it becomes."""
    return tuple(how(*part) for part in zip(*parts, strict=True))


def _run(at: Evaluation, body: Program, args: Sequence, outs) -> tuple:
    """The results of a body, as the variables `outs`, with all dims of these."""
    return _each(_whole, at.program(body, args), body.outvars, outs)


@rule("checkpoint", "remat", "remat2")
def checkpoint(at: Evaluation, e: Equation, xs: list) -> list:
    """A body that is recomputed in the backward pass."""
    body = e.bodies[0]
    given = _each(_given, xs, e.ins, body.invars)
    run = lambda *args: _run(at, body, list(args), e.outs)
    policy, save, offload = saving(e)
    how = {"save": save, "offload": offload, "in_scan": not e.params["prevent_cse"]}
    return list(rematerialisation.checkpoint(run, policy, **how)(*given))


@rule("scan")
def scan(at: Evaluation, e: Equation, xs: list) -> list:
    """A loop over the first position of some operands."""
    (body,), (consts, carried) = e.bodies, scan_counts(e.params)
    first = consts + carried
    closed = _each(_given, xs[:consts], e.ins[:consts], body.invars[:consts])
    inner = body.invars[consts:first]
    carry = _each(_whole, xs[consts:first], e.ins[consts:first], inner)
    dim = _turns(e, [*body.invars[first:], *body.outvars[carried:]])
    stacked = _each(partial(_stacked, dim), xs[first:], e.ins[first:], body.invars[first:])
    results = [*inner, *body.outvars[carried:]]

    def turn(carry, x):
        made = _run(at, body, [*closed, *carry, *x], results)
        return made[:carried], made[carried:]

    how = {"reverse": e.params["reverse"], "unroll": e.params["unroll"]}
    after, made = scanning.scan(turn, carry, stacked, dim=dim, **how)
    last = _each(like_result, after, inner, e.outs[:carried])
    unstacked = partial(_unstacked, dim)
    return [*last, *_each(unstacked, made, body.outvars[carried:], e.outs[carried:])]


def _turns(e: Equation, inside: list) -> Dim:
    """The dim of a loop; one of its own where something inside has a dim of the same name."""
    found = leaves([e.notes["steps"]])
    if len(found) == 1 and all(d.name != found[0].name for w in inside for d in w.flat):
        return Dim(found[0].name, found[0].size)
    return Dim("turns__part", e.params["length"])


def _stacked(dim: Dim, x: Any, v: Value, w: Value) -> Any:
    """What a loop takes one by one, with the dims of the body's variable and `dim` in front."""
    if v.is_key:
        return x
    x = as_positions(as_tensor(x, v), v, dict(enumerate([(dim,), *w.dims])))
    return with_dims(x, (dim, *w.flat))


def _unstacked(dim: Dim, x: Any, w: Value, v: Variable) -> Any:
    """The results of all turns, as the variable `v` of the equation."""
    return x if v.is_key else as_result(x, dict(enumerate([(dim,), *w.dims])), v)


@rule("while")
def while_loop(at: Evaluation, e: Equation, xs: list) -> list:
    """A loop for as long as a condition holds.

    Where `jax.vmap` has given the condition dims, those elements change for which it holds.
    """
    test, body = e.bodies
    of_test, of_body = e.params["cond_nconsts"], e.params["body_nconsts"]
    start = of_test + of_body
    for_test = _each(_given, xs[:of_test], e.ins[:of_test], test.invars[:of_test])
    for_body = _each(_given, xs[of_test:start], e.ins[of_test:start], body.invars[:of_body])
    inner, (asked,) = body.invars[of_body:], test.outvars
    carry = _each(_whole, xs[start:], e.ins[start:], inner)

    def holds(carry) -> Tensor:
        given = _each(_given, carry, inner, test.invars[of_test:])
        (found,) = at.program(test, [*for_test, *given])
        return as_tensor(found, test.outvars[0])

    def turn(carry):
        made = _run(at, body, [*for_body, *carry], inner)
        if not asked.shape:
            return made
        going = holds(carry)
        return _each(partial(_chosen, going, asked), made, carry, inner)

    goes_on = lambda carry: reduce.any(holds(carry)) if asked.shape else holds(carry)
    made = loops.while_loop(goes_on, turn, carry)
    return [*_each(_given, made, inner, e.outs)]


def _chosen(going: Tensor, asked: Value, new: Any, old: Any, v: Variable) -> Any:
    """The new value where a condition holds, whose dims are the first ones of `v`."""
    if v.is_key:
        raise MeshDSLError(
            "from_jax: a while_loop under vmap whose turns differ between rows has no random keys "
            "among what it carries; split them before the loop"
        )
    pairs = [(i, i) for i in range(len(asked.shape))]
    going = like_result(going, asked, v, pairs)
    return component.map(jnp.where, going, new, old, name="where")


@rule("cond")
def switch(at: Evaluation, e: Equation, xs: list) -> list:
    """One of several bodies."""
    index, *operands = xs
    index = as_tensor(index, e.ins[0])
    operands = [
        x if v.is_key else as_tensor(x, v) for x, v in zip(operands, e.ins[1:], strict=True)
    ]

    def of(body: Program):
        def run(*args):
            return _run(at, body, _each(_given, args, e.ins[1:], body.invars), e.outs)

        return run

    return list(branch.switch(index, [of(b) for b in e.bodies], *operands))


@rule("custom_vjp_call", "custom_linear_solve")
def own_gradient(at: Evaluation, e: Equation, xs: list) -> list:
    """A function with both passes of its gradient, each evaluated by names."""
    (forward, backward), rules, count = e.bodies, e.notes["gradient"], len(e.outs)

    def run(*args):
        made = at.program(forward, _each(_given, args, e.ins, forward.invars))
        outs, kept = made[:count], made[count:]
        kept = _each(_given, kept, forward.outvars[count:], backward.invars[: rules.kept])

        def pull(slopes):
            some, of_some = ([each[i] for i in rules.results] for each in (slopes, e.outs))
            slopes = _each(_given, some, of_some, backward.invars[rules.kept :])
            found = at.program(backward, [*kept, *slopes])
            back: list = [None] * len(e.ins)
            for i, x, w in zip(rules.operands, found, backward.outvars, strict=True):
                back[i] = _whole(x, w, e.ins[i])
            return tuple(back) if len(back) > 1 else back[0]

        return _each(_whole, outs, forward.outvars[:count], e.outs), pull

    xs = [x if v.is_key else full(x, v) for x, v in zip(xs, e.ins, strict=True)]
    for i in rules.closed_over:
        xs[i] = component.map(rules.fixed, xs[i], name="closed_over", linear=True)
    return list(custom_gradient(run)(*xs))
