"""cumsum, cumprod, cummax, cummin and cumlogsumexp scan the whole dim, wherever it lies.

Only one total for each part of it travels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshdsl as md
from tests.helpers import assert_equal, assert_same, data, dims, distance, layout
from tests.ops.along import assert_all_same, assert_as_numpy, every_layout

NUMPY = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}
FIRST = {"cumsum": 0, "cumprod": 1, "cummax": -np.inf, "cummin": np.inf, "cumlogsumexp": -np.inf}
HOW = [{}, {"reverse": True}, {"exclusive": True}, {"reverse": True, "exclusive": True}]


def op(name):
    return getattr(md, name)


def expected(name, x, reverse=False, exclusive=False):
    """numpy's, along the second dimension."""
    x = x[:, ::-1] if reverse else x
    y = NUMPY[name].accumulate(x, 1)
    y = np.concatenate([np.full_like(x[:, :1], FIRST[name]), y[:, :-1]], 1) if exclusive else y
    return y[:, ::-1] if reverse else y


def test_scans_are_those_of_numpy():
    every = [(name, how) for name in NUMPY for how in HOW]
    assert_as_numpy(
        lambda x, a, b, c: {str(each): op(each[0])(x, "b", **each[1]) for each in every},
        lambda x, a, b, c: {str(each): expected(each[0], x, **each[1]) for each in every},
    )


@every_layout
def test_scans_are_the_same_lowered(rules):
    every = lambda x, a, b, c: [op(n)(x, b, **HOW[i % 4]) for i, n in enumerate(NUMPY)]
    assert_all_same(every, rules)


(N,) = dims(n=12)
SPLIT = layout("n -> m", mesh={"m": 4})
UNEVENLY = layout("n -> m", mesh={"m": 8}, uneven="pad")


def line(*values):
    return md.tensor(np.resize(np.asarray(values, np.float32), N.size), (N,))


@pytest.mark.slow
def test_a_product_with_zeros_has_the_gradient_of_one_device():
    for x in (line(2, 0, 3, 1, 2), line(1, 2, 3, 4, 5, 6, 0, 2, 3, 4, 5, 6)):
        _, (_, (gradient,)) = assert_same(lambda x: md.cumprod(x, N), x, layout=SPLIT)
        weights = data(N, seed=100, low=0.5, high=1.5).array
        products = lambda a: jnp.stack([jnp.prod(a[: i + 1]) for i in range(N.size)])
        jacobian = jax.jacobian(products)(x.array)
        assert distance(gradient.array, weights @ jacobian) < 1e-6


def shares(x):
    """The jacobian of a running maximum in which elements that tie share."""
    rows = np.array(
        [[(x[k] == x[: i + 1].max()) & (k <= i) for k in range(len(x))] for i in range(len(x))],
        np.float32,
    )
    return rows / rows.sum(1, keepdims=True)


def test_elements_that_tie_for_an_extremum_share_the_gradient_wherever_they_are():
    x = line(1, 1, 0, 1, 2, 2)
    weights, array = data(N, seed=100, low=0.5, high=1.5).array, np.asarray(x.array)
    _, (_, (largest,)) = assert_same(lambda x: md.cummax(x, N), x, layout=SPLIT)
    backwards = lambda x: md.cummin(x, N, reverse=True)
    _, (_, (smallest,)) = assert_same(backwards, x, layout=UNEVENLY)
    assert distance(largest.array, weights @ shares(array)) < 1e-6
    assert distance(smallest.array[::-1], weights[::-1] @ shares(-array[::-1])) < 1e-6


@pytest.mark.slow
def test_a_logsumexp_of_nothing_has_no_gradient_and_no_nan():
    x = line(-np.inf, -np.inf, -np.inf, -np.inf, 1, 2, -np.inf, 3)
    run = lambda x: [md.cumlogsumexp(x, N, **how) for how in HOW]
    _, (found, (gradient,)) = assert_same(run, x, layout=SPLIT)
    assert all(np.isneginf(t.array).any() for t in found)
    assert np.isfinite(gradient.array).all()
    assert not gradient.array[np.isneginf(x.array)].any()


def test_infinities_only_reach_what_comes_after():
    run, x = lambda x: [op(name)(x, N) for name in NUMPY], line(1, 2, 1, 1, 2, np.inf)
    _, (found, _) = assert_same(run, x, layout=UNEVENLY, gradients=False)
    assert all(np.isfinite(t.array[:5]).all() for t in found)


def test_large_numbers_do_not_overflow_a_logsumexp():
    x = line(1000, -1000, 1001)
    assert_same(lambda x: md.cumlogsumexp(x, N), x, layout=SPLIT, tolerance=1e-3)


def test_a_second_derivative_is_that_of_one_device():
    def run(x):
        slope = lambda x: md.value_and_grad(lambda x: md.sum(md.sin(md.cumprod(x, N))))(x)[1]
        return md.value_and_grad(lambda x: md.sum(slope(x) * slope(x)))(x)

    assert_same(run, line(0.5, 1.5, 1), layout=SPLIT, gradients=False)


def test_scans_of_other_dtypes_are_those_of_jax():
    run = lambda x: {
        t: [op(name)(md.cast(x, t), N) for name in NUMPY]
        for t in ("int8", "int32", "bool", "float16", "bfloat16")
    }
    x = line(1, 0, 2, 1, -1, 1)
    found = jax.eval_shape(run, x)
    assert [t.dtype for t in found["bool"]] == [jnp.int32] * 4 + [jnp.float32]
    assert [t.dtype for t in found["int8"]] == [jnp.int8] * 4 + [jnp.float32]
    of_lax = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
    expected = [md.tensor(f(x.array.astype(int)), (N,)) for f in of_lax]
    assert_equal(jax.jit(run)(x)["int32"][:4], expected)


@pytest.mark.parametrize("name", NUMPY)
def test_one_total_of_each_part_travels(name):
    """What the prefix needs at the least is one number for each device.

    All of them come at once instead, in one collective.
    """
    a, b = dims(a=3, b=32)
    for parts in (4, 8):
        lowered = md.lower(lambda x: op(name)(x, b), layout("b -> m", mesh={"m": parts}))
        found = [(c.operation, c.bytes) for c in lowered.program(data(a, b)).collectives]
        assert found == [("all_gather", parts * a.size * 4)]
