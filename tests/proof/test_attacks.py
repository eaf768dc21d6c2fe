"""Programs that compute different things, and that a careless checker takes for the same.

Most of these mistakes an earlier state of the checker made.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.proof.test_programs import mapped, proof

X = jnp.asarray([1.0, 2.0, 5.0])
SQUARE = jnp.arange(4.0).reshape(2, 2)
WIDE = jnp.arange(12.0).reshape(4, 3)
SMALL = jnp.asarray([100, 100, 55, 44], jnp.int8)


def tiled(x):
    return jnp.broadcast_to(x[None], (2, 3)).reshape(6)


def repeated(x):
    return jnp.broadcast_to(x[:, None], (3, 2)).reshape(6)


def tiled_and_repeated(x):
    return jnp.broadcast_to(x[None, :, None], (2, 3, 2)).reshape(12)


def each(of):
    return lambda x: lax.scan(lambda carry, e: (carry, jnp.sin(e)), 0.0, of(x))[1]


def rounds(step, first=0.0):
    return lambda x: lax.scan(lambda carry, e: (step(*carry, e), None), (first, 0 * x[0]), x)[0][0]


def down(dtype):
    return -lax.iota(dtype, 4)


def filled(value):
    return lambda x: x.at[jnp.asarray([7])].get(mode="fill", fill_value=value)


def counted(k):
    i = lax.broadcasted_iota(jnp.int32, (2, 2), 0)
    return lambda x: x + jnp.sin((4 * i + k).astype(jnp.float32))


def nested(pick):
    """A condition in a loop in a loop, on elements of a matrix and of its transpose."""

    def inner(carry, e):
        return carry, lax.cond(carry[0], pick, lambda a, b: b, *e)

    def outer(carry, rows):
        return carry, lax.scan(inner, carry, rows)[1]

    return lambda x: lax.scan(outer, (x[0, 0] < 9,), (x, x.T))[1]


def weights(other):
    """Of a row that may have none."""

    def fn(x):
        each = jnp.where(x > 2, jnp.exp(x), 0)
        return each / jnp.where(each.sum() > 0, each.sum(), other)

    return fn


def softmax(of):
    return lambda x: jnp.exp(of(x)) / jnp.exp(of(x)).sum()


def hundreds(x):
    return jnp.full(len(x), 100, jnp.int8) + jnp.full(len(x), 100, jnp.int8)


K = lax.iota(jnp.int32, 4).reshape(2, 2)
PAIRS = {
    "a copy to the next device": (
        lambda x: x,
        mapped(
            lambda x: x + lax.pmax(lax.ppermute(x, "a", [(0, 1)]), "a") - x, (P(),), P(), {"a": 2}
        ),
        X,
    ),
    "a hop of a device alone to nobody": (
        lambda x: x,
        mapped(lambda x: lax.ppermute(x, "a", []), (P(),), P(), {"a": 1}),
        X,
    ),
    "what is constant before another carry is known": (
        lambda x: 0 * x[0],
        rounds(lambda c, s, e: (c + (s - s[0]), s + e), jnp.zeros(3)),
        WIDE,
    ),
    "what counts before another carry is known": (
        lambda x: jnp.int32(len(x)) + 0 * x[0, 0].astype(jnp.int32),
        rounds(lambda c, s, e: (c + 1 + (s[1] - s[0]).astype(jnp.int32), s + e), 0),
        WIDE,
    ),
    "a logarithm of complex numbers": (
        lambda x: 1j * x,
        lambda x: jnp.log(jnp.exp(1j * x)),
        X,
    ),
    "a guard that is no number": (weights(1.0), weights(jnp.nan), X),
    "a constant that is too large": (softmax(lambda x: x), softmax(lambda x: x - 1000), X),
    "a constant that is added": (softmax(lambda x: x), softmax(lambda x: x + (-1000)), X),
    "the absolute value of a sum that wraps": (
        lambda x: x + hundreds(x).astype(jnp.float32),
        lambda x: x + jnp.abs(hundreds(x)).astype(jnp.float32),
        X,
    ),
    "elements of one matrix in two orders": (
        nested(lambda a, b: a),
        nested(lambda a, b: b),
        SQUARE,
    ),
    "a list of which a part repeats": (each(tiled), each(repeated), X),
    "repeats before and after": (
        lambda x: jnp.argmax(tiled(x)),
        lambda x: jnp.argmax(tiled_and_repeated(x)),
        X,
    ),
    "what fills": (filled(7.0), filled(0.0), X),
    "signed and unsigned": (
        lambda x: x + jnp.argmax(down(jnp.int32)),
        lambda x: x + jnp.argmax(down(jnp.uint32)),
        X,
    ),
    "rows by signed and unsigned numbers": (
        lambda x: x[lax.clamp(0, down(jnp.int32), 2)],
        lambda x: x[lax.clamp(jnp.uint32(0), down(jnp.uint32), jnp.uint32(2))],
        X,
    ),
    "a product that wraps around": (
        lambda x: jnp.argmax(lax.dot(x[None], x[:, None], preferred_element_type=jnp.int32)),
        lambda x: jnp.argmax(lax.dot(x[None], x[:, None]) > 0),
        SMALL,
    ),
    "a sum that wraps around": (
        lambda x: jnp.sum(x.astype(jnp.float32)),
        mapped(
            lambda x: lax.psum(jnp.sum(x, dtype=jnp.int8), "a").astype(jnp.float32),
            (P("a"),),
            P(),
            {"a": 2},
        ),
        SMALL,
    ),
    "a hash of unsigned numbers": (
        lambda x: x + (lax.iota(jnp.uint32, 3) * np.uint32(3_000_000_000)).astype(jnp.int32),
        lambda x: x + jnp.abs((lax.iota(jnp.uint32, 3) * np.uint32(3_000_000_000)).astype(int)),
        X.astype(jnp.int32),
    ),
    "numbers along two dims": (counted(K), counted(K.T), SQUARE),
    "a rounding on purpose": (
        lambda x: jnp.sum(lax.reduce_precision(x, 8, 0)),
        lambda x: lax.reduce_precision(jnp.sum(x), 8, 0),
        X,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_different_programs_are_not_proved_equal(name):
    one, other, x = PAIRS[name]
    assert not proof(one, other, x).proved
    assert not proof(other, one, x).proved


def test_results_of_another_dtype():
    wide = lambda x: lax.dot(x[None], x[:, None], preferred_element_type=jnp.int32)
    found = proof(wide, lambda x: lax.dot(x[None], x[:, None]), SMALL)
    assert found.doubt is not None
    assert found.doubt.why == "it has other dtypes"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
        lambda x: lax.scan(lambda c, e: (c + jnp.inf, c), 0.0, x),
        lambda x: lax.scan(lambda c, e: (c + 1j, c), 0j, x),
        lambda x: lax.select_n(jnp.int32(1), x, x + 1, x + 2),
        lambda x: jnp.concatenate([x[:0], x[:1]]),
    ],
)
def test_a_program_equals_itself(fn):
    assert proof(fn, jax.jit(fn), X).proved


def ranked(ids):
    """Numbers of rows in the order of their keys, and the place of each row in that order."""
    numbers = lax.iota(jnp.int32, ids.size)
    _, order = lax.sort((ids, numbers), num_keys=1, is_stable=True)
    return order, lax.sort((order, numbers), num_keys=1, is_stable=True)[1]


def test_a_scatter_that_applies_a_function_is_not_proved():
    numbers = lax.iota(jnp.int32, 3)
    assert not proof(lambda x: 0 * x, lambda x: x.at[numbers].apply(jnp.cos), X).proved
    found = lambda x, ids: x.at[ranked(ids)[0]].apply(jnp.cos)
    assert not proof(lambda x, ids: 0 * x, found, X, jnp.zeros(3, jnp.int32)).proved


def test_places_in_an_order_are_as_many_as_a_device_has_rows():
    x, ids = jnp.arange(8.0), jnp.zeros(8, jnp.int32)
    some = lambda x, ids: jnp.where(ranked(ids)[1] < 2, x, 0)
    many = mapped(some, (P("a"), P("a")), P("a"), {"a": 2})
    assert not proof(lambda x, ids: x, many, x, ids).proved


ORDERED = {
    "cumsum": (lambda x, ids: jnp.cumsum(x), lambda x, ids: jnp.cumsum(x[ranked(ids)[0]])),
    "argmax": (lambda x, ids: jnp.argmax(x), lambda x, ids: jnp.argmax(x[ranked(ids)[0]])),
    "back": (lambda x, ids: x, lambda x, ids: x[ranked(ids)[0]][ranked(ids + 1 > 1)[1]]),
    "float keys": (lambda x, ids: ranked(ids)[0], lambda x, ids: ranked(-1.0 * ids)[0]),
    "weights": (
        lambda x, ids: (x * x * ids).sum(),
        lambda x, ids: (x[ranked(ids)[0]] * x * ids).sum(),
    ),
    "other rows": (
        lambda x, ids: x @ jnp.sin(x),
        lambda x, ids: x[ranked(ids)[0]] @ jnp.sin(x)[ranked(-ids)[0]],
    ),
    "filled": (
        lambda x, ids: x[ranked(ids)[0]].sum(),
        lambda x, ids: x.at[ranked(ids)[0] + 1].get(mode="fill", fill_value=0).sum(),
    ),
}


@pytest.mark.parametrize("what", ORDERED)
def test_an_order_of_rows_counts_where_it_is_seen(what):
    one, many = ORDERED[what]
    assert not proof(one, many, jnp.arange(8.0), jnp.zeros(8, jnp.int32)).proved
