"""Loops whose devices hand on what they carry, right and wrong ones, written with JAX alone."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.proof import Reference
from meshdsl.train.stored_layout import find_layout
from tests.helpers import only
from tests.proof.common import computed, same
from tests.proof.common import proof as proof_of_step
from tests.proof.test_programs import mapped, proof

STAGES, ITEMS, ROWS = 2, 4, 2
W = jnp.cos(jnp.arange(4 * 5 * 5.0)).reshape(4, 5, 5)
X = jnp.sin(jnp.arange(ITEMS * ROWS * 5.0)).reshape(ITEMS * ROWS, 5)


def layers(w, x, step=lambda x, w: jnp.tanh(x @ w), reverse=False):
    return lax.scan(lambda x, w: (step(x, w), None), x, w, reverse=reverse)[0]


def pipeline(
    w,
    x,
    ticks=ITEMS + STAGES - 1,
    late=0,
    enters=0,
    leaves=STAGES - 1,
    taken_from=0,
    put_into=0,
    ring=((0, 1), (1, 0)),
    run=layers,
    always=False,
    into=lambda x: 0 * x,
):
    """What the layers of all devices make of the rows, item by item, with at most one mistake."""
    me = lax.axis_index("a")

    def tick(state, t):
        here, rows = state
        item = t - me - late
        real = (item >= 0) & (item < ITEMS)
        which = jnp.clip(item, 0, ITEMS - 1)
        new = lax.dynamic_slice_in_dim(x, (which + taken_from) % ITEMS * ROWS, ROWS)
        after = run(w, jnp.where((me == enters) | ~real, new, here))
        start = (which + put_into) % ITEMS * ROWS
        old = lax.dynamic_slice_in_dim(rows, start, ROWS)
        done = jnp.where((real | always) & (me == leaves), after, old)
        rows = lax.dynamic_update_slice_in_dim(rows, done, start, 0)
        return (lax.ppermute(after, "a", ring), rows), None

    start = lax.stop_gradient(x[:ROWS])
    return lax.scan(tick, (start, into(x)), jnp.arange(ticks))[0][1]


def weighed(rows):
    return jnp.sum(rows**3 * jnp.arange(1.0, 1 + ITEMS * ROWS)[:, None])


def results(w, x, show=STAGES - 1, **mistake):
    return lax.psum(jnp.where(lax.axis_index("a") == show, pipeline(w, x, **mistake), 0), "a")


def gradients(w, x, by=STAGES - 1, added=0.0, **mistake):
    def loss(w, x):
        rows = pipeline(w, x, **mistake)
        of_all = added * jnp.sum(w**2)
        return jnp.where(lax.axis_index("a") == by, weighed(rows), 0) + of_all

    by_w, by_x = jax.grad(loss, (0, 1))(w, x)
    return by_w, lax.psum(by_x, "a")


def mixed(w, x):
    """Layers between which all devices share something, whatever they work on."""
    return layers(w, x, lambda x, w: jnp.tanh(x @ w + lax.pmean(x, "a")))


def by_the_clock(w, x):
    return layers(w, x) * (1 + lax.axis_index("a"))


def twice(w, x):
    return layers(w, layers(w, x))


MISTAKES = {
    "one tick short": {"ticks": ITEMS},
    "handed to nobody": {"ring": ()},
    "kept": {"ring": ((0, 0), (1, 1))},
    "only handed back": {"ring": ((1, 0),)},
    "a tick late": {"late": 1},
    "entering at the last device": {"enters": 1},
    "leaving from the first device": {"leaves": 0},
    "another item is taken": {"taken_from": 1},
    "results in another place": {"put_into": 1},
    "layers in the reverse order": {"run": partial(layers, reverse=True)},
    "what others work on": {"run": mixed},
    "another thing on each device": {"run": by_the_clock},
    "each layer twice": {"run": twice},
}
RIGHT = {
    "as it should be": {},
    "more ticks": {"ticks": ITEMS + STAGES + 2},
    "not in a ring": {"ring": ((0, 1),)},
    "what is overwritten": {"always": True},
    "into what is overwritten": {"into": jnp.sin},
}
OF_RESULTS = {"that of another device": {"show": 0}}
OF_GRADIENTS = {
    "of another device": {"by": 0},
    "something of each tick": {"added": 1.0},
}
PIPELINES = "pipeline", "pipeline-fsdp", "pipeline-tensor", "pipeline-rounds"
SPECS = {results: P(), gradients: (P("a"), P())}


def one(fn):
    if fn is results:
        return layers
    return jax.grad(lambda w, x: weighed(layers(w, x)), (0, 1))


def many(fn, mistake):
    return mapped(partial(fn, **mistake), (P("a"), P()), SPECS[fn], {"a": STAGES})


@cache
def expected(fn):
    """What is to be proved, and its numbers."""
    program = jax.make_jaxpr(one(fn))(W, X)
    return Reference(program), computed(program, [W, X])


def proved_and_agrees(fn, mistake):
    """Whether the program is proved, and whether its numbers are the same."""
    reference, numbers = expected(fn)
    program = jax.make_jaxpr(many(fn, mistake))(W, X)
    found = reference.agrees(program, [f"result {i}" for i in range(len(numbers))])
    return found.proved, same(computed(program, [W, X]), numbers)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("fn", SPECS)
def test_a_pipeline_is_proved(fn, name):
    assert proved_and_agrees(fn, RIGHT[name]) == (True, True)


WRONG = {
    **{(results, name): mistake for name, mistake in (MISTAKES | OF_RESULTS).items()},
    **{(gradients, name): mistake for name, mistake in (MISTAKES | OF_GRADIENTS).items()},
}
QUICK = {(results, name) for name in MISTAKES | OF_RESULTS}
QUICK |= {
    (gradients, name) for name in ("kept", "a tick late", "what others work on", *OF_GRADIENTS)
}


@pytest.mark.parametrize(("fn", "name"), only(QUICK, WRONG))
def test_a_pipeline_with_a_mistake_is_not(fn, name):
    mistake = WRONG[fn, name]
    assert proved_and_agrees(fn, mistake) == (False, False)


@pytest.mark.parametrize("ring", [((0, 1),), ()])
def test_what_is_handed_on_along_two_axes_is_not_proved(ring):
    def turned(w, x):
        return lax.ppermute(layers(w, x), "b", ring)

    fn = mapped(partial(results, run=turned), (P("a"), P()), P(), {"a": STAGES, "b": 2})
    assert not proof(layers, fn, W, X).proved


def test_what_each_tick_makes_is_not_the_same_on_all_devices():
    def fn(w, x):
        hand = lambda here, t: (lax.ppermute(layers(w, here), "a", [(0, 1)]), here)
        return lax.scan(hand, x, jnp.arange(3))[1]

    found = proof(lambda w, x: jnp.stack([x] * 3), mapped(fn, (P("a"), P()), P()), W, X)
    assert not found.proved


def dealt(x, first=0, second=1, ring=((0, 1), (1, 0))):
    """Rows 0 1 | 2 3 of two devices as 0 2 | 1 3."""
    me = lax.axis_index("a")
    own = jnp.where(me == 0, x[:1], x[1:])
    come = lax.ppermute(jnp.where(me == first, x[1:], x[:1]), "a", ring)
    return jnp.concatenate([jnp.where(me == 0, own, come), jnp.where(me == second, own, come)])


@pytest.mark.parametrize(
    ("mistake", "right"),
    [
        ({}, True),
        ({"first": 1}, False),
        ({"second": 0}, False),
        ({"ring": ((0, 1),)}, False),
        ({"ring": ((0, 0), (1, 1))}, False),
    ],
)
def test_rows_that_are_passed_on_are_proved(mistake, right):
    x = X[:4]
    one = lambda x: jnp.swapaxes(x.reshape(2, 2, 5), 0, 1).reshape(4, 5)
    many = mapped(partial(dealt, **mistake), (P("a"),), P("a"), {"a": 2})
    assert proof(one, many, x).proved == right
    assert same(computed(jax.make_jaxpr(many)(x), [x]), [one(x)]) == right


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("out", [[], ["batch -> stage"]])
def test_a_pipeline_of_a_layout_is_proved(rounds, out):
    layers, batch, d_model, d_ff = (
        md.Dim(name, n) for name, n in (("layers", 4), ("batch", 8), ("d_model", 5), ("d_ff", 5))
    )
    w = md.normal(jax.random.key(0), (layers, d_model, d_ff), ins=d_model)
    x = md.random.normal(jax.random.key(1), (batch, d_model))

    def loss(w, x):
        layer = lambda x, w: md.tanh(md.einsum(x, w, out=(batch, d_ff))).rename("d_ff", "d_model")
        return md.mean(md.scan(lambda x, w: (layer(x, w), None), x, w, dim=layers)[0] ** 3)

    rule = {"rule": "layers -> stage", "microbatches": {"batch": 4}, "rounds": rounds}
    layout = md.Layout([rule, *out], mesh={"stage": 2})
    assert md.verify(md.value_and_grad(loss), w, x, layout=layout).proved


@pytest.mark.parametrize("name", only(["pipeline"], PIPELINES))
def test_a_step_under_a_pipeline_is_proved(name):
    settings = "model.layers=16", "model.heads=8", "model.kv_heads=8", "batch=64"
    found = proof_of_step(find_layout(name), *settings)
    assert found.proved, found.doubt


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("batch=16",),
        ("model.layers=4", "batch=64"),
        ("precision.compute=bfloat16", "model.remat=none", "batch=64"),
    ],
)
def test_a_step_under_a_pipeline_is_proved_whatever_the_model(settings):
    found = proof_of_step(find_layout("pipeline"), *settings)
    assert found.proved, found.doubt
