"""Layers of pipelines that choose by their number, or close over what they have gradients of."""

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
from tests.proof.common import computed, in_zigzag, program, same
from tests.proof.common import proof as proof_of_step
from tests.proof.test_pipelines import ITEMS, ROWS, STAGES, W, X, weighed
from tests.proof.test_programs import mapped

WHICH = jnp.asarray([True, False, False, True])


def first(x, w):
    return jnp.tanh(x @ w)


def second(x, w):
    return jnp.sin(x @ w) * x


def by_condition(w, x, which=WHICH):
    """One device: only what is chosen is computed."""

    def layer(x, own):
        w, is_first = own
        return x + lax.cond(is_first, first, second, x, w), None

    return lax.scan(layer, x, (w, which))[0]


def by_choice(w, x, which=WHICH, cases=(first, second), keeps=(True, False), counts=1):
    """Both are computed, and of what is not chosen there is no gradient."""

    def layer(x, own):
        w, is_first = own
        kept = lambda a, case: jnp.where(is_first == case, a, lax.stop_gradient(a))
        one, other = (
            of(kept(x, case), kept(w, case)) for of, case in zip(cases, keeps, strict=True)
        )
        chosen = jnp.where(is_first, one, other)
        return x + (chosen if counts == 1 else counts * chosen), None

    return lax.scan(layer, x, (w, which))[0]


CHOICES = {
    "as it should be": ({}, True),
    "cases that are exchanged": ({"cases": (second, first)}, False),
    "a case twice": ({"cases": (first, first)}, False),
    "the choice of the layer before": ({"which": jnp.roll(WHICH, 1)}, False),
    "gradients of the other case": ({"keeps": (False, True)}, False),
    "gradients of one case in both": ({"keeps": (True, True)}, False),
    "twice": ({"counts": 2}, False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_by_numbers_is_a_condition(name):
    mistake, right = CHOICES[name]
    of = lambda fn: jax.grad(lambda w, x: weighed(fn(w, x)), (0, 1))
    one = jax.make_jaxpr(of(by_condition))(W, X)
    many = jax.make_jaxpr(of(partial(by_choice, **mistake)))(W, X)
    assert Reference(one).agrees(many, ["w", "x"]).proved == right
    assert same(computed(many, [W, X]), computed(one, [W, X])) == right


@pytest.mark.parametrize(("low", "high", "right"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_a_bound_that_no_number_reaches_changes_nothing(low, high, right):
    chosen = lambda x, at: lax.switch(at, [jnp.sin, jnp.cos], x)
    one = lambda x: lax.scan(lambda x, is_: (chosen(x, is_.astype(int)), None), x, WHICH)[0]
    bound = lambda n: jnp.minimum(jnp.maximum(n, low), high)
    two = lambda x: lax.scan(lambda x, is_: (chosen(x, bound(is_.astype(int))), None), x, WHICH)[0]
    names, one, two = ["x"], jax.make_jaxpr(one)(X), jax.make_jaxpr(two)(X)
    assert Reference(one).agrees(two, names).proved == right
    assert same(computed(two, [X]), computed(one, [X])) == right


@pytest.mark.parametrize(
    ("table", "by", "right"), [([0, 1, 2], 1, True), ([0, 2, 1], 1, False), ([0, 1, 2], 2, False)]
)
def test_a_table_that_counts_is_a_count(table, by, right):
    rows = lambda x: x[lax.div(jnp.asarray(table, jnp.int32), jnp.int32(by))]
    one, many = (jax.make_jaxpr(fn)(X[:3]) for fn in (lambda x: x, rows))
    assert Reference(one).agrees(many, ["x"]).proved == right


# -- what layers close over ------------------------------------------------------------------------

BIAS, BESIDE = jnp.cos(jnp.arange(5.0)), jnp.cos(X)


def closed_over(w, x, bias, beside):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w + bias) + beside * x, None), x, w)[0]


def with_a_sum(w, x, bias, beside):
    """Layers that depend on a sum of what the layers before on the same device have added."""

    def layer(carry, w):
        x, added = carry
        x = jnp.tanh(x @ w + bias + added) + beside * x
        return (x, added + x.mean()), None

    return lax.scan(layer, (x, jnp.float32(0)), w)[0][0]


def ticking(
    w, x, bias, beside, run=closed_over, ticks=ITEMS + STAGES - 1, late=0, rows_of=0, ring=((0, 1),)
):
    """A pipeline whose layers also have rows of their microbatch from beside."""
    me = lax.axis_index("a")

    def tick(state, t):
        here, rows = state
        item = t - me - late
        real = (item >= 0) & (item < ITEMS)
        which = jnp.clip(item, 0, ITEMS - 1)
        new = lax.dynamic_slice_in_dim(x, which * ROWS, ROWS)
        near = lax.dynamic_slice_in_dim(beside, (which + rows_of) % ITEMS * ROWS, ROWS)
        after = run(w, jnp.where((me == 0) | ~real, new, here), bias, near)
        old = lax.dynamic_slice_in_dim(rows, which * ROWS, ROWS)
        done = jnp.where(real & (me == STAGES - 1), after, old)
        rows = lax.dynamic_update_slice_in_dim(rows, done, which * ROWS, 0)
        return (lax.ppermute(after, "a", ring), rows), None

    start = lax.stop_gradient(x[:ROWS])
    return lax.scan(tick, (start, 0 * x), jnp.arange(ticks))[0][1]


def gradients(w, x, bias, beside, of=(1, 1), alone=None, **mistake):
    """Gradients by all arguments; `of` is how often those of the last two are added up."""

    def loss(*args):
        return jnp.where(lax.axis_index("a") == STAGES - 1, weighed(ticking(*args, **mistake)), 0)

    by_w, by_x, *others = jax.grad(loss, (0, 1, 2, 3))(w, x, bias, beside)
    if alone is not None:
        others = [jnp.where(lax.axis_index("a") == alone, y, 0) for y in others]
    others = [lax.psum(y if n == 1 else n * y, "a") for n, y in zip(of, others, strict=True)]
    return by_w, lax.psum(by_x, "a"), *others


ARGUMENTS = W, X, BIAS, BESIDE
CLOSED = {
    "as it should be": ({}, True),
    "more ticks": ({"ticks": ITEMS + STAGES + 2}, True),
    "one tick short": ({"ticks": ITEMS}, False),
    "a tick late": ({"late": 1}, False),
    "rows of another microbatch": ({"rows_of": 1}, False),
    "a hop in the other direction": ({"ring": ((1, 0),)}, False),
    "a gradient of one twice": ({"of": (2, 1)}, False),
    "a gradient of rows twice": ({"of": (1, 2)}, False),
    "what one device has added": ({"alone": 0}, False),
    "a sum that begins again": ({"run": with_a_sum}, False),
}


@cache
def expected(run):
    loss = lambda *args: weighed(run(*args))
    one = jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 3)))(*ARGUMENTS)
    return Reference(one), computed(one, ARGUMENTS)


QUICK = [name for name in CLOSED if name not in ("more ticks", "a tick late")]


@pytest.mark.parametrize("name", only(QUICK, CLOSED))
def test_gradients_of_what_layers_close_over_are_proved(name):
    mistake, right = CLOSED[name]
    reference, numbers = expected(mistake.get("run", closed_over))
    specs = (P("a"), P(), P(), P())
    many = mapped(partial(gradients, **mistake), specs, specs, {"a": STAGES})
    found = jax.make_jaxpr(many)(*ARGUMENTS)
    assert reference.agrees(found, ["w", "x", "bias", "beside"]).proved == right
    assert same(computed(found, ARGUMENTS), numbers) == right


# -- steps of training -----------------------------------------------------------------------------

SIZES = "model.heads=8", "model.kv_heads=8", "batch=64"
PATTERN = 'model.pattern=["local","global"]'
GEMMA = (
    *("model.style=gemma2", "model.layers=6", "model.window=4", PATTERN),
    *("model.kv_heads=4", "precision.compute=bfloat16", "model.length=16"),
    *("model.attention_softcap=50.0", "model.logit_softcap=30.0"),
)
STEPS = {
    "windows": ("model.layers=4", "model.window=4", PATTERN),
    "gemma2": GEMMA,
    "in blocks": ("model.layers=4", "model.length=2048", "model.window=1024", PATTERN),
    "dropout": ("model.layers=4", "model.dropout=0.1"),
}


@pytest.mark.parametrize("name", only(["windows"], STEPS))
def test_a_step_of_a_pipeline_is_proved(name):
    found = proof_of_step(find_layout("pipeline"), *SIZES, *STEPS[name])
    assert found.proved, found.doubt


@pytest.mark.slow
@pytest.mark.parametrize("layout", [find_layout("pipeline"), in_zigzag(1, 2)])
def test_windows_of_other_layers_are_not_proved(layout):
    other = 'model.pattern=["global","local"]'
    one = Reference(program(md.Layout(), *SIZES, *STEPS["windows"]).jaxpr)
    many = program(layout, *SIZES, *STEPS["windows"][:-1], other)
    found = one.agrees(many.jaxpr, [result.name for result in many.results])
    assert not found.proved
