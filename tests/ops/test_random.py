"""Random draws: those of jax.random, the same under every layout, whatever part of them a device makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.random import _product64
from tests.helpers import assert_same, data, dims, layout

A, B, C = DIMS = dims(a=4, b=8, c=6)
SHAPE = (4, 8, 6)
X, KEY = data(A, B), jax.random.key(3)
LAYOUTS = [
    layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}),
    layout("b -> n, m", mesh={"m": 2, "n": 4}),
    layout("c? -> m", "b -> r", "a -> n", mesh={"r": 2, "n": 2, "m": 2}),
]
DRAWS = {
    "bits": (md.random.bits, jax.random.bits(KEY, SHAPE)),
    "uniform": (md.random.uniform, jax.random.uniform(KEY, SHAPE)),
    "normal": (md.random.normal, jax.random.normal(KEY, SHAPE)),
    "gumbel": (md.random.gumbel, jax.random.gumbel(KEY, SHAPE)),
    "uniform in a range": (
        lambda key, dims, like=None: md.random.uniform(key, dims, low=-2.0, high=3.0, like=like),
        jax.random.uniform(KEY, SHAPE, minval=-2.0, maxval=3.0),
    ),
    "bernoulli": (lambda key, dims, like=None: md.random.bernoulli(key, 0.3, dims, like=like), jax.random.bernoulli(KEY, 0.3, SHAPE)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_jax(name):
    draw, expected = DRAWS[name]
    found = draw(KEY, DIMS)
    assert found.dims == DIMS and found.dtype == expected.dtype
    np.testing.assert_allclose(found.array, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("rules", LAYOUTS, ids=range(len(LAYOUTS)))
def test_draws_are_the_same_lowered(rules):
    def run(key, x):
        wholes = {name: draw(key, DIMS) for name, (draw, _) in DRAWS.items()}
        parts = {name: draw(key, DIMS, like=x) for name, (draw, _) in DRAWS.items()}
        return wholes, parts

    assert_same(run, KEY, X, layout=rules, tolerance=1e-6)


@pytest.mark.parametrize("rules", LAYOUTS, ids=range(len(LAYOUTS)))
def test_dropout_drops_the_same_elements_lowered(rules):
    run = lambda key, x: [md.dropout(x, 0.4, key), md.dropout(md.sum(x, A), 0.4, key), md.dropout(x, 0.0, key)]  # noqa: E731
    _, (found, _) = assert_same(run, KEY, X, layout=rules, dims=("c",))
    kept = jax.random.uniform(KEY, (4, 8)) >= 0.4
    np.testing.assert_allclose(found[0].array, np.where(kept, X.array / 0.6, 0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_uniform_is_below_one_in_every_dtype(dtype):
    found = md.random.uniform(KEY, (md.Dim("many", 100_000),), dtype)
    assert found.dtype == dtype
    assert 0.99 < found.array.max() < 1 and 0 <= found.array.min() < 0.01
    assert abs(float(md.mean(md.cast(found, jnp.float32)).item()) - 0.5) < 0.01


KEYS = {
    "typed": KEY,
    "raw": jax.random.key_data(KEY),
    "Tensor": md.tensor(KEY, ()),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_may_be_typed_raw_or_a_tensor(key):
    assert np.array_equal(md.random.bits(key, DIMS).array, jax.random.bits(KEY, SHAPE))


@pytest.mark.parametrize("stride", [1, 3, 2**15, 2**16, 2**20 + 7, 2**31, 2**33 + 5])
def test_indices_beyond_32_bits_are_exact(stride):
    indices = np.array([0, 1, 2**16, 2**19 - 1, 2**31 + 12345, 2**32 - 1], np.uint32)
    high, low = _product64(jnp.asarray(indices), stride, 2**32)
    assert [(int(h) << 32) + int(n) for h, n in zip(high, low, strict=True)] == [int(i) * stride % 2**64 for i in indices]
