"""Norms of other libraries move what those of `layers/norm.py` move, but for one mean."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import meshdsl as md
from meshdsl.layers.norm import LayerNorm, RMSNorm
from meshdsl.program.collective import summary
from tests.from_jax.test_from_jax import assert_same

BATCH, LENGTH, D_MODEL, D_FF = (
    md.Dim("batch", 8), md.Dim("length", 8), md.Dim("d_model", 16), md.Dim("d_ff", 32),
)  # fmt: skip
MESH = {"data": 2, "model": 2}
LAYOUTS = {
    "fsdp-sequence": md.Layout(
        ["batch -> data", "d_ff -> model", "length -> model"], ["d_model -> data"], mesh=MESH
    ),
    "width": md.Layout(["batch -> data", "d_ff -> model", "d_model -> model"], mesh=MESH),
}


def linen(norm):
    module = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[norm](epsilon=1e-5)
    return module.init(jax.random.key(0), jnp.zeros((1, D_MODEL.size))), module.apply


def of_nnx(norm):
    made = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[norm]
    graph, params = nnx.split(made(D_MODEL.size, epsilon=1e-5, rngs=nnx.Rngs(0)))
    return params, lambda params, x: nnx.merge(graph, params)(x)


def equinox(norm):
    eqx: Any = pytest.importorskip("equinox")
    made = {"layer": eqx.nn.LayerNorm, "rms": eqx.nn.RMSNorm}[norm]
    how = {} if norm == "layer" else {"use_bias": False}
    params, rest = eqx.partition(made(D_MODEL.size, eps=1e-5, **how), eqx.is_inexact_array)
    return params, lambda params, x: jax.vmap(jax.vmap(eqx.combine(params, rest)))(x)


def haiku(norm):
    hk: Any = pytest.importorskip("haiku")
    made = {
        "layer": lambda: hk.LayerNorm(-1, create_scale=True, create_offset=True, eps=1e-5),
        "rms": lambda: hk.RMSNorm(-1, eps=1e-5),
    }[norm]
    model = hk.without_apply_rng(hk.transform(lambda x: made()(x)))
    return model.init(jax.random.key(0), jnp.zeros((1, D_MODEL.size))), model.apply


MEAN_TWICE = {("equinox", "layer"), ("haiku", "layer")}
"""These call `jnp.mean` and then `jnp.var`, which takes the mean again."""

LIBRARIES = {"linen": linen, "nnx": of_nnx, "equinox": equinox, "haiku": haiku}
UNDER = {"linen": "fsdp-sequence", "nnx": "width", "equinox": "fsdp-sequence", "haiku": "width"}
CASES = [(library, norm, UNDER[library]) for library in LIBRARIES for norm in ("layer", "rms")]


def by_names(norm, layout):
    """The collectives of the same block with a norm of the language."""
    weight = lambda *dims: md.parameter(jnp.ones([d.size for d in dims]), dims)
    up, down = weight(D_MODEL, D_FF), weight(D_FF, D_MODEL)
    model = {"norm": norm.init(D_MODEL), "up": up, "down": down}
    x = md.tensor(jnp.ones((8, 8, 16)), (BATCH, LENGTH, D_MODEL))

    def loss(model, x):
        x = md.tanh(x)
        h = md.gelu(md.einsum(model["norm"](x), model["up"], out=(BATCH, LENGTH, D_FF)))
        y = x + md.einsum(h, model["down"], out=(BATCH, LENGTH, D_MODEL))
        return md.mean(md.square(y))

    step = md.lower(md.value_and_grad(loss), layout)
    return dict(summary(step.program(model, x).collectives))


@pytest.mark.slow
@pytest.mark.parametrize("library, norm, layout", CASES)
def test_a_norm_of_a_library_has_the_collectives_of_one_with_names(library, norm, layout):
    weights, apply = LIBRARIES[library](norm)
    one, two, three = jax.random.split(jax.random.key(0), 3)
    up = jax.random.normal(one, (D_MODEL.size, D_FF.size)) / 4
    params = {"norm": weights, "up": up, "down": up.T / 2}
    x = 2 * jax.random.normal(two, (8, 8, 16)) + jax.random.normal(three, (16,))

    def loss(params, x):
        x = jnp.tanh(x)
        h = jax.nn.gelu(apply(params["norm"], x) @ params["up"])
        return jnp.mean(jnp.square(x + h @ params["down"]))

    named = md.from_jax(loss, {"x": "batch length d_model", "up": "_ d_ff"}, strict=True)
    step, packed = assert_same(loss, named, (params, x), LAYOUTS[layout])
    want = by_names({"layer": LayerNorm, "rms": RMSNorm}[norm], LAYOUTS[layout])
    if layout == "width" and (library, norm) in MEAN_TWICE:  # the mean of a row, in float32
        count, size = want["psum", ("model",)]
        want["psum", ("model",)] = count + 1, size + 4 * 8 * 4
    assert dict(summary(step.program(*packed).collectives)) == want
