"""Bools, small integers and complex numbers: the same dtype and value whichever dim is split."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, dims, layout

A, B, C = dims(a=4, b=8, c=8)
RANDOM = np.random.default_rng(0)
SPLIT = {
    "contracted": layout("b -> m", mesh={"m": 4}),
    "scattered": layout("b, c? -> m", mesh={"m": 4}),
}
every_split = pytest.mark.parametrize("rules", SPLIT.values(), ids=SPLIT)
PARTS = RANDOM.normal(size=(2, 4, 8))
Z = md.tensor(jnp.asarray(PARTS[0] + 1j * PARTS[1], jnp.complex64), (A, B))
TIED = md.tensor(jnp.round(Z.array.real) + 1j * jnp.round(Z.array.imag), (A, B))


def numbers(*of, dtype):
    values = RANDOM.integers(-60, 60, [d.size for d in of])
    return md.tensor(jnp.asarray(values > 25 if dtype == bool else values.astype(dtype)), of)


@every_split
def test_sums_over_devices_keep_dtype_and_value(rules):
    """Of bools they are whether any is true, and integers wrap around, as in jax.numpy."""
    dtypes = (bool, np.int8, np.uint8, np.int16, np.int32)
    pairs = [(numbers(A, B, dtype=t), numbers(B, C, dtype=t)) for t in dtypes]
    products = lambda pairs: [md.einsum(x, y, out=(A, C)) for x, y in pairs]
    assert_same(products, pairs, layout=rules)
    for (x, y), found in zip(pairs, products(pairs), strict=True):
        expected = jnp.einsum("ab,bc->ac", x.array, y.array)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.array, expected)


@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_sums_that_wait_are_taken_before_what_is_not_linear_in_them(dtype):
    """Twice true is 2 and not 4, and what wraps around before it is halved is another number."""
    x, y = numbers(A, B, dtype=dtype), numbers(B, C, dtype=dtype)

    def run(x, y):
        z = md.einsum(x, y, out=(A, C))
        larger = md.einsum(md.cast(x, "int32"), md.cast(y, "int32"), out=(A, C))
        made = [z * 2, z / 2, z + larger, z + z, md.sum(z, C), md.mean(z, C)]
        return [
            *made,
            md.transpose(z, (C, A)),
            md.einsum(z, out=A, preferred_element_type="int32"),
            md.cast(z, "float32"),
        ]

    assert_same(run, x, y, layout=SPLIT["contracted"])


ORDERED = {
    "max": (md.max, jnp.max),
    "min": (md.min, jnp.min),
    "sort": (md.sort, jnp.sort),
    "argsort": (md.argsort, jnp.argsort),
    "cummax": (md.cummax, jax.lax.cummax),
    "softmax": (md.softmax, jax.nn.softmax),
    "log_softmax": (md.log_softmax, jax.nn.log_softmax),
    "logsumexp": (md.logsumexp, jax.nn.logsumexp),
    "cumlogsumexp": (md.cumlogsumexp, jax.lax.cumlogsumexp),
    "sum": (md.sum, jnp.sum),
    "mean": (md.mean, jnp.mean),
    "var": (md.var, jnp.var),
    "std": (md.std, jnp.std),
    "prod": (md.prod, jnp.prod),
    "cumsum": (md.cumsum, jnp.cumsum),
    "cumprod": (md.cumprod, jnp.cumprod),
}


def test_ops_on_complex_numbers_are_those_of_jax():
    def both(z):
        return {name: (ours(z, B).array, theirs(z.array, 1)) for name, (ours, theirs) in of_each}

    of_each = ORDERED.items()
    for z in (Z, TIED):
        for name, (found, expected) in jax.jit(both)(z).items():
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5, err_msg=name)


def test_a_nan_is_above_every_complex_number():
    z = md.tensor(Z.array.at[0, 3].set(complex(0, np.nan)).at[1, 5].set(np.nan), (A, B))
    largest = lambda z: md.max(z, B)
    _, (result, _) = assert_same(largest, z, layout=SPLIT["contracted"], gradients=False)
    assert np.isnan(result.array).tolist() == [True, True, False, False]


REFUSING = {
    "argmax": lambda z: md.argmax(z, B),
    "argmin": lambda z: md.argmin(z, B),
    "top_k": lambda z: md.top_k(z, B, 2),
    "nth_largest": lambda z: md.nth_largest(z, B, 2),
    "max_pool": lambda z: md.max_pool(z, {B: 2}),
    "categorical": lambda z: md.random.categorical(jax.random.key(0), z, B),
}


@pytest.mark.parametrize("name", REFUSING)
def test_what_has_no_order_of_complex_numbers_refuses_them_alike(name):
    op = REFUSING[name]
    expected = (
        f"{name}: takes no complex numbers, and [a=4, b=8] is complex64; use md.real, md.imag or"
    )
    for run in (op, md.lower(op, SPLIT["contracted"])):
        with pytest.raises(md.MeshDSLError, match=re.escape(expected)):
            run(Z)


def test_a_complex_save_point_is_kept():
    named = md.checkpoint(lambda z: md.sin(md.checkpoint_name(z * z, "y")), save="y")
    assert_same(named, Z, layout=SPLIT["contracted"])
