"""Reductions, softmax and friends: what jax.numpy computes, whichever of the dims are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, distance, integers, layout

A, B, C = dims(a=4, b=8, c=2)
X = data(A, B, C)
LAYOUTS = {
    "kept dim": layout("a -> m", mesh={"m": 4, "n": 2}),
    "reduced dim": layout("b -> m", mesh={"m": 4, "n": 2}),
    "both": layout("b -> n", "a -> m", mesh={"m": 2, "n": 4}),
    "two axes": layout("b -> m, n", "a -> n", mesh={"m": 2, "n": 4}),
    "two axes, minor first": layout("b -> n, m", "c -> r", mesh={"r": 2, "m": 2, "n": 2}),
}
# The reduction, and the same on an array [a, b, c] over b and c.
OVER_BC = {
    "sum": (md.sum, jnp.sum),
    "mean": (md.mean, jnp.mean),
    "var": (md.var, jnp.var),
    "max": (md.max, jnp.max),
    "min": (md.min, jnp.min),
    "prod": (md.prod, jnp.prod),
    "logsumexp": (md.logsumexp, jax.nn.logsumexp),
    "softmax": (md.softmax, jax.nn.softmax),
    "log_softmax": (md.log_softmax, jax.nn.log_softmax),
}
TRUTH = {"any": (md.any, jnp.any), "all": (md.all, jnp.all)}
ARG = {"argmax": (md.argmax, jnp.argmax), "argmin": (md.argmin, jnp.argmin)}


@pytest.mark.parametrize("name", OVER_BC)
def test_reduction_is_that_of_jax(name):
    ours, theirs = OVER_BC[name]
    assert distance(ours(X, (B, "c")).array, theirs(X.array, (1, 2))) < 1e-6
    assert distance(ours(X, None).array, theirs(X.array, (0, 1, 2))) < 1e-6


@pytest.mark.parametrize("name", [*TRUTH, *ARG])
def test_truth_and_arg_are_those_of_jax(name):
    if name in TRUTH:
        found, expected = TRUTH[name][0](X > 0.8, B), TRUTH[name][1](X.array > 0.8, 1)
    else:
        found, expected = ARG[name][0](X, "b"), ARG[name][1](X.array, 1)
    assert found.dims == (A, C) and np.array_equal(found.array, expected)


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_reductions_are_the_same_lowered(rules):
    floats = {name: ours for name, (ours, _) in OVER_BC.items()}
    assert_same(lambda x: {name: fn(x, (B, C)) for name, fn in floats.items()}, X, layout=rules)
    others = {name: fns[0] for name, fns in (TRUTH | ARG).items()}
    assert_same(
        lambda x: {n: fn(x > 0.8 if n in TRUTH else x, B) for n, fn in others.items()} | {n: fn(x, None) for n, fn in floats.items()},
        X,
        layout=rules,
    )


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_equal_elements_share_the_gradient_and_the_first_is_the_arg(rules):
    ties = md.cast(integers(A, B, below=3), jnp.float32)
    flat = md.tensor(jnp.ones((A.size, B.size)), (A, B))
    run = lambda x, y: [f(t, B) for f in (md.max, md.min, md.argmax, md.argmin) for t in (x, y)]  # noqa: E731
    assert_same(run, ties, flat, layout=rules, dims=("c",))
    for ours, theirs in ((md.max, jnp.max), (md.min, jnp.min)):
        grad = jax.grad(lambda x, f=ours: md.sum(f(x, B)).array)(ties)
        assert distance(grad.array, jax.grad(lambda a, f=theirs: f(a, 1).sum())(ties.array)) < 1e-6


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_values_that_are_not_finite_stay_what_they_are(rules):
    array = np.array(data(A, B).array)
    array[0] = -np.inf
    array[1, 3] = np.inf
    array[2, 5] = np.nan
    array[3, :7] = -np.inf
    run = lambda x: [f(x, B) for f in (md.logsumexp, md.max, md.min, md.sum, md.argmax, md.argmin)]  # noqa: E731
    program, (found, _) = assert_same(run, md.tensor(array, (A, B)), layout=rules, dims=("c",), gradients=False)
    theirs = [jax.nn.logsumexp, jnp.max, jnp.min, jnp.sum, jnp.argmax, jnp.argmin]
    for t, f in zip(found, theirs, strict=True):
        assert np.array_equal(t.array, f(array, 1), equal_nan=True) or distance(t.array, f(array, 1)) < 1e-6


def test_masked_softmax_gives_no_weight_and_no_gradient_to_what_is_masked():
    mask = md.iota(B) < 3
    run = lambda x: md.softmax(md.where(mask, x, -1e30), B) * x + md.softmax(md.where(mask, x, -jnp.inf), B)  # noqa: E731
    for rules in LAYOUTS.values():
        assert_same(run, X, layout=rules)


DTYPES = {
    "int8 sum": (lambda x: md.sum(md.cast(x * 100, jnp.int8), B), jnp.int32),
    "int32 mean": (lambda x: md.mean(md.cast(x * 100, jnp.int32), B), jnp.float32),
    "bool sum": (lambda x: md.sum(x > 0, B), jnp.int32),
    "bool mean": (lambda x: md.mean(x > 0, B), jnp.float32),
    "int32 max": (lambda x: md.max(md.cast(x * 100, jnp.int32), B), jnp.int32),
    "int32 prod": (lambda x: md.prod(md.cast(x * 3, jnp.int32), B), jnp.int32),
    "bfloat16 max": (lambda x: md.max(md.cast(x, jnp.bfloat16), B), jnp.bfloat16),
}


def test_dtypes_are_those_of_jax():
    for rules in LAYOUTS.values():
        _, (found, _) = assert_same(lambda x: {name: fn(x) for name, (fn, _) in DTYPES.items()}, X, layout=rules)
        assert {name: t.dtype for name, t in found.items()} == {name: dtype for name, (_, dtype) in DTYPES.items()}


def test_mean_of_many_does_not_overflow_a_small_dtype():
    many = md.Dim("many", 100_000)
    assert md.mean(md.tensor(jnp.ones(many.size, jnp.float16), (many,))).item() == 1


COUNTS = {
    "sum stays pending until it leaves": (lambda x: md.sum(x, B) * 2.0, {("psum", ("m",)): 1}),
    "softmax": (lambda x: md.softmax(x, B), {("pmax", ("m",)): 1, ("psum", ("m",)): 1}),
    "max": (lambda x: md.max(x, B), {("all_gather", ("m",)): 1}),
    "argmax": (lambda x: md.argmax(x, B), {("all_gather", ("m",)): 2}),
    "prod": (lambda x: md.prod(x, B), {("all_gather", ("m",)): 1}),
    "over a dim that is not split": (lambda x: [md.max(x, A), md.softmax(x, A), md.sum(x, A)], {}),
}


@pytest.mark.parametrize("fn, expected", COUNTS.values(), ids=COUNTS)
def test_only_one_small_result_per_device_travels(fn, expected):
    rules = layout("b -> m", mesh={"m": 4})
    lowered = md.lower(fn, rules)
    assert collectives(fn, X, layout=rules) == expected
    assert all(c.bytes <= 4 * A.size * C.size * 4 for c in lowered.program(X).collectives)
