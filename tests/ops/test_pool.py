"""max_pool and mean_pool: what jax.lax.reduce_window does by position, also along split dims."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

import meshdsl as md
from meshdsl import max_pool, mean_pool
from tests.helpers import assert_same, collectives, data, dims, distance, integers, layout

N, H, W, C = dims(n=2, h=9, w=16, c=3)
X = data(
    N, H, W, C, low=-2.0, high=-1.0
)  # so that a zero of padding would be a maximum, and change a mean
MESH = {"m": 2, "s": 4}
CASES = {
    "side by side": lambda pool, x: pool(x, {H: 3, "w": 2}),
    "overlapping": lambda pool, x: pool(x, {"h": 4, "w": 3}, stride=2, padding="SAME"),
    "one stride": lambda pool, x: pool(x, {H: 2, W: 5}, stride={W: 1}, padding={"w": (4, 0)}),
    "another name": lambda pool, x: pool(
        x, {H: 2, W: 4}, stride=3, padding=1, into={"h": "u", W: md.Dim("v", 5)}
    ),
    "everything": lambda pool, x: pool(x, {"h": 9, "w": 16, "c": 3}),
}
RULES = layout("h -> r", "w -> m", "c -> s", "u -> r", mesh={"r": 2, "m": 2, "s": 2}, uneven="pad")


def by_jax(x, window, strides, pads):
    """The maxima and the means of the elements that are there."""
    total, count = (
        lax.reduce_window(a, 0.0, lax.add, window, strides, pads) for a in (x, jnp.ones_like(x))
    )
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads), total / count


JUDGED = {
    "side by side": ((1, 3, 2, 1), (1, 3, 2, 1), "VALID"),
    "overlapping": ((1, 4, 3, 1), (1, 2, 2, 1), "SAME"),
    "one stride": ((1, 2, 5, 1), (1, 2, 1, 1), [(0, 0), (0, 0), (4, 0), (0, 0)]),
    "another name": ((1, 2, 4, 1), (1, 3, 3, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]),
    "everything": ((1, 9, 16, 3), (1, 9, 16, 3), "VALID"),
}


@pytest.mark.parametrize("name", CASES)
def test_pools_are_those_of_jax(name):
    largest, mean = by_jax(X.array, *JUDGED[name])
    assert np.array_equal(CASES[name](max_pool, X).array, largest)
    assert distance(CASES[name](mean_pool, X).array, mean) < 1e-6


def every(x):
    return {name: [case(max_pool, x), case(mean_pool, x)] for name, case in CASES.items()}


def test_pools_are_the_same_lowered():
    assert_same(every, X, layout=RULES)


@settings(max_examples=settings.default.max_examples // 10)
@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.integers(1, 4),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.sampled_from([("m",), ("s",), ("m", "s"), ("s", "m")]),
)
def test_any_window_over_any_number_of_parts_is_the_same_lowered(n, size, stride, padding, axes):
    dim = md.Dim("w", n)
    assume(max(padding) < size <= n + sum(padding))
    args = {dim: size}, dict(stride=stride, padding=padding, into={"w": "v"})
    counts = [
        sum(0 <= o * stride - padding[0] + t < n for t in range(size))
        for o in range((n + sum(padding) - size) // stride + 1)
    ]
    assume(all(counts))
    x = data(dim, C)
    rules = layout(f"w -> {', '.join(axes)}", f"v -> {axes[0]}", mesh=MESH, uneven="pad")
    run = lambda x: [pool(x, args[0], **args[1]) for pool in (max_pool, mean_pool)]
    assert_same(run, x, layout=rules)
    expected = by_jax(x.array, (size, 1), (stride, 1), [padding, (0, 0)])
    for found, array in zip(run(x), expected, strict=True):
        assert distance(found.array, array) < 1e-6


def test_the_first_of_equal_elements_has_the_gradient_wherever_it_lies():
    ties = md.tensor(jnp.ones((16, 2)), (W, md.Dim("c", 2)))
    rules = layout("w -> s", mesh={"s": 4})
    run = lambda x: max_pool(x, {"w": 3}, stride=2, padding="SAME")
    assert_same(run, ties, layout=rules)
    lost = md.tensor(jnp.full((16, 2), -jnp.inf), ties.dims)
    assert_same(run, lost, layout=rules)


@pytest.mark.slow
def test_other_dtypes_are_the_same_lowered():
    run = lambda x, i: [
        max_pool(md.cast(x, jnp.bfloat16), {"w": 3}, padding="SAME"),
        mean_pool(md.cast(x, jnp.bfloat16), {"w": 3}, padding="SAME"),
        max_pool(i, {"w": 3}, padding="SAME"),
        max_pool(md.cast(i, jnp.uint8), {"w": 3}, padding="SAME"),
        mean_pool(i, {"w": 3}, padding="SAME"),
        max_pool(i > -150, {"w": 3}, stride=1, padding="SAME"),
    ]
    ids = integers(H, W, below=100)
    ids = md.tensor(ids.array - 200, ids.dims)
    names = [str(t.dtype) for t in run(X, ids)]
    assert names == ["bfloat16", "bfloat16", "int32", "uint8", "float32", "bool"]
    assert run(X, ids)[2].array.max() < 0
    rules = layout("w -> m, s", "h -> s, m", mesh=MESH, uneven="pad")
    assert_same(run, X, ids, layout=rules, tolerance=1e-2)


def test_a_pool_moves_the_halo_and_no_more():
    rules, row = layout("w -> s", mesh={"s": 4}), N.size * H.size * C.size * 4
    side_by_side = lambda x: max_pool(x, {"w": 4})
    assert collectives(side_by_side, X, layout=rules) == {}
    overlapping = lambda x: mean_pool(x, {"w": 5}, stride=1, padding="SAME")
    program = md.lower(overlapping, rules).program(X)
    assert [(c.operation, c.bytes) for c in program.collectives] == [("ppermute", 2 * row)] * 2
