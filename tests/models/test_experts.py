"""Transformers with experts: the same under every layout, and what a run writes down of them."""

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.generate import Sampling, generate
from meshdsl.models.transformer import Config
from tests.helpers import assert_equal, integers
from tests.models import common

BATCH, LENGTH = md.Dim("batch", 8), md.Dim("length", 16)
SIZES = {"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "vocab": 32, "length": 16}
EXPERTS = {**SIZES, "d_ff": 24, "experts": 8, "experts_used": 2, "router_z_loss": 1e-3}
PIPELINE = {"rule": "layers -> stage", "microbatches": {"batch": 2}}
LAYOUTS = {
    **{name: common.on(common.load(name), 8) for name in (*common.EXPERTS, "fsdp-sequence")},
    "pipeline": md.Layout(
        [PIPELINE, "experts -> expert", "batch -> expert"], mesh={"stage": 2, "expert": 4}
    ),
}
KINDS = {
    "capacity": {"capacity": 1.0},
    "dropless": {
        "experts_shared": 8,
        "experts_shared_gate": True,
        "router_scores": "sigmoid",
        "router_offset": True,
    },
}
LATENT = {"kv_heads": 0, "latent": 8, "query_latent": 12, "turned": 4, "value_dim": 6}
KINDS |= {
    "deepseek": {
        **LATENT,
        "style": "deepseek_v3",
        "layers": 3,
        "dense_layers": 1,
        "dense_d_ff": 40,
        "router_groups": 4,
        "router_groups_used": 2,
        **KINDS["dropless"],
    },
    "gpt_oss": {"style": "gpt_oss", "window": 5, "pattern": ("local", "global"), "capacity": 1.0},
}
EXCHANGE = {"rule": "experts -> expert", "move": "exchange"}
EXCHANGES = {
    "exchange": md.Layout(
        [EXCHANGE, "batch -> data, expert"], ["d_model -> data"], mesh={"data": 2, "expert": 4}
    ),
    "exchange in a pipeline": md.Layout(
        [PIPELINE, EXCHANGE, "batch -> expert"], mesh={"stage": 2, "expert": 4}
    ),
    "exchange along the length": md.Layout(
        [EXCHANGE, "batch -> data", "length -> expert"], mesh={"data": 2, "expert": 4}
    ),
}
MORE = {name: common.on(common.load(name), 2) for name in ("tensor", "context", "ulysses")}
# Each layout has one kind or two, and each kind a pipeline or an exchange beside split experts.
UNDER = {
    "capacity": ["experts", "experts-data", "experts-exchange"],
    "dropless": ["experts-tensor", "exchange in a pipeline", "exchange along the length"],
    "deepseek": ["experts-fsdp", "context", "exchange"],
    "gpt_oss": ["pipeline", "ulysses"],
}
BATCHES = {
    name: integers(BATCH, LENGTH, below=32, seed=i) for i, name in enumerate(("tokens", "targets"))
}


def step(kind):
    config = Config(**{**EXPERTS, **KINDS[kind]})
    loss = lambda model, batch: config.loss(model, batch, None)
    return config, md.value_and_grad(loss, has_aux=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_experts_is_the_same_under_every_layout(kind):
    config, fn = step(kind)
    model = jax.jit(config.init)(jax.random.key(0))
    expected = jax.jit(fn)(model, BATCHES)
    report = expected[0][1]
    assert (float(report["dropped"].array) > 0) == bool(config.capacity)
    assert 1 <= float(report["load_max_0"].array) <= 4
    for name in UNDER[kind]:
        found = md.lower(fn, {**LAYOUTS, **MORE, **EXCHANGES}[name])(model, BATCHES)
        assert_equal(found, expected, name, floor=1.0, tolerance=1e-5)
        assert float(found[0][1]["dropped"].array) == float(report["dropped"].array), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name",
    [("deepseek", "fsdp-sequence"), ("gpt_oss", "tensor")],
)
def test_a_text_goes_on_as_on_one_device(kind, name):
    config = Config(**{**EXPERTS, **KINDS[kind], "length": 24})
    model = jax.jit(config.init)(jax.random.key(1))
    how = Sampling(temperature=0.0)
    write = lambda model, tokens: generate(model, tokens, 8, jax.random.key(0), how)
    expected = jax.jit(write)(model, BATCHES["tokens"])
    found = md.lower(write, {**LAYOUTS, **MORE}[name])(model, BATCHES["tokens"])
    assert np.array_equal(found.array, expected.array)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dropless", "deepseek", "gpt_oss"])
def test_position_by_position_comes_what_comes_of_all_at_once(kind):
    config = Config(**{**EXPERTS, **KINDS[kind], "capacity": 0.0})
    model = jax.jit(config.init)(jax.random.key(0))
    tokens, memory = BATCHES["tokens"], md.Dim("memory", 16)

    def runs(model):
        last = md.iota(BATCH) * 0 + 9
        first, cache = model.prefill(tokens["length", :10], last, memory)
        then, _ = model.step(tokens["length", 10], cache, last + 1)
        return model(tokens), first, then

    every, first, then = (np.asarray(x.array) for x in jax.jit(runs)(model))
    np.testing.assert_allclose(first, every[:, 9], atol=2e-5)
    np.testing.assert_allclose(then, every[:, 10], atol=2e-5)
