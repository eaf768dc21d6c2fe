"""Names that libraries keep beside parameters, and what is said of those that are none."""

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import meshdsl as md

X = jnp.ones((4, 5))
KEPT = ("d_model", "d_ff")


def described(fn, params):
    named = md.from_jax(fn, {"x": "batch _"})
    text = named.describe(params, X)
    found = jax.eval_shape(named, *named.pack(params, X))
    assert "[d_model=5, d_ff=6]" in text and "[batch=4, d_model=5]" in text
    assert [d.name for d in found.dims] == ["batch", "d_ff"]
    return text


@pytest.mark.parametrize("keep", [nn.with_partitioning, nn.with_logical_partitioning])
def test_names_of_linen_are_read(keep):
    model = nn.Dense(6, kernel_init=keep(nn.initializers.ones, KEPT))
    described(lambda params, x: model.apply(params, x), model.init(jax.random.key(0), X))


def test_names_of_nnx_are_read():
    kernel = nnx.with_partitioning(nnx.initializers.ones, KEPT, eager_sharding=False)
    graph, state = nnx.split(nnx.Linear(5, 6, kernel_init=kernel, rngs=nnx.Rngs(0)))
    described(lambda state, x: nnx.merge(graph, state)(x), state)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Named:
    """An array with axes, as haliax has them."""

    array: jax.Array
    axes: tuple

    def tree_flatten(self):
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, axes, leaves):
        return cls(leaves[0], axes)


def test_axes_of_the_form_of_haliax_are_read():
    axes = tuple(md.Dim(name, size) for name, size in zip(KEPT, (5, 6), strict=True))
    described(lambda w, x: x @ w.array, Named(jnp.ones((5, 6)), axes))


def test_axes_of_haliax_are_read():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hax: Any = import_module("haliax")
    except ImportError as error:
        pytest.skip(f"haliax is missing, or does not fit this JAX: {error}")
    w = hax.ones((hax.Axis("d_model", 5), hax.Axis("d_ff", 6)))
    described(lambda w, x: x @ w.array, w)


def test_axes_of_a_mesh_name_no_dims():
    init = nn.initializers.ones

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            kept = ("data", "model"), ("model", "data")
            for width, names in zip((6, 7), kept, strict=True):
                x = nn.Dense(width, kernel_init=nn.with_partitioning(init, names))(x)
            return x

    params = Net().init(jax.random.key(0), X)
    named = md.from_jax(lambda params, x: Net().apply(params, x), {"x": "batch d_model"})
    text = named.describe(params, X)
    assert "note: `data`, which is kept beside parameters, stands for several dims" in text
    assert "[d_model=5, model=6]" in text and "[model=6, dim7_1=7]" in text
