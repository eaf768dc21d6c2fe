"""Component-wise functions compute what jax.numpy and jax.nn do, under any layout."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from meshdsl.ops.functions import FUNCTIONS, KIND, NN, NUMPY
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

BITS = {f"{of}_{name}" for of in ("bitwise", "logical") for name in ("and", "not", "or", "xor")}
TWO = {n for n in FUNCTIONS if KIND.get(n) == "Binary"} - BITS
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
    """What every function of the table gives, and that of jax: a program each."""
    names, operands = list(OPERANDS), list(OPERANDS.values())
    run = md.lower(
        lambda operands: [FUNCTIONS[n](*x) for n, x in zip(names, operands, strict=True)], SPLIT
    )
    arrays = [[x.array if isinstance(x, md.Tensor) else x for x in each] for each in operands]
    expected = jax.jit(lambda: [theirs(n)(*x) for n, x in zip(names, arrays, strict=True)])()
    return dict(zip(names, zip(run(operands), expected, strict=True), strict=True))


@pytest.mark.parametrize("name", OPERANDS)
def test_function_is_that_of_jax_under_a_layout(name, lowered):
    found, expected = lowered[name]
    assert found.dims == (A, B) and found.split == {A: ("m",), B: ("n",)}
    assert found.dtype == expected.dtype
    assert distance(found.array, expected) < 1e-6
    assert (
        FUNCTIONS[name].__name__ == name
        and getattr(md, name) is FUNCTIONS[name]
        and name in md.__all__
    )


def test_exact_gelu_is_that_of_jax():
    found, expected = (fn(x, approximate=False) for fn, x in ((md.gelu, X), (jax.nn.gelu, X.array)))
    assert distance(found.array, expected) < 1e-6


def gradients_of_all(x, y):
    others = BITS | {"arccosh", "where", "clip", "imag", "heaviside", "float_power"}
    smooth = [n for n in FUNCTIONS if n not in others]
    made = [FUNCTIONS[n](*([x, y] if n in TWO else [x])) for n in smooth]
    made.append(md.gelu(x, approximate=False))
    return [t for t in made if jnp.issubdtype(t.dtype, jnp.floating)]


def test_gradients_of_all_functions_are_the_same_lowered():
    assert_same(gradients_of_all, X, Y, layout=SPLIT)


OPERATORS = [
    *("x + y", "x - 2", "2 - x", "x * y", "3 * x", "x / y", "x / 2", "1 / x", "x // 0.2"),
    *("x % 0.3", "x ** 2", "2 ** x", "-x", "abs(x - y)", "x < y", "x <= 0.5", "x > y"),
    *("0.5 >= x", "x == y", "x != y", "i & j", "i | 4", "5 ^ i", "~i", "i / 2"),
    *("i // (j + 1)", "i % 3"),
]


@pytest.mark.parametrize("text", OPERATORS)
def test_operators_are_those_of_arrays(text):
    named = {"x": X, "y": Y, "i": I, "j": J}
    found = eval(text, named.copy())
    expected = eval(text, {name: t.array for name, t in named.items()})
    assert found.dtype == expected.dtype and distance(found.array, expected) == 0


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
    "pad": lambda p, q: md.pad(p, B, 1, 2),
    "split": lambda p, q: md.split(p, B, 2)[1],
    "stack": lambda p, q: md.stack([p, q], "v"),
    "unstack": lambda p, q: md.unstack(p, B)[3],
    "roll": lambda p, q: md.roll(p, B, 3),
    "shift": lambda p, q: md.shift(p, B, 3),
    "flip": lambda p, q: md.flip(p, B),
    "an element": lambda p, q: p["b", 3],
    "elements": lambda p, q: p["b", ::-2],
    "a triangle": lambda p, q: md.tril(p, B, C),
    "a diagonal": lambda p, q: md.diagonal(p, B, C, "v"),
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
    "pad of ones": lambda p, q: md.pad(p, B, 1, 1, value=1),
    "shift of ones": lambda p, q: md.shift(p, B, 3, fill=1),
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


@pytest.mark.parametrize("platform, times", [("tpu", 2), ("gpu", 0)])
def test_what_is_materialized_lies_on_tpus_in_the_order_of_its_dims_in_both_passes(platform, times):
    rules, mesh = layout("a -> m", mesh={"m": 2}), abstract_mesh({"m": 2}, platform)
    run = md.value_and_grad(lambda x: md.sum(md.square(md.materialize(md.tanh(x)))))
    program = md.lower(run, rules, mesh=mesh).program(data(A, B))
    assert str(program.jaxpr).count(" layout_constraint[") == times
