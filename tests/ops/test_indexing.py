"""Indexing by name gives what NumPy gives by position, also lowered, and moves what it must."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, integers, layout
from tests.ops.along import assert_as_numpy

ON_ONE_DEVICE, LOWERED = (2000, 400) if settings.default.max_examples > 100 else (15, 5)
MESHES = [{"p": 8}, {"p": 3}, {"p": 2, "q": 4}, {"p": 3, "q": 2}, {"p": 1, "q": 4}]


def elements(x, a, b, c):
    """Of dims with at least 5, 11 and 3 elements."""
    ids = md.tensor([4, 0], md.Dim("v", 2))
    return {
        "a number": x["b", 3],
        "from the end": x[b, -1],
        "numbers": x["b", 3, "c", 0, a, 1],
        "a NumPy number": x["b", np.int8(3)],
        "a slice": x["b", 3:9],
        "everything": x["b", :],
        "nothing": x["b", 5:5],
        "backwards": x["b", ::-1],
        "backwards in steps": x["b", 9:1:-3],
        "in steps": x["b", 1::4],
        "beyond the end": x["b", 9:99],
        "slices": x["c", 1:, "b", :-2],
        "both": x["b", 2, "a", ::2],
        "ids": x["b", ids, "c", 1],
        "one id": x["b", md.tensor(4, ()), "a", 1:3],
        "an array without dims": x["b", jnp.int32(4)],
    }


def of_numpy(x, a, b, c):
    return {
        "a number": x[:, 3],
        "from the end": x[:, -1],
        "numbers": x[1, 3, 0],
        "a NumPy number": x[:, 3],
        "a slice": x[:, 3:9],
        "everything": x,
        "nothing": x[:, 5:5],
        "backwards": x[:, ::-1],
        "backwards in steps": x[:, 9:1:-3],
        "in steps": x[:, 1::4],
        "beyond the end": x[:, 9:99],
        "slices": x[:, :-2, 1:],
        "both": x[::2, 2],
        "ids": x[:, [4, 0], 1],
        "one id": x[1:3, 4],
        "an array without dims": x[:, 4],
    }


def test_elements_are_those_of_numpy():
    assert_as_numpy(elements, of_numpy)


numbers = st.one_of(st.none(), st.integers(-15, 15))


@st.composite
def indices(draw, dim):
    """A whole number or a slice along a dim, or None for no index."""
    kinds = ["slice", "slice", "none"] + ["number"] * bool(dim.size)
    match draw(st.sampled_from(kinds)):
        case "number":
            return draw(st.integers(-dim.size, dim.size - 1))
        case "slice":
            return slice(draw(numbers), draw(numbers), draw(numbers.filter(lambda n: n != 0)))
    return None


@st.composite
def indexed(draw, low=0):
    """Dims, an index by name and the same index by position."""
    sizes = {n: draw(st.integers(low, 13)) for n in "abc"}
    of = dims(**sizes)
    chosen = {d: draw(indices(d)) for d in draw(st.permutations(of))}
    by_name = [part for d, at in chosen.items() if at is not None for part in (d.name, at)]
    by_position = tuple(slice(None) if chosen[d] is None else chosen[d] for d in of)
    return of, tuple(by_name), by_position


@settings(max_examples=ON_ONE_DEVICE)
@given(indexed())
def test_any_index_is_that_of_numpy(drawn):
    of, by_name, by_position = drawn
    x = data(*of)
    found = x[by_name] if by_name else x
    expected = np.asarray(x.array)[by_position]
    kept = [d.name for d, at in zip(of, by_position, strict=True) if isinstance(at, slice)]
    assert [d.name for d in found.dims] == kept and found.shape == expected.shape
    np.testing.assert_array_equal(found.array, expected)


@settings(max_examples=LOWERED)
@given(indexed(), st.data())
def test_any_index_is_the_same_under_every_layout(drawn, more):
    of, by_name, _ = drawn
    mesh = more.draw(st.sampled_from(MESHES))
    pairs = st.tuples(st.sampled_from("abc"), st.sampled_from(sorted(mesh)))
    rules = more.draw(st.lists(pairs, min_size=1, max_size=4, unique=True))
    split = md.Layout([f"{dim}? -> {axis}" for dim, axis in rules], mesh=mesh, uneven="pad")
    dtype = more.draw(st.sampled_from([jnp.float32, jnp.float32, jnp.int8, jnp.bool_]))
    event(f"{len(by_name) // 2} indices")
    x = md.cast(data(*of, low=-9, high=9), dtype)
    pending = more.draw(st.booleans())
    rest = [d.name for d in of if d.name not in by_name[::2]]

    def run(x):
        x = md.sum(x, rest[0]) if pending and rest else x
        return x[by_name] if by_name else x

    assert_same(run, x, layout=split, gradients=dtype == jnp.float32, floor=1.0)


A, B = dims(a=16, b=32)
X = data(A, B)


def test_an_element_of_a_split_dim_is_one_sum_of_one_element():
    rules = layout("b -> m", mesh={"m": 4})
    assert collectives(lambda x: x["b", 9] * 2, X, layout=rules) == {("psum", ("m",)): 1}
    lowered = md.lower(lambda x: x["b", 9] * 2, rules)
    assert [c.bytes for c in lowered.program(X).collectives] == [A.size * 4]
    assert collectives(lambda x: x["a", 9] * 2, X, layout=rules) == {}


def test_a_slice_of_a_split_dim_moves_the_elements_that_devices_lack():
    rules = layout("b -> m", mesh={"m": 4}, uneven="pad")
    found = md.lower(lambda x: x["b", 4:28], rules).program(X).collectives
    assert {c.operation for c in found} == {"ppermute"}
    assert sum(c.bytes for c in found) == 2 * A.size * 4


def test_random_keys_can_be_indexed_along_a_split_dim():
    keys = md.tensor(jax.random.split(jax.random.key(0), 8), md.Dim("layers", 8))
    draw = lambda keys: md.random.uniform(keys["layers", 3], A)
    rules = layout("layers -> m", mesh={"m": 4})
    np.testing.assert_array_equal(md.lower(draw, rules)(keys).array, draw(keys).array)


def test_an_index_may_be_computed_in_a_loop():
    def run(x):
        turn = lambda total, i: (total + x["b", i], total["a", i])
        return md.scan(turn, md.sum(x, "b"), md.iota(md.Dim("i", 8)), dim="i")

    assert_same(run, X, layout=layout("b -> m", mesh={"m": 4}))


def test_pairs_are_taken_from_the_left():
    ids = integers(A, below=B.size)
    np.testing.assert_array_equal(X["b", ids, "a", 3].array, X["b", ids]["a", 3].array)
    assert X["a", 3, "b", ids].dims == (A,)
