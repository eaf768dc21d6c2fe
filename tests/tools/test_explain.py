"""An explanation says what the program says.

Every collective has its rule, every op its line; what is at rest and what is done twice is told.
"""

import json
from dataclasses import replace

import jax.numpy as jnp
import optax
import pytest

import meshdsl as md
from meshdsl.figures import time_words
from meshdsl.machine import find_target
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.explain import explain
from meshdsl.program.collective import summary
from meshdsl.tools.explanation_text import describe
from meshdsl.train.overview import device_bytes
from meshdsl.train.step import TrainStep
from tests.helpers import only
from tests.models import common

CONFIG = common.CONFIGS["llama"]
_known: dict = {}


def explained(name, target=None):
    """The step under a shipped layout on 8 devices that are not there, program and explanation."""
    if (name, target) not in _known:
        step = train_step(name)
        program = step.program(step.abstract, common.batch(CONFIG))
        machine = find_target(target) if target else None
        said = explain(program, title=name, target=machine, units=128, model_flops=(1e9, 2e9))
        _known[name, target] = step, program, said
    return _known[name, target]


def train_step(name, rate=1e-3):
    layout = common.on(common.load(name), 8) if name != "single" else common.load(name)
    init = lambda key: common.Transformer.init(key, CONFIG)
    how = (common.loss, optax.adamw(rate), layout, abstract_mesh(layout.mesh))
    return TrainStep(init, *how, clip=1.0)


QUICK = ("data", "zero1", "tensor", "fsdp-sequence")  # which other tests ask for too


@pytest.mark.parametrize("name", only(QUICK, common.LAYOUTS))
def test_every_collective_of_the_program_is_under_an_op_with_its_rule(name):
    _, program, explanation = explained(name)
    moves = [m for op in explanation.ops for m in op.moves]
    shown: dict = {}
    for m in moves:
        count, size = shown.get((m.operation, m.axes), (0, 0))
        shown[m.operation, m.axes] = count + m.count, size + m.count * m.bytes
        assert m.why, f"{m} has no rule"
    assert shown == summary(program.collectives)
    for axis in explanation.axes:
        over = [c for c in program.collectives if axis.name in c.axes]
        assert axis.count == sum(c.count for c in over)
        assert axis.bytes == sum(c.total_bytes for c in over)


@pytest.mark.parametrize("name", ["data", "zero1", "fsdp-sequence"])
def test_what_is_at_rest_is_what_the_step_holds(name):
    step, _, explanation = explained(name)
    memory = explanation.memory
    assert memory.total("parameter") == device_bytes(step.abstract.params)
    assert memory.total("optimizer") == device_bytes(step.abstract.opt_state)
    # adamw holds two of each, and a count.
    assert 2 * memory.total("gradient") + 4 == memory.total("optimizer")
    names = {t.name for t in memory.at_rest if t.kind == "parameter"}
    assert "blocks.layer.mlp.up.weight" in names


def test_every_op_leads_to_a_line_of_the_model():
    _, _, explanation = explained("fsdp-sequence")
    lines = {
        tuple(line.partition(":")[0] for line in op.source.split())
        for op in explanation.ops
        if op.name in ("einsum", "attention")
    }
    # Products with a weight are the linear layer's, called by attention, the MLP and the model.
    assert lines == {
        ("attention.py", "linear.py"),
        ("mlp.py", "linear.py"),
        ("transformer.py", "linear.py"),
        ("attention.py", "attended.py"),
    }


def test_the_layers_are_folded_and_each_phase_has_its_flops():
    _, _, explanation = explained("data")
    up = next(
        op for op in explanation.ops if op.notation == "einsum[batch_data, length, d_model, d_ff]"
    )
    assert up.loops == (("layers", 2),) and up.count == 2
    # Layers, multiply and add, sequences of a device, length, d_model, d_ff.
    flops = 2 * 2 * (8 // 8) * 16 * 32 * 64
    assert up.flops["forward"] == up.flops["recompute"] == flops
    assert 2 * flops <= up.flops["backward"] < 2.02 * flops  # and the gradient's conversion


def test_work_that_an_axis_repeats_is_called_out_with_the_rule_that_would_split_it():
    _, _, explanation = explained("tensor")
    norm = next(op for op in explanation.ops if "norm.py" in op.source and op.idle)
    assert norm.idle == ("model",)
    assert norm.advice == "length -> model"
    einsums = [op for op in explanation.ops if op.name == "einsum"]
    assert next(op for op in einsums if "d_ff_model" in op.notation).idle == ()


def test_no_rule_is_advised_for_a_dim_that_the_op_needs_whole():
    rows, width = md.Dim("rows", 4), md.Dim("width", 64)
    x = md.tensor(jnp.ones((4, 64)), (rows, width))
    ends = {"out": (rows, width), "whole": (width,), "name": "ends"}
    fn = lambda x: md.local(lambda a: a - a[:, -1:], md.relu(x), **ends)
    layout = md.Layout(["batch? -> data"], mesh={"data": 4})
    advised = {op.name: op.advice for op in md.explain(fn, x, layout=layout).ops}
    assert advised == {"relu": "width -> data", "ends": "rows -> data"}


def test_a_layout_for_another_kind_of_model_leaves_axes_idle_and_says_so():
    _, _, explanation = explained("spatial")
    assert [a.name for a in explanation.axes if a.idle] == ["rows", "cols"]
    assert (
        "axis `rows`=2 splits nothing: all 2 devices along it do the same work" in explanation.notes
    )
    assert any("this model has no dim `height`" in note for note in explanation.notes)


def test_alternatives_in_one_rule_are_no_news():
    assert explained("tensor")[2].notes == ()


def test_it_is_plain_data_for_machines():
    explanation = explained("fsdp-sequence", "v5p:2x2x2")[2]
    read = json.loads(json.dumps(explanation.to_dict()))
    assert read["target"] == "v5p:2x2x2"
    assert read["memory"]["arguments"] == explanation.memory.arguments
    assert len(read["ops"]) == len(explanation.ops)


def test_a_machine_gives_times_and_a_verdict():
    explanation = explained("fsdp-sequence", "v5p:2x2x2")[2]
    time = explanation.time
    assert 0 < time.compute <= time.step <= time.serial
    assert time.mfu == pytest.approx(1e9 / (time.step * 459e12))
    assert explanation.memory.fits
    assert all(m.seconds > 0 for op in explanation.ops for m in op.moves)
    ops = sum(seconds for op in explanation.ops for seconds in op.seconds.values())
    assert 0.9 * time.compute < ops <= 1.0001 * time.compute
    assert explained("fsdp-sequence")[2].time is None
    assert explained("fsdp-sequence", "cpu:8")[2].time is None


def test_an_optimizer_counts_as_a_whole():
    # A schedule adds code with a name stack to what optax computes for each element, without one.
    step = train_step("single", optax.warmup_constant_schedule(0.0, 1e-3, 10))
    program = step.program(step.abstract, common.batch(CONFIG))
    found = explain(program, target=find_target("h200:1"))
    (optimizer,) = (op for op in found.ops if op.name == "optimizer")
    assert optimizer.flops["optimizer"] > found.memory.total("parameter") / 4, "elements"
    assert optimizer.seconds["optimizer"] > 1e-9


def test_the_text_has_the_verdict_first_and_a_line_for_each_op_and_collective():
    explanation = explained("fsdp-sequence", "v5p:2x2x2")[2]
    lines = describe(explanation).splitlines()
    assert lines[0] == "fsdp-sequence"
    assert lines[1].endswith("mesh data=4 model=2, 8 devices on v5p:2x2x2")
    assert lines[2].startswith("fits: estimated peak ")
    for op in explanation.ops:
        assert any(op.notation in line and op.source in line for line in lines)
    assert any(
        "all_gather(data)" in line and line.endswith("rule 1: batch -> data") for line in lines
    )
    assert any(line.strip() == "2 x layers" for line in lines)


def test_a_program_without_a_gradient_has_none_and_its_arguments_are_told_apart():
    rows, columns = md.Dim("batch", 16), md.Dim("d_model", 64)
    weights = md.parameter(jnp.ones((64,)), (columns,))
    layout = md.Layout(["batch -> data"], mesh={"data": 8})
    lowered = md.lower(
        lambda model, x: md.square(x * model["key"]), layout, abstract_mesh(layout.mesh)
    )
    explanation = explain(
        lowered.program({"key": weights}, md.tensor(jnp.ones((16, 64)), (rows, columns)))
    )
    kinds = {t.name: t.kind for t in explanation.memory.at_rest}
    assert kinds == {"key": "parameter", "argument 1": "batch"}
    assert [t.notation for t in explanation.memory.largest][:2] == [
        "argument 1[batch_data, d_model]",
        "square[batch_data, d_model]",
    ]


def test_it_says_how_far_off_the_step_may_be():
    _, _, said = explained("fsdp-sequence", "v5p:2x2x2")
    uncertainty = said.time.estimate.uncertainty
    assert 0 < uncertainty < said.time.step
    assert said.to_dict()["uncertainty"] == uncertainty
    text = describe(said)
    assert f"give or take {time_words(float(f'{uncertainty:.2g}'))} (" in text.splitlines()[3]
    assert "by what is not foreseen" in text and "by collectives" in text
    known = replace(said, time=replace(said.time, deviations={}))
    assert "give or take" not in describe(known) and "may be off" not in describe(known)
    assert known.to_dict()["uncertainty"] is None


def test_a_program_that_does_nothing_takes_no_time():
    layout = md.Layout(["batch -> data"], mesh={"data": 4})
    program = md.lower(lambda x: x, layout, abstract_mesh(layout.mesh)).program(
        md.tensor(jnp.ones((8,)), (md.Dim("batch", 8),))
    )
    explanation = explain(program, target=find_target("v5e:2x2"), model_flops=(0.0, 0.0))
    time = explanation.time
    assert (time.step, time.mfu, time.exposed_share) == (0.0, 0.0, 0.0)
    assert "estimated step 0 us" in describe(explanation)
