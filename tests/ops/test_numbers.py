"""Arrays of NumPy and numbers as operands: what `jax.numpy` makes of them, alone and lowered."""

import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.tensor import Tensor, is_tensor
from tests.catalogue.__main__ import Fixed
from tests.catalogue.read import families
from tests.helpers import dims, layout

A, B = dims(a=4, b=2)
SPLIT = layout("a -> m", mesh={"m": 2})
DTYPES = [
    *("bool", "int8", "uint8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
]
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.gt, operator.eq]
NUMBERS = [
    2, 100, -1, 0.5, True, 1j, np.float64(2), np.float32(0.1), np.int8(100), np.uint8(200),
    np.int64(3), np.bool_(True), np.complex64(1j), np.asarray(3.0), np.asarray(3, np.int8),
    jnp.asarray(0.5), jnp.float32(0.5), jnp.int8(100), jnp.asarray(2),
]  # fmt: skip


def values(dtype):
    """A NumPy array; of a dtype that JAX does not have (without 64 bits) too."""
    return np.asarray([[1, 100], [0, 3], [127, 2], [5, 6]]).astype(jnp.dtype(dtype))


def outcome(fn, args):
    """The array that comes of it, or the kind of error."""
    try:
        found = fn(*args)
    except (TypeError, OverflowError) as error:
        return type(error)
    return found.array if is_tensor(found) else found


def assert_alike(found, expected):
    if isinstance(expected, type):
        assert found == expected
    else:
        assert isinstance(found, jax.Array) and found.dtype == expected.dtype
        assert np.array_equal(found, expected, equal_nan=True)


STEPS = st.tuples(*map(st.sampled_from, (OPERATORS, DTYPES, [*NUMBERS, *DTYPES], [False, True])))


def operands(dtype, other, swapped):
    """What stands before and behind an operator: Tensors of NumPy arrays, and JAX's arrays."""
    array = values(dtype)
    named, plain = (md.tensor(array, (A, B)), other), (jnp.asarray(array), other)
    if isinstance(other, str):
        second = values(other)[:, 0]
        named, plain = (named[0], md.tensor(second, A)), (plain[0], jnp.asarray(second)[:, None])
    return (named[::-1], plain[::-1]) if swapped else (named, plain)


@pytest.mark.filterwarnings("ignore")  # of casts from complex
def test_operators_have_the_dtypes_and_values_of_jax_numpy():
    @settings(max_examples=settings.default.max_examples // 5)
    @given(st.lists(STEPS, min_size=8, max_size=8))
    def same(steps):
        legal, expected = [], []
        for apply, *how in steps:
            named, plain = operands(*how)
            result = outcome(apply, plain)
            assert_alike(outcome(apply, named), result)
            if not isinstance(result, type):
                legal.append((apply, named))
                expected.append(result)

        def closed_over(_):
            return [apply(*pair) for apply, pair in legal]

        def given_to(pairs):
            return [apply(*pair) for (apply, _), pair in zip(legal, pairs, strict=True)]

        tensors = [pair for _, pair in legal]
        for fn in (closed_over, given_to) if legal else ():
            for found, result in zip(md.lower(fn, SPLIT, dims="a")(tensors), expected, strict=True):
                assert_alike(found.array, result)

    same()


def on_the_host(tree):
    """The same Tensors of NumPy arrays, their floats in a dtype that JAX does not have."""

    def move(t):
        if not is_tensor(t) or jax.dtypes.issubdtype(t.dtype, jax.dtypes.prng_key):
            return t
        array = np.asarray(t)
        wide = array.astype(np.float64) if array.dtype == np.float32 else array
        return Tensor(wide, t.dims, t.role)

    return jax.tree.map(move, tree, is_leaf=is_tensor)


@pytest.mark.parametrize("family", families())
def test_every_op_takes_arrays_of_numpy_as_those_of_jax(family):
    """Traced without arguments, so that the arrays are what they are."""
    for entry in families()[family]:
        case = entry.case(Fixed())
        of_jax = jax.eval_shape(partial(case.fn, *case.args))
        of_numpy = jax.eval_shape(partial(case.fn, *on_the_host(case.args)))
        assert kinds(of_numpy) == kinds(of_jax), entry.name


def kinds(tree):
    return [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def test_an_array_stays_on_the_host_until_an_op_takes_it():
    array = np.ones((4, 2), np.float32)
    assert md.tensor(array, (A, B)).array is array
    assert md.parameter(array, (A, B)).array is array
    assert isinstance(md.tensor(np.ones((4, 2)), (A, B)).array, np.ndarray)


def test_the_dtype_is_that_in_which_ops_compute():
    for dtype in DTYPES:
        t, expected = md.tensor(values(dtype), (A, B)), jnp.asarray(values(dtype)).dtype
        made, lowered = Tensor(values(dtype), (A, B)), md.lower(lambda x: x, SPLIT)(t)
        assert {x.dtype for x in (t, made, t.array, lowered)} == {expected}


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_computed_of_a_constant_alone_is_as_jax_has_it(alone):
    third = lambda *_: md.tensor(np.arange(4, dtype=np.int32), A) / 3
    x = md.tensor(np.ones(4, np.float32), A)
    found = third() if alone else md.lower(lambda x: third() + x * 0, SPLIT)(x)
    assert found.dtype == jnp.float32
    assert np.array_equal(found.array, jnp.arange(4, dtype=jnp.int32) / 3)
