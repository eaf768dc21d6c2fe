"""What Python, NumPy and JAX get of a Tensor: its value, or an error that says what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.tensor import Tensor
from tests.helpers import data, dims, layout, weight

A, B = dims(a=2, b=4)
X, HALF, SEVEN = data(A, B), md.tensor(2.5, ()), md.tensor(np.int32(7), ())
SPLIT = layout("a -> data", "b? -> model", mesh={"data": 2, "model": 4})
NO_DIMS = [A, B]


def lowered(fn, *args):
    return md.lower(fn, SPLIT, dims=NO_DIMS)(*args)


def test_a_tensor_without_dims_is_a_number():
    assert (float(HALF), int(HALF), complex(HALF), bool(HALF)) == (2.5, 2, 2.5 + 0j, True)
    assert (HALF.item(), SEVEN.item(), f"{HALF:.3f}", f"{SEVEN:>4}") == (2.5, 7, "2.500", "   7")
    assert md.tensor([[3.0]], dims(p=1, q=1)).item() == 3.0
    assert float(lowered(md.sum, md.tensor(np.ones((2, 4)), (A, B)))) == 8.0


def test_the_shape_is_of_the_whole_inside_of_a_lowering_too():
    seen = []
    lowered(lambda x: seen.append((x.shape, x.ndim, x.size, x.array.shape)) or x, X)
    assert seen == [((2, 4), 2, 8, (1, 1))]
    assert (X.shape, X.ndim, HALF.shape, HALF.ndim) == ((2, 4), 2, (), 0)


def test_numpy_gets_the_array():
    made = lowered(lambda x: x * 2.0, X)
    for t in (X, made, md.tensor(np.ones((2, 4), np.int8), (A, B)), HALF):
        assert np.asarray(t).dtype == t.dtype and np.array_equal(np.asarray(t), t.array)
    assert np.asarray(X, np.int32).dtype == np.int32 and np.array([HALF, HALF]).tolist() == [
        2.5,
        2.5,
    ]
    copied = np.array(X)
    copied[:] = 0
    assert np.asarray(X).any()


VALUES = {
    "float": float,
    "int": int,
    "complex": complex,
    "item": Tensor.item,
    "np.asarray": np.asarray,
    "format": "{:.2f}".format,
}


@pytest.mark.parametrize("name", VALUES)
def test_there_are_no_values_while_something_traces(name):
    def take(x):
        VALUES[name](md.sum(x))
        return x

    with pytest.raises(
        md.MeshDSLError, match=rf"^{name}: inside of a lowering a Tensor \[\] has no value yet"
    ):
        lowered(take, X)
    with pytest.raises(
        md.MeshDSLError, match=rf"^{name}: a Tensor \[\] has no value while JAX traces"
    ):
        jax.jit(take)(X)
    with pytest.raises(md.MeshDSLError, match=rf"^{name}: .* it holds a ShapeDtypeStruct"):
        VALUES[name](jax.eval_shape(lambda: HALF))


def test_a_sum_that_is_pending_has_no_value():
    with pytest.raises(md.MeshDSLError, match="np.asarray: inside of a lowering"):
        lowered(lambda x: np.asarray(md.sum(x, A)), X)


def taken_from(x):
    x[0] = 1.0


REFUSED = {
    "many as one number": (
        lambda: float(X),
        ["float", "[a=2, b=4] is not one number", "np.asarray(t)"],
    ),
    "many in a text": (lambda: f"{X:.3f}", ["format", "[a=2, b=4] is not one number"]),
    "an index": (
        lambda: X[0],
        ["t[...]", "names, no order", 't["a", 3], t["a", 0:4] or t["a", ids]'],
    ),
    "an index of a number": (lambda: HALF[0], ["t[...]", "Tensor []"]),
    "a loop": (lambda: [row for row in X], ["a loop over t", 'md.unstack(t, "a")']),  # noqa: C416
    "a number of rows": (lambda: len(X), ["len(t)", 't.dim("a").size']),
    "a number of a dim that is not there": (lambda: X["c", 0], ["t[...]", "no dim `c`"]),
    "putting": (lambda: taken_from(X), ["t[...] = x", "md.where and md.scatter"]),
    "a product of matrices": (lambda: X @ X, ["t @ u", "md.einsum(t, u, out=(...))"]),
    "a product from the right": (lambda: np.ones((4, 2)) @ X, ["t @ u", "md.einsum"]),
    "in a list": (lambda: X in [weight(A, B)], ["no truth value", "any(t is u for u in list)"]),
    "a word": (lambda: X == "x", ["equal", "Tensors and numbers, not str"]),
    "a list": (lambda: X == [1, 2], ["equal", "not list", "md.tensor"]),
    "words": (lambda: md.tensor(np.array(["x", "y"]), A), ["tensor", "[a=2]", "no numbers"]),
    "a gradient by JAX": (
        lambda: jax.grad(lambda x: md.sum(x))(X),
        ["jax.grad returns loss.array", "md.value_and_grad"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_goes_by_position_says_what_to_write(name):
    provoke, parts = REFUSED[name]
    with pytest.raises(md.MeshDSLError) as raised:
        provoke()
    assert not [part for part in parts if part not in str(raised.value)], str(raised.value)


OF_JAX = [
    jnp.sin,
    jnp.sum,
    jnp.asarray,
    jnp.add,
    jnp.dot,
    jnp.where,
    jax.nn.relu,
    jax.nn.softmax,
    jnp.concatenate,
]


@pytest.mark.parametrize("fn", OF_JAX, ids=lambda fn: fn.__name__)
def test_functions_of_jax_take_no_tensor(fn):
    args = {
        jnp.add: (X, 1),
        jnp.dot: (X, X),
        jnp.where: (X > 0, X, X),
        jnp.concatenate: ([X, X],),
    }.get(fn, (X,))
    for run in (lambda: fn(*args), lambda: jax.jit(lambda: fn(*args))()):
        with pytest.raises(
            md.MeshDSLError, match=r"a Tensor \[a=2, b=4\]; write md.f\(t\) for jnp.f\(t\)"
        ):
            run()


def test_gradients_by_jax_are_of_functions_that_return_an_array():
    found = jax.grad(lambda model: md.sum(model["w"] * X).array)({"w": weight(A, B)})
    assert np.array_equal(found["w"].array, X.array) and found["w"].dims == (A, B)


def test_nothing_is_equal_to_none():
    found = (X == None, X != None, None == X, X in [None], None in [X])
    assert found == (False, True, False, False, False)
    assert lowered(lambda x: x if x == None else x * 2.0, X).dims == (A, B)


LIES = {
    "an operator": lambda t: t + 1,
    "the other operand": lambda t: X * t,
    "a scan": lambda t: md.scan(lambda c, x: (c, x), (), t, dim=A),
    "over": lambda t: md.over(A, lambda x: x)(t),
    "a gradient": lambda t: md.value_and_grad(md.sum)(t),
    "NumPy": np.asarray,
    "show": md.show,
    "an argument": lambda t: lowered(lambda x: x, t),
    "inside": lambda t: lowered(lambda x: md.sum(jax.tree.map(lambda v: v[0], x), "a"), X),
    "a result": lambda t: lowered(lambda x: jax.tree.map(lambda v: v[0], x), X),
    "jax.vmap": lambda t: jax.vmap(md.sum)(X),
}


@pytest.mark.parametrize("name", LIES)
def test_an_array_that_lost_a_dim_is_found_where_it_is_used(name):
    with pytest.raises(
        md.MeshDSLError,
        match=r"\[a=2, b=4\] needs an array of shape .* and holds an array of shape .*md.over",
    ):
        LIES[name](jax.tree.map(lambda v: v[0], X))


def test_a_number_for_an_array_is_found_too():
    with pytest.raises(
        md.MeshDSLError, match=r".* needs an array of shape \(2, 4\) and holds a float\."
    ):
        md.sum(jax.tree.map(lambda v: 1.5, X))


def test_repr_says_that_dims_and_array_differ():
    assert (
        repr(jax.tree.map(lambda v: v[0], X))
        == "Tensor[a, b] float32 (2, 4), but its array has shape (4,)"
    )


def test_a_lowered_function_and_its_program_say_what_they_are():
    step = md.lower(md.relu, SPLIT, dims=NO_DIMS)
    assert repr(step) == "<`relu`, lowered by layout for the mesh data=2, model=4>"
    assert (
        repr(step.program(X))
        == "<program of 1 ops with 0 moves, by layout for the mesh data=2, model=4; "
        ".table() lists them>"
    )
