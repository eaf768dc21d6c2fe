"""Parameters to begin with: the numbers of `jax.random`, however they are split from birth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.tensor import Parameter
from tests.helpers import dims, layout

KEY = jax.random.key(3)
IN, OUT, COPIES = dims(d_in=512, d_out=64, copies=8)
DRAWS = {"normal": md.normal, "truncated_normal": md.truncated_normal, "uniform": md.uniform}


@pytest.mark.parametrize("ins", ["d_in", IN, ("d_in",), [IN]], ids=str)
def test_a_draw_is_a_parameter_that_says_what_it_contracts(ins):
    w = md.normal(KEY, (IN, OUT), ins=ins)
    assert w.dims == (IN, OUT) and w.role == Parameter(("d_in",), ("d_out",))
    assert md.normal(KEY, OUT).role == md.zeros(OUT).role == Parameter()
    assert md.zeros((IN, OUT), ins=ins).role == w.role


@pytest.mark.parametrize("name", DRAWS)
def test_the_standard_deviation_is_that_which_keeps_the_size_of_what_is_multiplied(name):
    draw = DRAWS[name]
    for ins, std, expected in (("d_in", None, 512**-0.5), ((), None, 1), ("d_in", 0.02, 0.02)):
        w = np.asarray(draw(KEY, (IN, OUT), ins=ins, std=std))
        np.testing.assert_allclose([w.mean() / expected, w.std() / expected], [0, 1], atol=0.02)
    assert draw(KEY, (IN, COPIES, OUT), ins=("copies", "d_in")).array.std() < 1.1 * 4096**-0.5


def test_draws_are_those_of_jax():
    shape = (IN.size, OUT.size)
    std = IN.size**-0.5
    expected = jax.random.normal(KEY, shape) * std
    assert np.array_equal(md.normal(KEY, (IN, OUT), ins=IN).array, expected)
    assert np.array_equal(md.normal(KEY, OUT, std=2).array, jax.random.normal(KEY, (64,)) * 2)
    words = jax.random.key_data(KEY)
    assert np.array_equal(md.normal(words, OUT).array, jax.random.normal(KEY, (64,)))


def test_no_number_is_far_from_zero_but_for_normal_ones():
    limits = {"normal": np.inf, "truncated_normal": 2.2737, "uniform": 3**0.5 + 1e-6}
    for name, limit in limits.items():
        largest = np.abs(np.asarray(DRAWS[name](KEY, (IN, OUT)))).max()
        assert largest <= limit and (largest > 3) == (name == "normal")


@pytest.mark.parametrize("name", DRAWS)
def test_another_dtype_has_the_same_numbers_rounded(name):
    wide, narrow = (DRAWS[name](KEY, OUT, dtype=d) for d in (jnp.float32, jnp.bfloat16))
    assert narrow.dtype == jnp.bfloat16
    assert np.array_equal(narrow.array, wide.array.astype(jnp.bfloat16))


def test_constants():
    assert not np.asarray(md.zeros((IN, OUT))).any()
    assert (np.asarray(md.ones(OUT)) == 1).all() and md.ones(OUT).dtype == jnp.float32
    half = md.full((OUT,), 0.5, dtype=jnp.bfloat16)
    assert (np.asarray(half) == 0.5).all() and half.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "name, axes",
    [
        *(("normal", axes) for axes in [("p", None), (None, "p"), (("p", "q"), None), ("q", "p")]),
        *(("truncated_normal", ("q", "p")), ("uniform", ("q", "p"))),
    ],
    ids=str,
)
def test_parameters_born_split_are_those_of_one_device(name, axes):
    mesh = md.make_mesh({"p": 2, "q": 4})
    init = lambda key: DRAWS[name](key, (IN, OUT), ins=IN)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    born = jax.jit(init, out_shardings=spec)(KEY)
    assert born.array.sharding.is_equivalent_to(spec, 2)
    np.testing.assert_array_max_ulp(born.array, jax.jit(init)(KEY).array, 1)


def test_a_parameter_follows_the_lists_for_parameters():
    rules = layout("d_out? -> p", mesh={"p": 2, "q": 4}, parameters=["d_in -> q"])
    made = md.shardings(md.ones((IN, OUT)), rules, md.make_mesh(rules))
    assert made.array.spec == jax.sharding.PartitionSpec("q", "p")


def test_copies_of_a_parameter_are_drawn_with_keys_of_their_own():
    keys = jax.random.split(KEY, 3)
    stacked = jax.vmap(lambda key: md.normal(key, OUT).array)(keys)
    for key, row in zip(keys, stacked, strict=True):
        assert np.array_equal(row, md.normal(key, OUT).array)


def test_a_parameter_without_elements_is_drawn_too():
    empty = md.Dim("empty", 0)
    assert md.normal(KEY, (empty, OUT), ins=empty).shape == (0, 64)
