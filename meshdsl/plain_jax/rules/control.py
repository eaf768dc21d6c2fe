"""Loops, branches and rematerialisation: their bodies are programs of their own."""

from __future__ import annotations

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


def _run(at: Evaluation, body: Program, args: list, outs) -> tuple:
    """The results of a body, as the variables `outs`, with all dims of these."""
    made = at.program(body, args)
    return tuple(_whole(x, w, v) for x, w, v in zip(made, body.outvars, outs, strict=True))


@rule("checkpoint", "remat", "remat2")
def checkpoint(at: Evaluation, e: Equation, xs: list) -> list:
    """A body that is recomputed in the backward pass."""
    body = e.bodies[0]
    xs = [_given(x, v, w) for x, v, w in zip(xs, e.ins, body.invars, strict=True)]
    run = lambda *args: _run(at, body, list(args), e.outs)
    policy, save, offload = saving(e)
    how = {"save": save, "offload": offload, "in_scan": not e.params["prevent_cse"]}
    return list(rematerialisation.checkpoint(run, policy, **how)(*xs))


@rule("scan")
def scan(at: Evaluation, e: Equation, xs: list) -> list:
    """A loop over the first position of some operands."""
    (body,), (consts, carried) = e.bodies, scan_counts(e.params)
    first = consts + carried
    closed = [_given(x, v, w) for x, v, w in zip(xs, e.ins, body.invars[:consts], strict=False)]
    inner = body.invars[consts:first]
    before = zip(xs[consts:first], e.ins[consts:first], inner, strict=True)
    carry = tuple(_whole(x, v, w) for x, v, w in before)
    dim = _turns(e, [*body.invars[first:], *body.outvars[carried:]])
    stacked = tuple(
        _stacked(x, v, w, dim)
        for x, v, w in zip(xs[first:], e.ins[first:], body.invars[first:], strict=True)
    )
    results = [*inner, *body.outvars[carried:]]

    def turn(carry, x):
        made = _run(at, body, [*closed, *carry, *x], results)
        return made[:carried], made[carried:]

    how = {"reverse": e.params["reverse"], "unroll": e.params["unroll"]}
    after, made = scanning.scan(turn, carry, stacked, dim=dim, **how)
    out = [like_result(x, w, v) for x, w, v in zip(after, inner, e.outs[:carried], strict=True)]
    for x, w, v in zip(made, body.outvars[carried:], e.outs[carried:], strict=True):
        out.append(_unstacked(x, w, v, dim))
    return out


def _turns(e: Equation, inside: list) -> Dim:
    """The dim of a loop; one of its own where something inside has a dim of the same name."""
    found = leaves([e.notes["steps"]])
    if len(found) == 1 and all(d.name != found[0].name for w in inside for d in w.flat):
        return Dim(found[0].name, found[0].size)
    return Dim("turns__part", e.params["length"])


def _stacked(x: Any, v: Value, w: Value, dim: Dim) -> Any:
    """What a loop takes one by one, with the dims of the body's variable and `dim` in front."""
    if v.is_key:
        return x
    x = as_positions(as_tensor(x, v), v, dict(enumerate([(dim,), *w.dims])))
    return with_dims(x, (dim, *w.flat))


def _unstacked(x: Any, w: Value, v: Variable, dim: Dim) -> Any:
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
    pairs = list(zip(xs, e.ins, strict=True))
    closed = lambda given, variables: [
        _given(x, v, w) for (x, v), w in zip(given, variables, strict=False)
    ]
    for_test = closed(pairs[:of_test], test.invars)
    for_body = closed(pairs[of_test:start], body.invars)
    inner, (asked,) = body.invars[of_body:], test.outvars
    carry = tuple(_whole(x, v, w) for x, v, w in zip(xs[start:], e.ins[start:], inner, strict=True))

    def holds(carry) -> Tensor:
        given = [
            _given(x, w, t) for x, w, t in zip(carry, inner, test.invars[of_test:], strict=True)
        ]
        (found,) = at.program(test, [*for_test, *given])
        return as_tensor(found, test.outvars[0])

    def turn(carry):
        made = _run(at, body, [*for_body, *carry], inner)
        if not asked.shape:
            return made
        going = holds(carry)
        return tuple(_chosen(going, asked, *pair) for pair in zip(made, carry, inner, strict=True))

    goes_on = lambda carry: reduce.any(holds(carry)) if asked.shape else holds(carry)
    made = loops.while_loop(goes_on, turn, carry)
    return [_given(x, w, v) for x, w, v in zip(made, inner, e.outs, strict=True)]


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
            given = [_given(x, v, w) for x, v, w in zip(args, e.ins[1:], body.invars, strict=True)]
            return _run(at, body, given, e.outs)

        return run

    return list(branch.switch(index, [of(b) for b in e.bodies], *operands))


@rule("custom_vjp_call", "custom_linear_solve")
def own_gradient(at: Evaluation, e: Equation, xs: list) -> list:
    """A function with both passes of its gradient, each evaluated by names."""
    (forward, backward), rules, count = e.bodies, e.notes["gradient"], len(e.outs)

    def run(*args):
        given = [_given(x, v, w) for x, v, w in zip(args, e.ins, forward.invars, strict=True)]
        made = at.program(forward, given)
        outs, kept = made[:count], made[count:]
        kept = [
            _given(x, v, w)
            for x, v, w in zip(kept, forward.outvars[count:], backward.invars, strict=False)
        ]

        def pull(slopes):
            slopes = [
                _given(slopes[i], e.outs[i], w)
                for i, w in zip(rules.results, backward.invars[rules.kept :], strict=True)
            ]
            found = at.program(backward, [*kept, *slopes])
            back: list = [None] * len(e.ins)
            for i, x, w in zip(rules.operands, found, backward.outvars, strict=True):
                back[i] = _whole(x, w, e.ins[i])
            return tuple(back) if len(back) > 1 else back[0]

        return tuple(
            _whole(x, w, v) for x, w, v in zip(outs, forward.outvars, e.outs, strict=False)
        ), pull

    xs = [x if v.is_key else full(x, v) for x, v in zip(xs, e.ins, strict=True)]
    for i in rules.closed_over:
        xs[i] = component.map(rules.fixed, xs[i], name="closed_over", linear=True)
    return list(custom_gradient(run)(*xs))
