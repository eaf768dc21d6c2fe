"""Reductions, softmax and friends: what jax.numpy computes, whichever of the dims are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.reduce import count_nonzero, norm, std
from tests.helpers import assert_same, collectives, data, dims, distance, every, integers, layout

A, B, C = dims(a=4, b=8, c=2)
X = data(A, B, C)
LAYOUTS = {
    "both": layout("b -> n", "a -> m", mesh={"m": 2, "n": 4}),
    "two axes": layout("b -> n, m", "c -> r", mesh={"r": 2, "m": 2, "n": 2}),
}
ODD = data(
    *dims(a=5, b=3, c=2)
)  # over 4 devices: parts of 2, 2 and 1 elements, and one of padding only
UNEVEN = {
    "one dim": layout("a -> m", mesh={"m": 4}, uneven="pad"),
    "two axes": layout("a -> n, m", "b -> r", mesh={"r": 2, "m": 2, "n": 2}, uneven="pad"),
}
# The reduction, and the same on an array [a, b, c] over b and c.
OVER_BC = {
    "sum": (md.sum, jnp.sum),
    "mean": (md.mean, jnp.mean),
    "var": (md.var, jnp.var),
    "unbiased var": (lambda x, dims: md.var(x, dims, ddof=1), lambda a, at: jnp.var(a, at, ddof=1)),
    "std": (std, jnp.std),
    "norm": (norm, lambda a, at: jnp.sqrt(jnp.sum(a * a, at))),
    "max": (md.max, jnp.max),
    "min": (md.min, jnp.min),
    "prod": (md.prod, jnp.prod),
    "logsumexp": (md.logsumexp, jax.nn.logsumexp),
    "softmax": (md.softmax, jax.nn.softmax),
    "log_softmax": (md.log_softmax, jax.nn.log_softmax),
}
TRUTH = {
    "any": (md.any, jnp.any),
    "all": (md.all, jnp.all),
    "count_nonzero": (count_nonzero, jnp.count_nonzero),
}
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


@every(LAYOUTS, "both")
def test_reductions_are_the_same_lowered(rules):
    floats = {name: ours for name, (ours, _) in OVER_BC.items()}
    assert_same(lambda x: {name: fn(x, (B, C)) for name, fn in floats.items()}, X, layout=rules)
    others = {name: fns[0] for name, fns in (TRUTH | ARG).items()}
    of_b = lambda x: {n: fn(x > 0.8 if n in TRUTH else x, B) for n, fn in others.items()}
    of_all = lambda x: {n: fn(x, None) for n, fn in floats.items()}
    assert_same(lambda x: of_b(x) | of_all(x), X, layout=rules)


@every(UNEVEN, "two axes")
def test_padding_takes_no_part_in_a_reduction(rules):
    floats = {name: ours for name, (ours, _) in OVER_BC.items()}
    others = {name: fns[0] for name, fns in (TRUTH | ARG).items()}

    def run(x):
        # Below zero, as is what `softmax` sees less its maximum.
        whole = md.cast(x * 100 - 200, jnp.int32)
        over = {name: fn(x - 2, "a") for name, fn in floats.items()} | {
            f"{f.__name__} of all": f(x - 2, None) for f in (md.mean, md.max, md.softmax)
        }
        return (
            over,
            {n: fn(x > -2 if n in TRUTH else x - 2, "a") for n, fn in others.items()},
            [f(whole, "a") for f in WHOLE],
        )

    assert_same(run, ODD, layout=rules, dims=("c",))


WHOLE = (md.sum, md.mean, md.max, md.min, md.prod, md.logsumexp, md.softmax, md.argmax, md.argmin)


@every(UNEVEN, "one dim")
def test_padding_does_not_tie_with_what_is_infinite(rules):
    low = md.tensor(ODD.array.at[:, 0].set(-jnp.inf).at[2:, 1, 0].set(jnp.nan), ODD.dims)
    highest = lambda x: [md.max(x, "a"), md.argmax(x, "a"), md.logsumexp(x, "a")]
    run = lambda x: [*highest(x), md.min(-x, "a"), md.argmin(-x, "a")]
    assert_same(run, low, layout=rules, gradients=False)
    kept = md.tensor(ODD.array.at[:, 0].set(-jnp.inf), ODD.dims)
    grad = lambda x: md.value_and_grad(lambda x: md.sum(md.max(x, "a")))(x)[1]
    assert_same(grad, kept, layout=rules, gradients=False, level="optimizer")
    assert np.allclose(grad(kept).array[:, 0], 1 / 5)


@every(LAYOUTS, "both")
def test_equal_elements_share_the_gradient_and_the_first_is_the_arg(rules):
    ties = md.cast(integers(A, B, below=3), jnp.float32)
    flat = md.tensor(jnp.ones((A.size, B.size)), (A, B))
    run = lambda x, y: [f(t, B) for f in (md.max, md.min, md.argmax, md.argmin) for t in (x, y)]
    assert_same(run, ties, flat, layout=rules, dims=("c",))
    for ours, theirs in ((md.max, jnp.max), (md.min, jnp.min)):
        grad = jax.grad(lambda x, f=ours: md.sum(f(x, B)).array)(ties)
        assert distance(grad.array, jax.grad(lambda a, f=theirs: f(a, 1).sum())(ties.array)) < 1e-6


@every(LAYOUTS)
def test_values_that_are_not_finite_stay_what_they_are(rules):
    array = np.array(data(A, B).array)
    array[0] = -np.inf
    array[1, 3] = np.inf
    array[2, 5] = np.nan
    array[3, :7] = -np.inf
    run = lambda x: [f(x, B) for f in (md.logsumexp, md.max, md.min, md.sum, md.argmax, md.argmin)]
    _, (found, _) = assert_same(
        run, md.tensor(array, (A, B)), layout=rules, dims=("c",), gradients=False
    )
    theirs = [jax.nn.logsumexp, jnp.max, jnp.min, jnp.sum, jnp.argmax, jnp.argmin]
    for t, f in zip(found, theirs, strict=True):
        assert (
            np.array_equal(t.array, f(array, 1), equal_nan=True)
            or distance(t.array, f(array, 1)) < 1e-6
        )


def test_masked_softmax_gives_no_weight_and_no_gradient_to_what_is_masked():
    mask = md.iota(B) < 3
    run = lambda x: (
        md.softmax(md.where(mask, x, -1e30), B) * x + md.softmax(md.where(mask, x, -jnp.inf), B)
    )
    assert_same(run, X, layout=LAYOUTS["both"])


DTYPES = {
    "int8 sum": (lambda x: md.sum(md.cast(x * 100, jnp.int8), B), jnp.int32),
    "int32 mean": (lambda x: md.mean(md.cast(x * 100, jnp.int32), B), jnp.float32),
    "bool sum": (lambda x: md.sum(x > 0, B), jnp.int32),
    "bool mean": (lambda x: md.mean(x > 0, B), jnp.float32),
    "int32 max": (lambda x: md.max(md.cast(x * 100, jnp.int32), B), jnp.int32),
    "int32 prod": (lambda x: md.prod(md.cast(x * 3, jnp.int32), B), jnp.int32),
    "bfloat16 max": (lambda x: md.max(md.cast(x, jnp.bfloat16), B), jnp.bfloat16),
    "float16 min": (lambda x: md.min(md.cast(x, jnp.float16), B), jnp.float16),
    "uint8 min": (lambda x: md.min(md.cast(x * 100 + 100, jnp.uint8), B), jnp.uint8),
    "uint32 max": (lambda x: md.max(md.cast(x * 1e9 + 2e9, jnp.uint32), B), jnp.uint32),
    "bool min": (lambda x: md.min(x > 0, B), jnp.bool_),
    "int8 softmax": (lambda x: md.softmax(md.cast(x * 100, jnp.int8), B), jnp.float32),
    "bool count": (lambda x: count_nonzero(x > 0, B), jnp.int32),
}


def test_dtypes_are_those_of_jax():
    for name, (fn, dtype) in DTYPES.items():
        assert fn(X).dtype == dtype, name


def test_mean_of_many_does_not_overflow_a_small_dtype():
    many = md.Dim("many", 100_000)
    assert md.mean(md.tensor(jnp.ones(many.size, jnp.float16), (many,))).item() == 1


COUNTS = {
    "sum stays pending until it leaves": (lambda x: md.sum(x, B) * 2.0, {("psum", ("m",)): 1}),
    "softmax": (lambda x: md.softmax(x, B), {("pmax", ("m",)): 1, ("psum", ("m",)): 1}),
    "max": (lambda x: md.max(x, B), {("pmax", ("m",)): 1}),
    "argmax": (lambda x: md.argmax(x, B), {("pmax", ("m",)): 1, ("pmin", ("m",)): 1}),
    "prod": (lambda x: md.prod(x, B), {("all_gather", ("m",)): 1}),
    "over a dim that is not split": (lambda x: [md.max(x, A), md.softmax(x, A), md.sum(x, A)], {}),
}


@pytest.mark.parametrize("fn, expected", COUNTS.values(), ids=COUNTS)
def test_only_one_small_result_per_device_travels(fn, expected):
    rules = layout("b -> m", mesh={"m": 4})
    lowered = md.lower(fn, rules)
    assert collectives(fn, X, layout=rules) == expected
    assert all(c.bytes <= 4 * A.size * C.size * 4 for c in lowered.program(X).collectives)
