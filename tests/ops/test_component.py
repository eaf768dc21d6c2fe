"""Component-wise functions compute what jax.numpy and jax.nn do, under any layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.functions import FUNCTIONS, LAX, NN, NUMPY
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    distance,
    integers,
    layout,
)

A, B, C = dims(a=4, b=8, c=2)
SPLIT = layout("a -> m", "b -> n", mesh={"m": 2, "n": 4})
X, Y = data(A, B, seed=1, low=0.1, high=0.9), data(B, seed=2, low=0.1, high=0.9)
I, J = integers(A, B, below=9, seed=3), integers(B, below=9, seed=4)

TWO = set(
    "add arctan2 divide equal float_power floor_divide fmax fmin fmod greater "
    "greater_equal heaviside hypot less less_equal "
    "logaddexp logaddexp2 maximum minimum mod multiply not_equal power remainder subtract".split()
)
BITS = set(
    (
        "bitwise_and bitwise_not bitwise_or bitwise_xor logical_and logical_not logical_or "
        "logical_xor"
    ).split()
)
OPERANDS = {name: (X, Y) if name in TWO else (X,) for name in FUNCTIONS}
OPERANDS |= {name: (I,) if name.endswith("not") else (I, J) for name in BITS}
OPERANDS |= {
    "arccosh": (md.tensor(X.array + 1, X.dims),),
    "where": (X > 0.5, X, Y),
    "clip": (X, 0.3, 0.6),
    "imag": (X,),
}


def theirs(name):
    return getattr(jnp if name in NUMPY else jax.nn if name in NN else jax.lax, name)


@pytest.fixture(scope="module")
def lowered():
    """Every function of the table, in one program."""
    names, operands = list(OPERANDS), list(OPERANDS.values())
    run = md.lower(
        lambda operands: [FUNCTIONS[n](*x) for n, x in zip(names, operands, strict=True)], SPLIT
    )
    return dict(zip(names, run(operands), strict=True))


@pytest.mark.parametrize("name", OPERANDS)
def test_function_is_that_of_jax_under_a_layout(name, lowered):
    arrays = [x.array if isinstance(x, md.Tensor) else x for x in OPERANDS[name]]
    expected = theirs(name)(*arrays)
    found = lowered[name]
    assert found.dims == (A, B) and found.split == {A: ("m",), B: ("n",)}
    assert found.dtype == expected.dtype
    assert distance(found.array, expected) < 1e-6
    assert (
        FUNCTIONS[name].__name__ == name
        and getattr(md, name) is FUNCTIONS[name]
        and name in md.__all__
    )


def test_table_names_each_function_once():
    names = [*NUMPY, *NN, *LAX]
    assert len(set(names)) == len(names) == len(FUNCTIONS)


def test_exact_gelu_is_that_of_jax():
    assert (
        distance(md.gelu(X, approximate=False).array, jax.nn.gelu(X.array, approximate=False))
        < 1e-6
    )


def gradients_of_all(x, y):
    smooth = [
        n
        for n in FUNCTIONS
        if n not in BITS | {"arccosh", "where", "clip", "imag", "heaviside", "float_power"}
    ]
    made = [FUNCTIONS[n](*([x, y] if n in TWO else [x])) for n in smooth] + [
        md.gelu(x, approximate=False)
    ]
    return [t for t in made if jnp.issubdtype(t.dtype, jnp.floating)]


def test_gradients_of_all_functions_are_the_same_lowered():
    assert_same(gradients_of_all, X, Y, layout=SPLIT)


OPERATORS = {
    "x + y": lambda x, y: x + y,
    "x - 2": lambda x, y: x - 2,
    "2 - x": lambda x, y: 2 - x,
    "x * y": lambda x, y: x * y,
    "3 * x": lambda x, y: 3 * x,
    "x / y": lambda x, y: x / y,
    "x / 2": lambda x, y: x / 2,
    "1 / x": lambda x, y: 1 / x,
    "x // 0.2": lambda x, y: x // 0.2,
    "x % 0.3": lambda x, y: x % 0.3,
    "x ** 2": lambda x, y: x**2,
    "2 ** x": lambda x, y: 2**x,
    "-x": lambda x, y: -x,
    "abs": lambda x, y: abs(x - y),
    "x < y": lambda x, y: x < y,
    "x <= 0.5": lambda x, y: x <= 0.5,
    "x > y": lambda x, y: x > y,
    "0.5 >= x": lambda x, y: 0.5 >= x,
    "x == y": lambda x, y: x == y,
    "x != y": lambda x, y: x != y,
}
ON_INTEGERS = {
    "i & j": lambda i, j: i & j,
    "i | 4": lambda i, j: i | 4,
    "5 ^ i": lambda i, j: 5 ^ i,
    "~i": lambda i, j: ~i,
    "i / 2": lambda i, j: i / 2,
    "i // j": lambda i, j: i // (j + 1),
    "i % 3": lambda i, j: i % 3,
}


@pytest.mark.parametrize("text", [*OPERATORS, *ON_INTEGERS])
def test_operators_are_those_of_arrays(text):
    fn, x, y = (OPERATORS[text], X, Y) if text in OPERATORS else (ON_INTEGERS[text], I, J)
    expected = fn(x.array, y.array)
    found = fn(x, y)
    assert found.dtype == expected.dtype and distance(found.array, expected) == 0


@pytest.mark.parametrize(
    "scalar",
    [
        2,
        2.0,
        np.int32(2),
        np.float32(2),
        np.float64(2),
        np.asarray(2.0),
        np.array(2.0, np.float32),
        jnp.float32(2),
        jnp.asarray(2),
    ],
    ids=lambda s: f"{type(s).__module__} {getattr(s, 'dtype', type(s).__name__)}",
)
def test_scalars_of_any_kind_work_on_either_side(scalar):
    for found in (scalar * X, X * scalar):
        assert isinstance(found, md.Tensor) and distance(found.array, X.array * 2) == 0
    assert np.all((scalar > X).array) and not np.any((X > scalar).array)


def test_operands_broadcast_by_name_whatever_their_order():
    rows, flipped = data(A, seed=5), data(B, A, seed=6)
    expected = X.array + rows.array[:, None] * flipped.array.T
    assert_equal((X + rows * flipped), md.tensor(expected, (A, B)))
    assert (
        (rows + X).dims == (A, B) and (X * flipped).dims == (A, B) and (flipped * X).dims == (B, A)
    )
    assert_same(lambda x, r, f: x + r * f, X, rows, flipped, layout=SPLIT)


def test_map_takes_any_component_wise_function():
    fn = lambda x, y, *, scale: jnp.sin(x) * y * scale
    assert_same(lambda x, y: md.map(fn, x, y, scale=3.0), X, Y, layout=SPLIT)
    assert_same(lambda x: md.map(lambda x, n: x + n, x, 4), X, layout=SPLIT)


def test_cast_gives_the_dtype():
    dtypes = (jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_)
    assert [md.cast(X, dtype).dtype for dtype in dtypes] == [*dtypes]
    there_and_back = lambda x: [md.cast(md.cast(x, dtype), jnp.float32) for dtype in dtypes]
    assert_same(there_and_back, X, layout=SPLIT)


def test_stop_gradient_stops_it():
    assert_same(
        lambda x, y: md.stop_gradient(x) * y + md.stop_gradient(md.sum(x)) * x, X, Y, layout=SPLIT
    )


PENDING = {
    "sum of two": lambda p, q: p + q,
    "difference": lambda p, q: p - q,
    "negative": lambda p, q: -p,
    "scaled": lambda p, q: p * 2.0 / 3,
    "stop_gradient": lambda p, q: md.stop_gradient(p),
    "transpose": lambda p, q: md.transpose(p, p.dims[::-1]),
    "rename": lambda p, q: md.rename(p, "b", "d"),
    "reshape": lambda p, q: md.reshape(p, "b c -> (c b)"),
    "slice": lambda p, q: md.slice(p, B, 2, 4),
    "concat": lambda p, q: md.concat([p, q], "b"),
    "broadcast": lambda p, q: md.broadcast(p, (A, B, C)),
    "sum": lambda p, q: md.sum(p, B),
    "mean": lambda p, q: md.mean(p, B),
    "einsum of one": lambda p, q: md.einsum(p, out=(C,)),
    "materialize": lambda p, q: md.materialize(p),
}
ROUNDED = {"cast": lambda p, q: md.cast(p, jnp.float16)}  # keeps a sum pending too
SETTLED = {
    "product": lambda p, q: p * q,
    "tanh": lambda p, q: md.tanh(p),
    "with a settled one": lambda p, q: p + md.tanh(q),
    "with a number": lambda p, q: p + 1.0,
    "integer": lambda p, q: md.cast(p, jnp.int32),
    "max": lambda p, q: md.max(p, B),
    "einsum": lambda p, q: md.einsum(p, q, out=(C,)),
    "softmax": lambda p, q: md.softmax(p, B),
}


@pytest.mark.parametrize("ops", [PENDING, SETTLED, ROUNDED], ids=["pending", "settled", "rounded"])
def test_linear_ops_keep_sums_pending_and_others_take_them(ops):
    seen = []

    def run(x):
        results = {name: fn(md.sum(x, A), md.sum(x * x, A)) for name, fn in ops.items()}
        seen.append({name: t.pending for name, t in results.items()})
        return results

    rules = layout("a -> m", mesh={"m": 4})
    assert_same(run, data(A, B, C), layout=rules, tolerance=1e-3 if ops is ROUNDED else 1e-5)
    assert seen[-1] == dict.fromkeys(ops, () if ops is SETTLED else ("m",))


def test_sums_pending_over_different_axes_are_taken_before_they_meet():
    rules = layout("a -> m", "b -> n", mesh={"m": 2, "n": 4})
    run = lambda x: md.sum(x, (A, B)) + md.sum(md.sum(x, A), B)
    assert_same(run, X, layout=rules)
    assert collectives(run, X, layout=rules) == {("psum", ("m", "n")): 1}
