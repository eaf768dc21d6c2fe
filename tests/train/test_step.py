"""A step of training is the same under every ZeRO stage and in every dtype that is asked for.

What is not finite does it no harm.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.memory.peak import argument_bytes
from meshdsl.program import summary
from meshdsl.tensor import is_tensor
from meshdsl.train import precision as precision_module
from meshdsl.train.offload import check_host_memory
from meshdsl.train.precision_settings import Precision
from meshdsl.train.step import TrainStep
from tests.helpers import dims

PARTS, BATCH, INNER, OUTER = dims(parts=2, batch=8, inner=8, outer=16)
EIGHT, HYBRID = {"data": 8}, {"replica": 2, "data": 4}
LAYOUTS = {
    "data": md.Layout(["batch -> data"], mesh=EIGHT),
    "zero1": md.Layout(["batch -> data"], optimizer=["inner -> data"], mesh=EIGHT),
    "zero2": md.Layout(["batch -> data"], gradients=["inner -> data"], mesh=EIGHT),
    "zero3": md.Layout(["batch -> data"], ["inner -> data"], mesh=EIGHT),
    "zero3, gathered once": md.Layout(
        ["batch -> data"], ["inner -> data"], gather="step", mesh=EIGHT
    ),
    "hybrid": md.Layout(["batch -> replica, data"], ["inner -> data"], mesh=HYBRID),
}


class Model(PyTreeNode):
    up: md.Tensor
    down: md.Tensor
    bias: md.Tensor

    @classmethod
    def init(cls, key):
        up, down = (jax.random.normal(k, (8, 16)) / 4 for k in jax.random.split(key))
        return cls(
            md.parameter(up, (INNER, OUTER), ins=(INNER,)),
            md.parameter(down.T, (OUTER, INNER), ins=(OUTER,)),
            md.parameter(jnp.zeros(8), (INNER,)),
        )

    def loss(self, batch, key):
        x = md.cast(batch["x"], self.up.dtype)
        hidden = md.tanh(md.einsum(x, self.up, out=(BATCH, OUTER)))
        found = md.einsum(hidden, self.down, out=(BATCH, INNER)) + self.bias
        error = md.mean(md.square(md.cast(found - x, jnp.float32)))
        return error, {"error": error}


def batch_of(seed, bad=None):
    values = np.random.default_rng(seed).normal(size=(2, 8, 8)).astype(np.float32)
    if bad is not None:
        values[1, 3, 5] = bad
    return {"x": md.tensor(jnp.asarray(values), (PARTS, BATCH, INNER))}


@functools.cache
def make(name="data", **how):
    how = {"clip": 0.5, "microbatches": PARTS, **how}
    init, loss = how.pop("model", (Model.init, Model.loss))
    layout, tx = LAYOUTS[name], how.pop("tx", None) or optax.adamw(1e-2)
    return TrainStep(init, loss, tx, layout, md.make_mesh(layout), **how)


def run(step, batches=None):
    """The state after the batches (by default three), and the metrics of each step."""
    state, measured = step.init(jax.random.key(3)), []
    for batch in batches or map(batch_of, range(3)):
        state, metrics = step(state, batch)
        measured.append({name: float(value) for name, value in metrics.items()})
    return state, measured


def close(found, expected, rtol=1e-5):
    wide = lambda x: np.asarray(x, np.float32)
    same = lambda a, b: np.testing.assert_allclose(wide(a), wide(b), rtol=rtol, atol=1e-6)
    jax.tree.map(same, found, expected)


@functools.cache
def data_parallel():
    return run(make())


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "data"])
def test_every_zero_stage_trains_as_plain_data_parallel_does(name):
    (state, measured), (expected, losses) = run(make(name)), data_parallel()
    close(measured, losses)
    close(state.params, expected.params)
    close(state.opt_state, expected.opt_state)


def test_the_parameter_norm_is_that_of_all_parameters_before_the_update():
    params = make("zero3").init(jax.random.key(3)).params
    _, (metrics, *_) = data_parallel()
    assert metrics["parameter_norm"] == pytest.approx(float(optax.tree.norm(params)), rel=1e-6)


def collectives(step):
    compiled = step.lower(step.abstract, batch_of(0)).compile()
    return summary(from_hlo(compiled.as_text(), step.mesh))


# -- what is not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize("name, bad", [("zero1", np.nan), ("zero3", np.inf)])
def test_a_skipped_step_changes_nothing_but_the_number_of_the_step(name, bad):
    step = make(name, skip_nonfinite=True)
    before, _ = run(step, [batch_of(0)])
    after, (_, bad_step, good_step) = run(step, [batch_of(0), batch_of(1, bad), batch_of(2)])
    kept, _ = run(step, [batch_of(0), batch_of(1, bad)])
    jax.tree.map(np.testing.assert_array_equal, kept.params, before.params)
    jax.tree.map(np.testing.assert_array_equal, kept.opt_state, before.opt_state)
    assert int(kept.step) == 2
    assert (bad_step["skipped"], good_step["skipped"]) == (1, 0)
    assert not np.isfinite(bad_step["loss"])
    for leaf in jax.tree.leaves((after.params, after.opt_state)):
        assert np.isfinite(np.asarray(leaf)).all()


@pytest.mark.parametrize(
    "name, how",
    [
        ("zero1", {"skip_nonfinite": True}),
        ("zero3", {"precision": Precision(loss_scale="dynamic")}),
    ],
)
def test_looking_out_for_what_is_not_finite_takes_no_collective(name, how):
    assert collectives(make(name, **how)) == collectives(make(name))


def test_without_skipping_what_is_not_finite_gets_through():
    state, _ = run(make(), [batch_of(0, np.nan)])
    assert np.isnan(np.asarray(state.params.up.array)).all()


# -- the scale of the loss -------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["0.5", "dynamic"])
def test_a_power_of_2_scales_the_loss_and_nothing_else(scale):
    state, measured = run(make(precision=Precision(loss_scale=scale)))
    expected, losses = data_parallel()
    close([{name: step[name] for name in losses[0]} for step in measured], losses, rtol=1e-6)
    close(state.params, expected.params, rtol=1e-6)
    assert measured[0]["loss_scale"] == (2**16 if scale == "dynamic" else float(scale))


def test_a_dynamic_scale_follows_overflows_in_the_same_way_under_all_layouts(monkeypatch):
    monkeypatch.setattr(precision_module, "GROWS_AFTER", 2)
    batches = [batch_of(0, np.inf), batch_of(1), batch_of(2), batch_of(3), batch_of(4, np.nan)]
    found, dynamic = [], Precision(loss_scale="dynamic")
    for name in ("data", "zero3"):
        state, measured = run(make.__wrapped__(name, precision=dynamic), batches)
        found.append([(step["loss_scale"] / 2**16, step["skipped"]) for step in measured])
        assert (float(state.scale.value), int(state.scale.good)) == (2**15, 0)
    assert found == [[(1, 1), (0.5, 0), (0.5, 0), (1, 0), (1, 1)]] * 2


def test_float16_overflows_skip_steps_until_the_scale_fits():
    step = make("zero3", precision=Precision(compute="float16", loss_scale="dynamic"))
    big = {"x": md.tensor(batch_of(0)["x"].array * 10, (PARTS, BATCH, INNER))}
    _, measured = run(step, [big] * 6)
    skipped = [metrics["skipped"] for metrics in measured]
    assert skipped[0] == 1 and skipped[-1] == 0 and skipped == sorted(skipped, reverse=True)
    for i in range(int(sum(skipped)) + 1):
        assert measured[i]["loss_scale"] == 2.0 ** (16 - i)


# -- dtypes ----------------------------------------------------------------------------------------


def dtypes(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(leaf)}


@pytest.mark.parametrize("params, optimizer", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_parameters_and_optimizer_state_are_kept_in_their_dtypes(params, optimizer):
    step = make("zero3", precision=Precision(params=params, optimizer=optimizer))
    state, _ = run(step, [batch_of(0)])
    for found in (state, step.abstract):
        assert (dtypes(found.params), dtypes(found.opt_state)) == ({params}, {optimizer})


class Line(PyTreeNode):
    """A loss whose gradient is the same number for every element, whatever sums it."""

    w: md.Tensor

    @classmethod
    def init(cls, key):
        return cls(md.parameter(jax.random.normal(key, (8, 16)), (INNER, OUTER), ins=(INNER,)))

    def loss(self, batch, key):
        found = md.einsum(md.cast(batch["x"], self.w.dtype), self.w, out=(BATCH, OUTER))
        return md.mean(md.cast(found, jnp.float32)), {}


ONES = {"x": md.tensor(jnp.ones((8, 8)), (BATCH, INNER))}
RATE = 2.0**-7  # a step of 2**-11, which bfloat16 rounds away from most weights


def stepped(name, **how):
    """The weights before and after a step in bfloat16."""
    precision = Precision(params="bfloat16", compute="bfloat16", **how)
    more = {"clip": 0.0, "microbatches": None, "precision": precision}
    step = make(name, model=(Line.init, Line.loss), tx=optax.sgd(RATE), **more)
    start = step.init(jax.random.key(3))
    before = np.asarray(start.params.w.array.astype(jnp.float32))
    state, _ = step(start, ONES)
    return before, np.asarray(state.params.w.array)


def test_the_update_of_bfloat16_parameters_is_computed_in_float32_and_rounded():
    before, after = stepped("zero1")
    np.testing.assert_array_equal(after, (before - RATE / 16).astype(after.dtype))
    assert (after.astype(np.float32) == before).mean() > 0.5


def test_rounded_at_random_small_updates_are_not_lost_and_no_layout_changes_a_bit():
    before, after = stepped("data", stochastic_rounding=True)
    np.testing.assert_array_equal(stepped("hybrid", stochastic_rounding=True)[1], after)
    gap = after.astype(np.float32) - (before - RATE / 16)
    assert (np.abs(gap) < 2**-7 * np.abs(before)).all()
    moved = np.mean(after.astype(np.float32) - before) * -16 / RATE
    assert 0.5 < moved < 1.5


# -- memory of the host ----------------------------------------------------------------------------


def kinds(tree):
    tensors = [x for x in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(x)]
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tensors)}


def test_optimizer_state_waits_on_the_host_and_training_is_the_same():
    step = make("zero1", offload=("optimizer",))
    state, measured = run(step)
    assert kinds(step.abstract.opt_state) == kinds(state.opt_state) == {"pinned_host"}
    assert kinds(state.params) == {"device"}
    expected, losses = run(make("zero1"))
    close(measured, losses, rtol=1e-6)
    close(state.opt_state, expected.opt_state, rtol=1e-6)


def test_explain_does_not_count_what_waits_on_the_host():
    here, there = make("zero1"), make("zero1", offload=("optimizer",))
    both = [argument_bytes(step.program(step.abstract, batch_of(0))) for step in (here, there)]
    moments = 2 * 4 * (8 * 16 + 16 * 8 + 8) // 8
    assert both[0] - both[1] == moments


def test_devices_without_memory_of_the_host_are_an_error():
    memories = lambda: [SimpleNamespace(kind="device")]
    device = SimpleNamespace(device_kind="toy", addressable_memories=memories)
    mesh = SimpleNamespace(local_devices=[device])
    check_host_memory(mesh, ())
    said = (
        "offload=optimizer, activations: needs pinned_host memory, and a device of kind toy has d"
    )
    with pytest.raises(md.MeshDSLError, match=said):
        check_host_memory(mesh, ("optimizer", "activations"))
