"""What is known while names are inferred is what JAX computes, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.plain_jax.calls import called
from meshdsl.plain_jax.evaluate import bind
from meshdsl.plain_jax.known_values import known_result
from meshdsl.plain_jax.program import Literal, flatten

FLOATS = np.array([[-2.5, 0.1, 3e9], [-0.0, np.inf, 7.0]], np.float32)
WHOLE = np.array([[-3, 5, 2**31 - 1], [0, 1, 7]], np.int32)


def values(x, n):
    """Most of what makes up masks and indices."""
    place = jnp.arange(3)[:, None] - jnp.arange(3)
    seen = jnp.where((place >= 0) & (place < 2) | (place == -2), jnp.abs(place), -place)
    y = jnp.maximum(x, 0.3) * 3.1 - jnp.minimum(x, 1.7) / 7 + jnp.floor(x) + jnp.ceil(x)
    wide = jnp.concatenate([y.T, y.T], 1).astype(jnp.bfloat16).astype(jnp.float32)
    whole = (n + n * 3 - 1) ^ n, ~(n > 2) & (n != 5), n.astype(jnp.float32), n.astype(jnp.int8)
    return seen, y, wide, whole, x.astype(jnp.int32), jnp.log(jnp.abs(x) + 1), n[:, 1].reshape(1, 2)


def test_each_known_result_is_that_of_jax():
    program = flatten(jax.make_jaxpr(values)(FLOATS, WHOLE), called)
    env = dict(zip(program.invars, (FLOATS, WHOLE), strict=True)) | dict(program.constants)
    for e in program.equations:
        operands = [v.value if isinstance(v, Literal) else env[v] for v in e.ins]
        made, want = known_result(e, operands), bind(e, operands)[0]
        assert (made.dtype, made.shape) == (want.dtype, want.shape), e.name
        np.testing.assert_array_equal(made, want, e.name)
        env[e.outs[0]] = made
