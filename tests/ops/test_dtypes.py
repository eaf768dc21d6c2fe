"""Bools, small integers and complex numbers: the same dtype and value whichever dim is split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, layout

A, B, C = dims(a=4, b=8, c=8)
RANDOM = np.random.default_rng(0)
SPLIT = {"contracted": layout("b -> m", mesh={"m": 4}), "scattered": layout("b, c? -> m", mesh={"m": 4})}
every_split = pytest.mark.parametrize("rules", SPLIT.values(), ids=SPLIT)
Z = md.tensor(jnp.asarray(RANDOM.normal(size=(4, 8)) + 1j * RANDOM.normal(size=(4, 8)), jnp.complex64), (A, B))
TIED = md.tensor(jnp.round(Z.array.real) + 1j * jnp.round(Z.array.imag), (A, B))


def numbers(*of, dtype):
    values = RANDOM.integers(-60, 60, [d.size for d in of])
    return md.tensor(jnp.asarray(values > 25 if dtype == bool else values.astype(dtype)), of)


@every_split
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int16, np.int32])
def test_sums_over_devices_keep_dtype_and_value(rules, dtype):
    """Of bools they are whether any is true, and integers wrap around, as in jax.numpy."""
    x, y = numbers(A, B, dtype=dtype), numbers(B, C, dtype=dtype)
    product = lambda x, y: md.einsum(x, y, out=(A, C))  # noqa: E731
    assert_same(product, x, y, layout=rules)
    expected = jnp.einsum("ab,bc->ac", x.array, y.array)
    assert product(x, y).dtype == expected.dtype
    np.testing.assert_array_equal(product(x, y).array, expected)


@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_sums_that_wait_are_taken_before_what_is_not_linear_in_them(dtype):
    """Twice true is 2 and not 4, and what has wrapped around before it is halved is another number than after."""
    x, y = numbers(A, B, dtype=dtype), numbers(B, C, dtype=dtype)

    def run(x, y):
        z = md.einsum(x, y, out=(A, C))
        return [z * 2, z / 2, md.sum(z, C), md.mean(z, C), z + md.einsum(md.cast(x, "int32"), md.cast(y, "int32"), out=(A, C)),
                md.einsum(z, out=A, preferred_element_type="int32"), md.cast(z, "float32"), md.transpose(z, (C, A)), z + z]  # fmt: skip

    assert_same(run, x, y, layout=SPLIT["contracted"])


def test_what_is_looked_up_in_bools_is_bool():
    x, ids = numbers(A, B, dtype=bool), numbers(C, dtype=np.int8)
    run = lambda x, ids: [md.take(x, ids, B), md.diagonal(x, A, B, md.Dim("v", 4))]  # noqa: E731
    assert_same(run, x, ids, layout=SPLIT["contracted"])
    assert [t.dtype for t in run(x, ids)] == [bool, bool]
    assert set(collectives(run, x, ids, layout=SPLIT["contracted"])) == {("psum", ("m",))}


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
    for z in (Z, TIED):
        for name, (ours, theirs) in ORDERED.items():
            np.testing.assert_allclose(ours(z, B).array, theirs(z.array, 1), rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rules", [layout("b -> m", mesh={"m": 4}), layout("b, a -> m", mesh={"m": 3}, uneven="pad")])
def test_complex_numbers_are_the_same_where_their_dim_is_split(rules):
    run = lambda z: {name: ours(z, B) for name, (ours, _) in ORDERED.items()}  # noqa: E731
    assert_same(run, Z, layout=rules, tolerance=2e-5)
    assert_same(lambda z: [md.max(z, B), md.min(z, B), md.sort(z, B, descending=True)], TIED, layout=rules)


@pytest.mark.parametrize("how", ["add", "max", "min", "set"])
def test_complex_numbers_are_scattered_by_several_devices(how):
    run = lambda x, u: md.scatter(x, md.iota(C) % 3, u, A, how=how)  # noqa: E731
    updates = md.rename(TIED, {A: "d", B: "c"})
    x = md.cast(data(A, updates.dim("d")), jnp.complex64)
    assert_same(run, x, updates, layout=layout("c -> m", mesh={"m": 4}))


def test_a_nan_is_above_every_complex_number():
    z = md.tensor(Z.array.at[0, 3].set(complex(0, np.nan)).at[1, 5].set(np.nan), (A, B))
    _, (result, _) = assert_same(lambda z: md.max(z, B), z, layout=SPLIT["contracted"], gradients=False)
    assert np.isnan(result.array).tolist() == [True, True, False, False]


@pytest.mark.parametrize("op", [md.argmax, md.argmin, lambda z, b: md.top_k(z, b, 2), lambda z, b: md.nth_largest(z, b, 2)])
def test_what_jax_does_not_choose_among_complex_numbers_is_refused_alike(op):
    for run in (lambda z: op(z, B), md.lower(lambda z: op(z, B), SPLIT["contracted"])):
        advice = r"takes no complex numbers, and \[a=4, b=8\] is complex64; use md.real, md.imag or md.abs of it"
        with pytest.raises(md.MeshDSLError, match=advice):
            run(Z)
