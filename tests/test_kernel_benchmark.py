"""The attention that the benchmarks give to programs that meshdsl does not lower."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.kernel import attend


@pytest.mark.parametrize("group", [pytest.param((), marks=pytest.mark.slow), (2,)])
def test_it_is_the_causal_attention_of_jax(group):
    q, k, v = _operands(length=8, heads=2, group=group, features=4)
    expected = jax.nn.dot_product_attention(q.reshape(3, 8, -1, 4), k, v, is_causal=True)
    np.testing.assert_allclose(attend(q, k, v), expected.reshape(q.shape), atol=1e-6)


def test_for_tpu_it_calls_splash():
    q, k, v = _operands(length=128, heads=1, group=(2,), features=64)
    jaxpr = jax.make_jaxpr(functools.partial(attend, platform="tpu"))(q, k, v)
    assert [one.shape for one in jaxpr.out_avals] == [q.shape] and "splash" in str(jaxpr)


def _operands(length, heads, group, features):
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (heads, *group), (heads,), (heads,)
    return [
        jax.random.normal(key, (3, length, *some, features), jnp.float32)
        for key, some in zip(keys, sizes, strict=True)
    ]
