"""Equations that repeat become calls of one function, and lead to the ops that they belong to."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import meshdsl as md
from meshdsl.lowering import repeats
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program.recorder import tag_in
from tests.helpers import assert_equal, data, dims, layout, weight

LAYERS = 4
BATCH, WIDTH, HIDDEN = dims(batch=8, width=4, hidden=8)
LAYOUT = layout(
    "batch -> data",
    "hidden -> model",
    parameters=["width -> data"],
    mesh={"data": 2, "model": 2},
)


def layer(x, up, down):
    h = md.tanh(md.einsum(x, up, out=(BATCH, HIDDEN)) * 0.5 + 1)
    return x + md.einsum(h, down, out=(BATCH, WIDTH))


def loss(params, x, around=lambda layer: layer):
    for up, down in params:
        x = around(layer)(x, up, down)
    return md.mean(x * x)


def arguments():
    pairs = [(weight(WIDTH, HIDDEN, seed=i), weight(HIDDEN, WIDTH, seed=i)) for i in range(LAYERS)]
    return pairs, data(BATCH, WIDTH)


def calls(closed) -> list:
    """The calls of shared functions in a jaxpr."""
    return [e for e in closed.jaxpr.eqns if e.params.get("name") == "repeated"]


def one_layer(x, w):
    y = jnp.sin(x * w) + 1
    return jnp.cos(y / 2 - x) * jnp.exp(-y * y)


def tangled(x, w):
    """The same equations, but the last layer takes the first result, not the one before it."""
    first = one_layer(x, w[0])
    second = one_layer(first, w[1])
    return one_layer(second, w[2]) + one_layer(first, w[3])


def with_rule(x, w):
    """A layer with a derivative of its own, which is not shared."""
    own = jax.custom_jvp(jnp.sin)
    own.defjvp(lambda x, t: (own(*x), 2 * t[0]))
    return one_layer(own(x), w)


def in_turn(*functions):
    def run(x, w):
        for function, weights in zip(functions, w, strict=False):
            x = function(x, weights)
        return x

    return run


other = lambda x, w: jnp.tanh(x) + w
# What is run, and how many calls of shared functions are legal.
RUNS = {
    "alike": (in_turn(*[one_layer] * 4), {4}),
    "another one between": (in_turn(one_layer, one_layer, other, one_layer, one_layer), {2, 4}),
    "wired differently": (tangled, set(range(5))),
    "with rules of their own": (in_turn(*[with_rule] * 4), {4}),
}


@pytest.mark.parametrize("fn, legal", RUNS.values(), ids=RUNS)
def test_layers_that_are_alike_are_calls_of_one_function(fn, legal):
    x, w = jnp.arange(3.0), list(jnp.arange(15.0).reshape(5, 3))
    run = repeats.shared(jax.make_jaxpr(fn)(x, w))
    closed = jax.make_jaxpr(run)(x, *w)
    made = calls(closed)
    assert len(made) in legal
    if legal == {4}:
        assert len({id(e.params["jaxpr"]) for e in made}) == 1
    rules = sum(e.primitive.name == "custom_jvp_call" for e in closed.jaxpr.eqns)
    assert rules == (4 if fn is RUNS["with rules of their own"][0] else 0)
    np.testing.assert_allclose(run(x, *w)[0], fn(x, w), rtol=1e-6)
    slopes = jax.grad(lambda x: run(x, *w)[0].sum())(x)
    np.testing.assert_allclose(slopes, jax.grad(lambda x: fn(x, w).sum())(x), rtol=1e-6)


@pytest.mark.parametrize(
    "around", [lambda layer: layer, pytest.param(md.checkpoint, marks=pytest.mark.slow)]
)
def test_collectives_of_each_layer_lead_to_the_ops_of_that_layer(around, monkeypatch):
    """In the jaxpr and in the compiled program, forward and backward: as without sharing."""
    mesh = md.make_mesh(LAYOUT, jax.devices()[:4])
    args = arguments()

    def found():
        lowered = md.lower(md.value_and_grad(partial(loss, around=around)), LAYOUT, mesh)
        program = lowered.program(*args)
        compiled = from_hlo(lowered.lower(*args).compile().as_text(), mesh)
        facts = lambda some: Counter((tag_in(c.scope), c.operation, c.phase) for c in some)
        return program, facts(program.collectives), facts(compiled), lowered(*args)

    program, asked, compiled, made = found()
    with monkeypatch.context() as patched:
        patched.setattr(repeats, "shared", jaxpr_as_fun)
        alone, asked_alone, compiled_alone, made_alone = found()
    scopes = {c.scope for c in program.collectives}
    assert any("md+" in scope for scope in scopes)
    assert not any("md+" in c.scope for c in alone.collectives)
    assert asked == asked_alone
    assert compiled == compiled_alone
    assert_equal(made, made_alone)
