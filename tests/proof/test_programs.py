"""Programs of JAX itself, right and wrong ones, of a few lines each."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from meshdsl.mesh import abstract_mesh
from meshdsl.proof import prove

X, W = jnp.ones((8, 12)), jnp.ones((12, 6))
IDS = jnp.zeros((8,), jnp.int32)


def mapped(fn, specs, out, sizes={"a": 2, "b": 2}):  # noqa: B006
    mesh = abstract_mesh(sizes)
    return jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)


def proof(one, many, *args):
    expected = jax.make_jaxpr(one)(*args)
    names = [f"result {i}" for i in range(len(expected.out_avals))]
    return prove(expected, jax.make_jaxpr(many)(*args), names)


def product(x, w):
    return x @ w


def contracted(x, w):
    return lax.psum(x @ w, "a")


SPLIT = P(None, "a"), P("a", None)
RIGHT = {
    "rows": (product, mapped(product, (P("a"), P()), P("a"))),
    "a contracted dim": (product, mapped(contracted, SPLIT, P())),
    "over two axes": (
        product,
        mapped(lambda x, w: lax.psum(x @ w, ("a", "b")), (P(None, ("a", "b")), P(("a", "b"))), P()),
    ),
    "scattered": (
        product,
        mapped(
            lambda x, w: lax.psum_scatter(x @ w, "a", scatter_dimension=0, tiled=True),
            SPLIT,
            P("a"),
        ),
    ),
    "gathered": (
        product,
        mapped(
            lambda x, w: x @ lax.all_gather(w, "a", axis=1, tiled=True),
            (P("a"), P(None, "a")),
            P("a"),
        ),
    ),
    "exchanged": (
        product,
        mapped(
            lambda x, w: lax.all_to_all(x, "a", 0, 1, tiled=True) @ w, (P(None, "a"), P()), P("a")
        ),
    ),
}

WRONG = {
    "no sum": mapped(product, SPLIT, P()),
    "two sums": mapped(lambda x, w: lax.psum(contracted(x, w), "a"), SPLIT, P()),
    "another axis": mapped(lambda x, w: lax.psum(x @ w, "b"), SPLIT, P()),
    "a sum of squares": mapped(lambda x, w: lax.psum(jnp.square(x @ w), "a"), SPLIT, P()),
    "the axes in another order": mapped(
        lambda x, w: lax.psum(x @ w, ("a", "b")), (P(None, ("a", "b")), P(("b", "a"))), P()
    ),
    "the next device's rows": mapped(
        lambda x, w: lax.ppermute(x, "a", [(0, 1), (1, 0)]) @ w, (P("a"), P()), P("a")
    ),
    "parts in another place": mapped(product, (P("a"), P()), P("b")),
}

# Of each row by itself, along its elements.
ALONG = {
    "largest ones": lambda x, w: lax.top_k(x, 3)[0],
    "places of largest ones": lambda x, w: lax.top_k(x, 3)[1],
    "elements, one by one": lambda x, w: jnp.stack(jnp.unstack(x, axis=1)[::-1], 1),
    "windows": lambda x, w: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "VALID"),
    "maxima of windows": lambda x, w: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3), (1, 1), "SAME"
    ),
    "a product": lambda x, w: jnp.prod(x, 1),
    "frequencies": lambda x, w: jnp.abs(jnp.fft.fft(x)),
    "a factor": lambda x, w: jnp.linalg.cholesky(x[:, :, None] * x[:, None] + jnp.eye(12)),
}


@pytest.mark.parametrize("name", ALONG)
def test_what_is_computed_along_a_dim_is_proved_where_another_one_is_split(name):
    fn = ALONG[name]
    assert proof(fn, mapped(fn, (P("a"), P()), P("a")), X, W).proved
    split = mapped(lambda x, w: lax.pmax(fn(x, w), "a"), (P(None, "a"), P()), P())
    if name not in ("elements, one by one", "frequencies", "a factor"):  # which change their shape
        assert not proof(lambda x, w: fn(x[:, :6], w), split, X, W).proved


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_proved(name):
    one, many = RIGHT[name]
    assert proof(one, many, X, W).proved


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_not(name):
    assert not proof(product, WRONG[name], X, W).proved


def test_a_doubt_says_which_results_and_where():
    found = proof(product, WRONG["a sum of squares"], X, W)
    assert found.doubt is not None
    assert found.doubt.results == ("result 0",)
    assert found.doubt.primitive == "dot_general"  # the first that is another product
    found = proof(product, WRONG["no sum"], X, W)
    assert found.doubt is not None
    assert found.doubt.why == "devices along `a` have different results"


def test_rows_of_a_table_of_which_each_device_has_some():
    def one(table, ids):
        inside = (ids >= 0) & (ids < 8)
        return jnp.where(inside[:, None], jnp.take(table, ids, 0, mode="clip"), 0)

    def many(table, ids):
        ids = ids - lax.axis_index("a") * 4
        inside = (ids >= 0) & (ids < 4)
        return lax.psum(jnp.where(inside[:, None], jnp.take(table, ids, 0, mode="clip"), 0), "a")

    specs = (P("a"), P()), P()
    assert proof(one, mapped(many, *specs), X, IDS).proved
    gradient = lambda fn: jax.grad(lambda table, ids: jnp.sin(fn(table, ids)).sum())
    program = partial(mapped, specs=(P("a"), P()), out=P("a"))
    wrong = lambda table, ids: many(table, ids + 1)
    assert not proof(one, mapped(wrong, *specs), X, IDS).proved
    no_sum = gradient(lambda table, ids: many(table, ids) / 2)
    assert not proof(gradient(one), program(no_sum), X, IDS).proved


def test_what_a_loop_adds_up_is_the_sum_of_all():
    def one(x, w):
        return (x @ w).sum()

    def rounds(x, w):
        add = lambda total, row: (total + (row @ w).sum(), None)
        return lax.psum(lax.scan(add, 0.0, x)[0], "a")

    assert proof(one, mapped(rounds, (P("a"), P()), P()), X, W).proved
    late = lambda x, w: rounds(x[1:], w)
    assert not proof(one, mapped(late, (P("a"), P()), P()), X, W).proved


def test_a_loop_whose_rounds_depend_on_each_other_is_the_same_loop():
    def one(x, w):
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c), 0 * x[0], x)

    same = mapped(one, (P(None, "a"), P()), (P("a"), P(None, "a")))
    assert proof(one, same, X, W).proved
    turn = lambda c, row: (jnp.tanh(c + row), c)
    back = lambda x, w: lax.scan(turn, 0 * x[0], x, reverse=True)
    assert not proof(one, mapped(back, (P(None, "a"), P()), (P("a"), P(None, "a"))), X, W).proved


def test_arrays_without_elements():
    empty = jnp.ones((0, 12))
    assert proof(product, mapped(product, (P(), P()), P()), empty, W).proved


def test_a_program_with_effects_is_not_proved():
    def prints(x, w):
        jax.debug.print("{}", x.sum())
        return x @ w

    found = proof(prints, prints, X, W)
    assert found.doubt is not None
    assert "effects" in found.doubt.why
