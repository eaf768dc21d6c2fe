"""Sizes that do not divide: dims that are padded, and programs that get that wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import meshdsl as md
from tests.helpers import only
from tests.proof.common import computed, on_one_device, program, proof, same
from tests.proof.test_programs import mapped
from tests.proof.test_programs import proof as proof_of

X = jnp.asarray(np.random.default_rng(0).uniform(-2, -1, size=(5, 10)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(10, 6)), jnp.float32)
FOUR = {"a": 4}
SIZE, PARTS = 10, 3  # 10 indices over 4 devices are 12 in parts of 3


def part(x, dim, fill=0.0):
    """The part of a device of a dim that is padded."""
    widths = [(0, 2) if d == dim else (0, 0) for d in range(x.ndim)]
    padded = jnp.pad(x, widths, constant_values=fill)
    return lax.dynamic_slice_in_dim(padded, lax.axis_index("a") * PARTS, PARTS, dim)


def inside(x, dim, size=SIZE):
    numbers = lax.axis_index("a") * PARTS + jnp.arange(PARTS)
    return (numbers < size).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def masked(x, dim, fill=0.0, size=SIZE):
    return jnp.where(inside(x, dim, size), x, fill)


def whole(x, dim, size=SIZE):
    return lax.slice_in_dim(lax.all_gather(x, "a", axis=dim, tiled=True), 0, size, axis=dim)


def devices(fn):
    return mapped(fn, (P(), P()), P(), FOUR)


def summed(x):
    return lax.psum(x, "a")


def softmax(x, w):
    each = jnp.exp(x - x.max(1, keepdims=True))
    return (each @ w) / each.sum(1, keepdims=True)


def parts_of_softmax(x, w, fill=-jnp.inf, total=summed):
    x = masked(part(x, 1), 1, fill)
    top = lax.pmax(x.max(1, keepdims=True), "a")
    each = jnp.exp(x - top)
    return total(each @ masked(part(w, 0), 0)) / total(each.sum(1, keepdims=True))


def rounds(step, start=part, end=whole):
    def many(x, w):
        last = lax.scan(lambda c, _: (step(c), None), start(x, 1), None, 3)[0]
        return end(last, 1) @ w

    return many


def turned(step):
    return lambda x, w: lax.scan(lambda c, _: (step(c), None), x, None, 3)[0] @ w


product = lambda x, w: x @ w
sines = lambda x, w: jnp.sin(x) @ w
cosines = lambda x, w: jnp.cos(x) @ w
largest = lambda x, w: jnp.max(x, 1) + w[:5, 0]
RIGHT = {
    "zeros in both": (product, lambda x, w: summed(part(x, 1) @ part(w, 0))),
    "zeros in one": (cosines, lambda x, w: summed(jnp.cos(part(x, 1)) @ part(w, 0))),
    "a function of zeros": (sines, lambda x, w: summed(jnp.sin(part(x, 1)) @ part(w, 0, 7.0))),
    "a mask": (
        cosines,
        lambda x, w: summed(masked(jnp.cos(part(x, 1)), 1) @ masked(part(w, 0, jnp.nan), 0)),
    ),
    "a logarithm of ones": (
        lambda x, w: jnp.log(jnp.exp(x)) @ w,
        lambda x, w: summed(jnp.log(masked(jnp.exp(part(x, 1)), 1, 1.0)) @ part(w, 0)),
    ),
    "a largest one": (
        largest,
        lambda x, w: lax.pmax(masked(part(x, 1), 1, -jnp.inf).max(1), "a") + w[:5, 0],
    ),
    "elements, put together": (
        lambda x, w: jnp.cos(jnp.sin(x)) @ w,
        lambda x, w: whole(jnp.cos(jnp.sin(part(x, 1))), 1) @ w,
    ),
    "a softmax": (softmax, parts_of_softmax),
    "a loop of which no padding counts": (turned(jnp.cos), rounds(jnp.cos)),
    "a loop that masks its padding": (
        turned(lambda c: c - c.sum(1, keepdims=True)),
        rounds(lambda c: c - summed(masked(c, 1).sum(1, keepdims=True))),
    ),
    "a loop in which zeros stay zeros": (
        turned(lambda c: c * c.sum(1, keepdims=True)),
        rounds(lambda c: c * summed(c.sum(1, keepdims=True))),
    ),
}
WRONG = {
    "what is no zero in both": (
        cosines,
        lambda x, w: summed(jnp.cos(part(x, 1)) @ part(w, 0, 1.0)),
    ),
    "no mask": (sines, lambda x, w: summed(jnp.sin(part(x, 1, 1.0)) @ part(w, 0, 1.0))),
    "a mask that keeps one more": (
        sines,
        lambda x, w: summed(masked(jnp.sin(part(x, 1, 1.0)), 1, size=11) @ part(w, 0, 1.0)),
    ),
    "a mask that keeps one less": (
        product,
        lambda x, w: summed(masked(part(x, 1), 1, size=9) @ part(w, 0)),
    ),
    "the other case": (
        product,
        lambda x, w: summed(jnp.where(inside(x[:, :3], 1), 0, part(x, 1)) @ part(w, 0)),
    ),
    "a logarithm of zeros": (
        lambda x, w: jnp.log(jnp.exp(x)) @ w,
        lambda x, w: summed(jnp.log(masked(jnp.exp(part(x, 1)), 1)) @ part(w, 0)),
    ),
    "a quotient by zeros": (
        lambda x, w: (1 / x) @ w,
        lambda x, w: summed((1 / part(x, 1)) @ part(w, 0)),
    ),
    "a largest one among zeros": (
        largest,
        lambda x, w: lax.pmax(part(x, 1).max(1), "a") + w[:5, 0],
    ),
    "a smallest one": (
        lambda x, w: jnp.min(x, 1) + w[:5, 0],
        lambda x, w: lax.pmin(masked(part(x, 1), 1, -jnp.inf).min(1), "a") + w[:5, 0],
    ),
    "one element less": (product, lambda x, w: whole(part(x, 1), 1, 9) @ w[:9]),
    "zeros times what is no number": (
        product,
        lambda x, w: summed(part(x, 1) @ part(w, 0, jnp.nan)),
    ),
    "zeros times a case that is no number": (
        product,
        lambda x, w: summed(part(x, 1) @ masked(part(w, 0), 0, jnp.inf)),
    ),
    "other padding along another dim": (
        lambda x, w: jnp.pad(x, ((0, 1), (0, 0)), constant_values=7).sum(1),
        lambda x, w: summed(jnp.pad(part(x, 1), ((0, 1), (0, 0)), constant_values=7).sum(1)),
    ),
    "padding before": (
        product,
        lambda x, w: (
            whole(
                lax.dynamic_slice_in_dim(
                    jnp.pad(x, ((0, 0), (2, 0))), lax.axis_index("a") * PARTS, PARTS, 1
                ),
                1,
            )
            @ w
        ),
    ),
    "a softmax over zeros too": (softmax, lambda x, w: parts_of_softmax(x, w, 0.0)),
    "a softmax of parts": (softmax, lambda x, w: parts_of_softmax(x, w, total=lambda x: x)),
    "a loop whose padding counts": (
        turned(lambda c: jnp.cos(c) - c.sum(1, keepdims=True)),
        rounds(lambda c: jnp.cos(c) - summed(c.sum(1, keepdims=True))),
    ),
    "a loop whose padding is no zero at first": (
        turned(lambda c: c * c.sum(1, keepdims=True)),
        rounds(
            lambda c: c * summed(c.sum(1, keepdims=True)), start=lambda x, dim: part(x, dim, 1.0)
        ),
    ),
    "a loop whose padding is zero at first only": (
        turned(lambda c: c + c.sum(1, keepdims=True)),
        rounds(lambda c: c + summed(c.sum(1, keepdims=True))),
    ),
    "a loop in which the padding moves": (
        turned(lambda c: c[:, ::-1]),
        rounds(lambda c: lax.ppermute(c[:, ::-1], "a", [(i, 3 - i) for i in range(4)])),
    ),
}


def agree(one, many):
    """Whether both compute the same numbers."""
    (numbers,) = computed(jax.make_jaxpr(devices(many))(X, W), [X, W])
    return np.allclose(numbers, one(X, W), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_padded_is_proved(name):
    one, many = RIGHT[name]
    found = proof_of(one, devices(many), X, W)
    assert found.proved, found.doubt
    assert agree(one, many)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_padded_wrongly_is_not(name):
    one, many = WRONG[name]
    assert not proof_of(one, devices(many), X, W).proved
    assert not agree(one, many)


def uneven(*rules, **mesh):
    return md.Layout(list(rules), mesh=mesh, uneven="pad")


STEPS = {
    "vocab": (uneven("vocab -> model", model=3), ()),
    "d_ff": (uneven("d_ff -> model", model=3), ()),
    "both": (uneven("d_ff, vocab -> model", model=3), ("microbatches=2", "model.dropout=0.1")),
}


@pytest.mark.parametrize("name", only(["vocab"], STEPS))
def test_a_step_under_a_layout_that_does_not_divide_is_proved(name):
    layout, settings = STEPS[name]
    found = proof(layout, *settings)
    assert found.proved, found.doubt


def test_a_step_that_is_proved_computes_the_same():
    args, expected = on_one_device()
    jax.clear_caches()  # JAX keeps what it traced under another mesh
    assert same(computed(program(STEPS["both"][0]).jaxpr, args), expected)
