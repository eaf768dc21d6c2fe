"""A function as its forward and its backward pass: what is kept, and the results of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshdsl.lowering.linearized import Linearized


def layer(wanted, fixed, data):
    """A layer of a weight in another dtype, with a count among its data."""
    (weight,), (scale,), (x, count) = wanted, fixed, data
    hidden = jnp.tanh(x @ weight.astype(jnp.bfloat16).astype(jnp.float32) * scale)
    return [x + hidden @ weight.T, count + 1, jnp.sum(hidden)]


ARGS = [jnp.linspace(-1, 1, 32).reshape(4, 8)], [jnp.float32(0.5)]
DATA = [jnp.linspace(0, 1, 12).reshape(3, 4), jnp.int32(2)]
COTANGENTS = [jnp.linspace(1, 2, 12).reshape(3, 4), jnp.float32(3)]


@pytest.mark.parametrize(
    "fn, shapes", [(layer, {(3, 8), (3, 4)}), (jax.checkpoint(layer), {(3, 4)})]
)
def test_both_passes_are_those_of_jax(fn, shapes):
    """What is kept is what JAX keeps of the data; of the weight nothing is."""
    both = Linearized(fn, *ARGS, DATA)
    results, kept = both.forward(*ARGS, DATA)
    assert {x.shape for x in kept} == {x.shape for x in both.kept} == shapes
    by_weight, by_data = jax.jit(lambda kept: both.back(*ARGS, kept, COTANGENTS))(kept)

    def total(wanted, x):
        a, _, b = layer(wanted, ARGS[1], [x, DATA[1]])
        return jnp.sum(a * COTANGENTS[0]) + b * COTANGENTS[1]

    expected = jax.grad(total, argnums=(0, 1))(ARGS[0], DATA[0])
    for found, one in zip([*by_weight, *by_data], jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-5)
    for found, one in zip(results, layer(*ARGS, DATA), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-6)
