"""Random draws are those of jax.random, to the bit, under every layout and version of JAX.

It does not matter which part of them a device makes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops import bitwise, random
from meshdsl.ops.threefry import product64
from tests.helpers import assert_same, collectives, data, dims, layout

A, B, C = DIMS = dims(a=4, b=8, c=6)
SHAPE = (4, 8, 6)
X, KEY = data(A, B), jax.random.key(3)
LAYOUTS = [
    layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}),
    layout("b -> n, m", mesh={"m": 2, "n": 4}),
    layout("c? -> m", "b -> r", "a -> n", mesh={"r": 2, "n": 2, "m": 2}),
    layout("a -> m", "b -> n", "c? -> n", mesh={"m": 3, "n": 2}, uneven="pad"),
]
EXACT = {
    "bits": (random.bits, jax.random.bits),
    "uniform": (random.uniform, jax.random.uniform),
    "bernoulli": (
        lambda key, dims, **how: random.bernoulli(key, 0.3, dims, **how),
        lambda key, shape: jax.random.bernoulli(key, 0.3, shape),
    ),
    "randint": (
        lambda key, dims, **how: random.randint(key, dims, -5, 1000, **how),
        lambda key, shape: jax.random.randint(key, shape, -5, 1000),
    ),
    "randint of every bit": (
        lambda key, dims, **how: random.randint(key, dims, -(2**31), 2**31 - 1, **how),
        lambda key, shape: jax.random.randint(key, shape, -(2**31), 2**31 - 1),
    ),
}
ROUNDED = {
    "uniform in a range": (
        lambda key, dims, **how: random.uniform(key, dims, low=-2.0, high=3.0, **how),
        lambda key, shape: jax.random.uniform(key, shape, minval=-2.0, maxval=3.0),
    ),
    "normal": (random.normal, jax.random.normal),
    "gumbel": (random.gumbel, jax.random.gumbel),
    "exponential": (random.exponential, jax.random.exponential),
    "truncated normal": (
        lambda key, dims, **how: random.truncated_normal(key, dims, -1.0, 2.5, **how),
        lambda key, shape: jax.random.truncated_normal(key, -1.0, 2.5, shape),
    ),
    "half a normal": (
        lambda key, dims, **how: random.truncated_normal(key, dims, 0.0, float("inf"), **how),
        lambda key, shape: jax.random.truncated_normal(key, 0.0, jnp.inf, shape),
    ),
}
DRAWS = EXACT | ROUNDED


GOLDEN = {
    "bits": [0x12F51D7E, 0x1456847D, 0xD503FD90, 0x687F4641],
    "uniform": [0x3D97A8E0, 0x3DA2B420, 0x3F5503FC, 0x3ED0FE8C],
    "bernoulli": [1, 1, 0, 0],
    "randint": [0x00000244, 0x000003CF, 0x0000024A, 0x00000382],
    "randint of every bit": [0x86A7964B, 0x11659E42, 0xFD7FD320, 0x3604DD85],
    "uniform in a range": [0xBFD09B3A, 0xBFCD27B6, 0x400A44FC, 0x3D27C600],
    "normal": [0xBFB91EF3, 0xBFB45402, 0x3F766421, 0xBE6DC559],
    "gumbel": [0xBF74E778, 0xBF6DE565, 0x3FD8CFC5, 0x3DE0DC59],
    "exponential": [0x3D9D9193, 0x3DA987DC, 0x3FE4653B, 0x3F064A6C],
    "truncated normal": [0xBF45400B, 0xBF41624A, 0x3F86A2D6, 0xBA9398EC],
    "half a normal": [0x3DBE59D4, 0x3DCC41BF, 0x3FB081AA, 0x3F094594],
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_jax_and_the_same_bits_in_every_version_of_it(name):
    draw, theirs = DRAWS[name]
    made, expected = draw(KEY, DIMS), theirs(KEY, SHAPE)
    assert made.dims == DIMS and made.dtype == expected.dtype
    found = np.asarray(made.array)
    if name in EXACT:
        assert np.array_equal(found, expected)
    # XLA's erf_inv has errors of 6e-6.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    found = found.astype(np.uint32) if found.dtype == bool else found.view(np.uint32)
    assert [hex(n) for n in found.ravel()[::48]] == [hex(n) for n in GOLDEN[name]]


def test_draws_are_the_same_bits_lowered_and_fused_with_anything():
    def run(key, x):
        wholes = {name: draw(key, DIMS) for name, (draw, _) in EXACT.items()}
        parts = {name: draw(key, DIMS, like=x) for name, (draw, _) in DRAWS.items()}
        fused = {name: draw(key, (A, B), like=x) for name, (draw, _) in ROUNDED.items()}
        return wholes, parts, {name: (t + x, t) for name, t in fused.items()}

    how = {"gradients": False, "tolerance": 0.0}
    _, ((wholes, parts, fused), _) = assert_same(run, KEY, X, layout=LAYOUTS[3], **how)
    for name, (draw, _) in DRAWS.items():
        alone = draw(KEY, DIMS).array
        assert np.array_equal(parts[name].array, alone), name
        assert name not in wholes or np.array_equal(wholes[name].array, alone), name
    for name, (_, alone) in fused.items():
        assert np.array_equal(alone.array, DRAWS[name][0](KEY, (A, B)).array), name


def test_draws_take_no_communication():
    run = lambda key, x: [draw(key, DIMS, like=x) for draw, _ in DRAWS.values()]
    for rules in LAYOUTS[:3]:  # where dims do not divide, results move as they leave
        assert collectives(run, KEY, X, layout=rules) == {}


@pytest.mark.parametrize("rules", LAYOUTS[2:])
def test_dropout_drops_the_same_elements_lowered(rules):
    run = lambda key, x: [
        md.dropout(t, rate, key) for t, rate in ((x, 0.4), (md.sum(x, A), 0.4), (x, 0.0))
    ]
    _, (found, _) = assert_same(run, KEY, X, layout=rules, dims=("c",))
    kept = jax.random.uniform(KEY, (4, 8)) >= 0.4
    np.testing.assert_allclose(found[0].array, np.where(kept, X.array / 0.6, 0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_uniform_is_below_one_in_every_dtype(dtype):
    found = random.uniform(KEY, (md.Dim("many", 100_000),), dtype)
    assert found.dtype == dtype
    assert 0.99 < found.array.max() < 1 and 0 <= found.array.min() < 0.01
    assert abs(float(md.mean(md.cast(found, jnp.float32)).item()) - 0.5) < 0.01


def test_a_key_may_be_typed_raw_or_a_tensor():
    for key in (KEY, jax.random.key_data(KEY), md.tensor(KEY, ())):
        assert np.array_equal(random.bits(key, DIMS).array, jax.random.bits(KEY, SHAPE))


@pytest.mark.parametrize("stride", [1, 3, 2**15, 2**16, 2**20 + 7, 2**31, 2**33 + 5])
def test_indices_beyond_32_bits_are_exact(stride):
    indices = np.array([0, 1, 2**16, 2**19 - 1, 2**31 + 12345, 2**32 - 1], np.uint32)
    high, low = product64(jnp.asarray(indices), stride, 2**32)
    assert [(int(h) << 32) + int(n) for h, n in zip(high, low, strict=True)] == [
        int(i) * stride % 2**64 for i in indices
    ]


def everywhere(low, high):
    return np.random.default_rng(0).uniform(low, high, 20_000)


FUNCTIONS = {
    "log": (bitwise.log, np.log, np.exp(everywhere(-87, 88))),
    "log near one": (bitwise.log, np.log, 1 + everywhere(-1e-3, 1e-3)),
    "exp": (bitwise.exp, np.exp, everywhere(-87, 0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_functions_are_accurate_and_do_not_depend_on_what_surrounds_them(name):
    ours, theirs, x = FUNCTIONS[name]
    x = x.astype(np.float32)
    found = np.asarray(jax.jit(ours)(x))
    np.testing.assert_allclose(found, theirs(x.astype(np.float64)), rtol=3e-7)
    with_more = jax.jit(lambda x: (ours(x) * 3.0 + x, ours(x)))
    assert np.array_equal(found, with_more(x)[1]) and np.array_equal(found, ours(jnp.asarray(x)))


def test_erf_inv_is_the_inverse_of_erf():
    from math import erf

    x = np.concatenate([everywhere(-1, 1), [0, 2**-24, 1 - 2**-24, 2**-24 - 1]]).astype(np.float32)
    found = np.asarray(jax.jit(bitwise.erf_inv)(x), np.float64)
    slope = 2 / np.sqrt(np.pi) * np.exp(-(found**2))
    np.testing.assert_allclose((np.vectorize(erf)(found) - x) / slope, 0, atol=1e-6)
    assert np.asarray(bitwise.erf_inv(jnp.float32(0.5))) == np.float32(0.47693628)
    assert list(np.asarray(bitwise.exp(jnp.float32([0, -88, -1e9, -np.inf])))) == [1, 0, 0, 0]
