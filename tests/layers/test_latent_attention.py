"""Latent attention: the formula, position by position, and split as a layout says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers import LatentAttention, angles
from meshdsl.layers.attended import Documents, Window
from tests.helpers import data, distance, made, only

BATCH, LENGTH, D_MODEL = md.Dim("batch", 4), md.Dim("length", 8), md.Dim("d_model", 12)
HEADS, HEAD_DIM, LATENT = md.Dim("heads", 4), md.Dim("head_dim", 6), md.Dim("latent", 10)
TURNED, VALUE_DIM, QUERY_LATENT = (
    md.Dim("turned", 4),
    md.Dim("value_dim", 5),
    md.Dim("query_latent", 8),
)
SIZES = (D_MODEL, HEADS, HEAD_DIM, LATENT, TURNED)
OTHER = {"value_dim": VALUE_DIM, "query_latent": QUERY_LATENT}
LAYER = made(LatentAttention.init, jax.random.key(0), *SIZES, **OTHER)
X = data(BATCH, LENGTH, D_MODEL)


def turn(positions):
    return angles(positions, TURNED)


def formula(layer, x):
    """The same with arrays, all heads' keys and values, and scores of all pairs."""
    weight = lambda linear: linear.weight.array
    below = (
        x
        if layer.query_latent is None
        else layer.query_norm(layer.query_latent(md.tensor(x, (BATCH, LENGTH, D_MODEL)))).array
    )
    latent = layer.latent_norm(md.tensor(x @ weight(layer.latent), (BATCH, LENGTH, LATENT))).array
    cos, sin = (np.asarray(t.array) for t in turn(md.iota(LENGTH)))

    def turned(t):  # [batch, length, ..., turned]
        a, b = jnp.split(t, 2, -1)
        c, s = (u.reshape(1, LENGTH.size, *((1,) * (t.ndim - 3)), -1) for u in (cos, sin))
        return jnp.concatenate([a * c - b * s, b * c + a * s], -1)

    q = jnp.einsum("bld,dhe->blhe", below, weight(layer.query))
    qt = turned(jnp.einsum("bld,dhe->blhe", below, weight(layer.query_turned)))
    k = jnp.einsum("blc,che->blhe", latent, weight(layer.key))
    kt = turned(x @ weight(layer.key_turned))
    v = jnp.einsum("blc,che->blhe", latent, weight(layer.value))
    scores = jnp.einsum("blhe,bmhe->bhlm", q, k) + jnp.einsum("blhe,bme->bhlm", qt, kt)
    seen = np.tril(np.ones((LENGTH.size,) * 2, bool))
    p = jax.nn.softmax(jnp.where(seen, scores / 10**0.5, -jnp.inf))
    return jnp.einsum("bhlm,bmhe,hed->bld", p, v, weight(layer.out))


@pytest.mark.parametrize("layer", [LAYER, made(LatentAttention.init, jax.random.key(2), *SIZES)])
def test_the_formula(layer):
    found = layer(X, rotary=turn(md.iota(LENGTH)))
    assert found.dims == X.dims
    assert distance(found.array, formula(layer, X.array)) < 1e-5


@pytest.mark.parametrize(
    "window", only([Window(3)], [None, Window(3), Window(3, md.tensor(True, ()))])
)
def test_position_by_position_comes_what_comes_of_all_at_once(window):
    whole, cache = LAYER.prefill(X, rotary=turn(md.iota(LENGTH)), window=window)
    sizes = {d.name: d.size for t in (cache.key, cache.value) for d in t.dims}
    assert sizes == {"batch": 4, "memory": 8, "turned": 4, "latent": 10}  # no heads
    cache = jax.tree.map(jnp.zeros_like, cache)
    advance = jax.jit(lambda x, cache, at: LAYER.step(x, cache, at, turn(at), window=window))
    for i in range(LENGTH.size):
        position = md.broadcast(md.tensor(i, ()), (BATCH,))
        step, cache = advance(md.take(X, position, LENGTH), cache, position)
        assert distance(step.array, whole.array[:, i]) < 1e-5


RULES = {
    "heads": ["batch -> data", "heads -> model"],
    "length": ["batch -> data", "length -> model", "queries -> model"],
    "memory": ["batch -> data", "memory -> model"],
    "latent": ["batch -> data", "latent -> model", "query_latent -> model"],
}


@pytest.mark.parametrize("rules", only(["length"], RULES))
def test_layouts_change_nothing(rules):
    layout = md.Layout(RULES[rules], parameters=["d_model -> data"], mesh={"data": 2, "model": 2})

    def loss(layer, x, segments):
        documents = Documents.of(segments)
        y = layer(x, rotary=turn(md.iota(LENGTH)), documents=documents)
        return md.sum(md.square(y))

    segments = md.tensor(np.repeat([[0, 0, 0, 1, 1, 1, 2, 2]], 4, 0), (BATCH, LENGTH))
    step = md.value_and_grad(loss)
    expected, slopes = jax.jit(step)(LAYER, X, segments)
    value, found = md.lower(step, layout)(LAYER, X, segments)
    assert distance(value.array, expected.array) < 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_array_less(distance(a, b), 1e-5), found, slopes)
