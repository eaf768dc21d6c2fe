"""flax's BatchNorm with an axis name, inside of a `jax.vmap` over the images of a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md


class Net(nn.Module):
    """A convolution, a norm over the batch, a pool and a product."""

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, axis_name="images")(x)
        x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        return nn.Dense(5)(x.mean((0, 1)))


def loss(params, stats, x):
    variables = {"params": params, "batch_stats": stats}
    run = lambda one: Net().apply(variables, one, mutable=["batch_stats"])
    y, _ = jax.vmap(run, axis_name="images", out_axes=(0, None))(x)
    return jnp.square(y).mean()


@pytest.mark.parametrize(
    "rule", ["batch -> data", pytest.param("height -> data", marks=pytest.mark.slow)]
)
def test_a_norm_over_the_name_of_a_vmap_equals_plain_jax(rule):
    x = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)
    variables = Net().init(jax.random.key(0), x[0], train=False)
    args = variables["params"], variables["batch_stats"], x
    value, grads = jax.jit(jax.value_and_grad(loss))(*args)
    named = md.from_jax(loss, names={"x": "batch height width _"})
    layout = md.Layout([rule], mesh={"data": 8})
    step = md.lower(md.value_and_grad(named), layout, md.make_mesh(layout))
    found, found_grads = step(*named.pack(*args))
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(found_grads), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
