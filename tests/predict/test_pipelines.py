"""What a pipeline takes: model FLOPs without the bubble, the time of its ticks, what it keeps."""

from types import SimpleNamespace

import pytest

import meshdsl as md
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.time.model_flops import counted_flops
from tests.helpers import data, dims, weight

BATCH, D, F = dims(batch=32, d=8, f=16)
PRODUCT = 2 * BATCH.size * D.size * F.size  # FLOPs


def lowered(layers: int, **rule):
    """The gradients of a network of `layers`, two products each, and what they are called with."""
    (n,) = dims(layers=layers)
    how = {"rule": "layers -> stage", "microbatches": {"batch": 8}, "uneven": "pad"} | rule
    layout = md.Layout([how, "batch -> data, stage"], mesh={"stage": 4, "data": 2})

    def loss(parameters, x):
        def layer(x, both):
            up, down = both
            hidden = md.tanh(md.einsum(x, up, out=(BATCH, F)))
            return x + md.einsum(hidden, down, out=(BATCH, D)), ()

        return md.sum(md.scan(md.checkpoint(layer), x, parameters, dim=n)[0])

    parameters = weight(n, D, F, ins=("d",)), weight(n, F, D, ins=("f",), seed=2)
    return md.lower(md.value_and_grad(loss), layout), (parameters, data(BATCH, D))


@pytest.mark.parametrize("layers, rule", [(8, {}), (7, {}), (8, {"rounds": 2})])
def test_what_a_waiting_stage_computes_is_no_work_of_the_model(layers, rule):
    fn, args = lowered(layers, **rule)
    program = fn.program(*args)
    assert 8 * counted_flops(kernel_graph(program), program) == pytest.approx(layers * 6 * PRODUCT)
    explanation = md.explain(fn, *args)
    inside = [op for op in explanation.ops if op.pipeline]
    assert {op.name for op in inside} >= {"einsum", "tanh", "hand_on"}
    assert not any("stage" in op.idle for op in inside)


def test_a_replay_computes_every_layer_at_every_tick():
    """By hand: 11 ticks of 2 layers, of 7 products each, of 2 rows, forward, again and backward."""
    fn, args = lowered(8)
    chip = SimpleNamespace(
        flops=1.0,
        matmul_efficiency=1.0,
        hbm_bandwidth=1e30,
        hbm_efficiency=1.0,
        clock=0.0,
        kind="gpu",
    )
    network = SimpleNamespace(
        seconds=lambda *_: 0.0,
        axes=lambda _: SimpleNamespace(levels=(SimpleNamespace(kind="switch"),)),
    )
    text = fn.lower(*fn.shapes(*args)).compile().as_text()
    found = replay(Module(text), chip, network, {"stage": 4, "data": 2})
    rows = BATCH.size // 2 // 8
    assert found.compute == pytest.approx(11 * 2 * 7 * 2 * rows * D.size * F.size)


def test_a_pipeline_tells_its_ticks_its_memory_and_its_times():
    fn, args = lowered(8, rounds=2)
    explanation = md.explain(fn, *args, target="v5p:2x2x2")
    (one,) = explanation.pipelines
    assert (one.stages, one.microbatches, one.rounds, one.ticks, one.chunk) == (4, 8, 2, 19, 1)
    assert (one.size, one.padding, one.axes, one.count) == (8, 0, ("stage",), 1)
    assert (one.parameters, one.split) == (2 * 2 * 4 * D.size * F.size, True)
    inputs = 19 * 2 * 4 * D.size  # what the layer of each tick gets; and a few scalars
    assert inputs <= one.kept < inputs + 19 * 32
    time = explanation.time
    assert 0 < one.forward < one.backward < one.forward + one.backward < time.step
    assert one.waiting == pytest.approx((one.forward + one.backward) * 3 / 19)
    (told,) = explanation.to_dict()["pipelines"]
    assert (told["bubble"], told["waiting"]) == (pytest.approx(3 / 19), one.waiting)
