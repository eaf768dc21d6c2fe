"""Which element is the largest, of a dim that is split, and programs that get that wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from meshdsl.ops.comparison import to_key
from tests.proof.common import computed
from tests.proof.test_programs import mapped
from tests.proof.test_programs import proof as proof_of

X = jnp.asarray(np.random.default_rng(0).integers(-9, -1, size=(64, 10)), jnp.float32)
LAST = jnp.iinfo(jnp.int32).max


def one(x):
    return jnp.argmax(x, 1)


def part(x, fill):
    padded = jnp.pad(x, ((0, 0), (0, 2)), constant_values=fill)
    return lax.dynamic_slice_in_dim(padded, lax.axis_index("a") * 3, 3, 1)


def parts(fill=-jnp.inf, step=3, key=to_key, other=LAST, least=lax.pmin, most=lax.pmax, at=None):
    def many(x):
        x = part(x, fill)
        index = jnp.argmax(x, 1).astype(jnp.int32)
        value = jnp.take_along_axis(x, (index if at is None else at(index))[:, None], 1)[:, 0]
        numbers = key(value)
        place = index + lax.axis_index("a") * step
        return least(jnp.where(numbers == most(numbers, "a"), place, other), "a")

    return mapped(many, P(), P(), {"a": 4})


def as_they_are(x):
    return lax.bitcast_convert_type(x, jnp.int32)


WRONG = {
    "zeros in the padding": parts(fill=0.0),
    "places that are too near": parts(step=2),
    "bits of negative numbers as they are": parts(key=as_they_are),
    "the opposite order": parts(key=lambda x: to_key(x, -1)),
    "too low a number elsewhere": parts(other=2),
    "the last of several": parts(other=0, least=lax.pmax),
    "the smallest one": parts(most=lax.pmin),
    "the value of another place": parts(at=lambda index: (index + 1) % 3),
}


def numbers(many):
    return computed(jax.make_jaxpr(many)(X), [X])[0]


def test_the_largest_of_parts_is_proved():
    assert proof_of(one, parts(), X).proved
    np.testing.assert_array_equal(numbers(parts()), one(X))


@pytest.mark.parametrize("name", WRONG)
def test_the_largest_of_parts_that_is_found_wrongly_is_not(name):
    assert not proof_of(one, WRONG[name], X).proved
    assert not np.array_equal(numbers(WRONG[name]), one(X))
