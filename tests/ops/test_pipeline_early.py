"""Pipelines whose microbatches go back early: the loop's results, and less that is kept."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.layout_search.neighbours import Neighbours
from meshdsl.layout_search.plan import layout_of, plan_of
from meshdsl.splits.pipeline import Schedule
from tests.helpers import (
    assert_by_law,
    assert_equal,
    assert_explained,
    assert_same,
    collectives,
    data,
    dims,
    every,
    layout,
    weight,
)

LAYERS = {
    "rule": "layers -> stage",
    "microbatches": {"batch": 4},
    "uneven": "pad",
    "schedule": "early",
}


def net(layers: int, batch: int = 16):
    """Layers between an embedding and a head, as a function of parameters and rows.

    Layers divide by a norm, which is not finite for rows of zeros, and close over a number for each
    row. The loss is a mean over the rows that count, and has terms of sums that the layers return.
    """
    n, b, d, f = dims(layers=layers, batch=batch, d=8, f=16)
    args = weight(d, seed=5), weight(n, d, f), weight(n, f, d, seed=2)
    args += data(b, d), data(b, seed=3), data(b, d, seed=4)

    def run(head, up, down, x, scale, target):
        def layer(x, both):
            up, down = both
            hidden = md.tanh(md.einsum(x / md.sqrt(md.mean(x * x, d)), up, out=(b, f)))
            x = x + md.einsum(hidden, down, out=(b, d)) * (scale / 4)
            return x, (md.sum(hidden * hidden, b), md.sum(x * x, d))

        x, (used, norms) = md.scan(md.checkpoint(layer), md.tanh(x * head), (up, down), dim=n)
        counts = md.cast(scale > 0, jnp.float32)
        error = md.sum(md.sum(md.square(x * head - target), d) * counts) / md.sum(counts)
        loss = error + 0.1 * md.mean(used) + 0.3 * md.mean(norms) + md.mean(md.square(up))
        return loss, {"x": x, "used": used, "norms": norms, "counts": counts}

    return run, args


def with_gradient(run):
    """The function that gives the loss of `net`, its report and the gradients by the parameters."""

    def loss_and_gradients(parameters, *rows):
        loss = lambda parameters, *rows: run(*parameters, *rows)
        return md.value_and_grad(loss, has_aux=True)(parameters, *rows)

    return loss_and_gradients


def stages(*rules, mesh, layers=(), **how):
    return layout(LAYERS | dict(layers), *rules, mesh=mesh, **how)


CASES = {
    "four stages": (4, stages("batch -> data", mesh={"stage": 4, "data": 2})),
    "uneven layers in rounds, FSDP": (
        5,
        stages(
            "f -> data",
            mesh={"data": 2, "stage": 2},
            layers={"rounds": 2},
            parameters=["d -> data"],
        ),
    ),
    "rows shared outside, four rounds": (
        8,
        stages("batch -> data, stage", mesh={"stage": 2, "data": 2}, layers={"rounds": 4}),
    ),
    "tensor parallel, the head over stages": (
        3,
        stages("f -> model", "d -> stage", mesh={"stage": 4, "model": 2}),
    ),
    "a stage of padding alone, more stages than half of the microbatches": (
        5,
        stages("batch -> data", mesh={"stage": 4, "data": 1}),
    ),
    "stages over two axes": (
        4,
        stages(
            "batch -> part, data",
            mesh={"part": 2, "data": 2, "stage": 2},
            layers={"rule": "layers -> stage, part"},
        ),
    ),
    "ZeRO-2": (
        4,
        stages(
            "batch -> data, stage",
            mesh={"stage": 2, "data": 4},
            gradients=["d -> data"],
            optimizer=["d -> data"],
        ),
    ),
    "FSDP, gathered once": (
        4,
        stages(
            "batch -> data",
            mesh={"stage": 2, "data": 4},
            parameters=["d -> data"],
            gather="step",
        ),
    ),
    "one row for each": (4, stages("batch -> data", mesh={"stage": 2, "data": 4})),
    "summed in each layer": (4, stages("batch -> data", mesh={"stage": 2, "data": 2}, sum="layer")),
}
NIGHT = "stages over two axes", "FSDP, gathered once", "one row for each"
SLOW = CASES.keys() - {"uneven layers in rounds, FSDP", *NIGHT}


@every(CASES, *SLOW, night=NIGHT)
def test_an_early_pipeline_is_the_loop(sizes, rules):
    run, args = net(sizes)
    fn, mesh = with_gradient(run), md.make_mesh(rules)
    traced, program = md.lower(fn, rules, mesh).trace_program(args[:3], *args[3:])
    compiled = traced.lower().compile()
    result, gradients = compiled(args[:3], *args[3:])
    assert_equal((result, gradients), jax.jit(fn)(args[:3], *args[3:]))
    assert_by_law(result, rules, mesh)
    assert_by_law(gradients, rules, mesh, "optimizer")
    assert_explained(program, compiled.as_text(), mesh)
    assert [op.schedule.early for op in program.ops if op.schedule] == [True]


def test_a_stage_keeps_what_is_under_way_however_many_microbatches_there_are():
    """Nothing that the loops of ticks hold grows with the batch but the rows themselves."""
    n, b, d = dims(layers=4, batch=64, d=8)

    def loss(w, x):
        layer = lambda x, w: (md.tanh(x * w), ())
        return md.sum(md.scan(md.checkpoint(layer), x, w, dim=n)[0])

    def kept(count):
        rules = stages(mesh={"stage": 2}, layers={"microbatches": {"batch": count}})
        lowered = md.lower(md.value_and_grad(loss), rules)
        (jaxpr,) = {
            id(e): e
            for e in _equations(lowered.program(weight(n, d), data(b, d)).jaxpr.jaxpr)
            if e.primitive.name == "shard_map"
        }.values()
        rows = b.size // count
        shapes = {v.aval.shape for e in _equations(jaxpr.params["jaxpr"]) for v in e.outvars}
        return {shape[0] for shape in shapes if shape[1:] == (2, rows, 8)}

    assert kept(8) == kept(32) == {3}  # 2 x 2 stages - 1 of the inputs of the 2 layers of a stage


def test_explain_says_what_is_under_way():
    n, d = dims(layers=4, d=8)

    def loss(w, x):
        layer = lambda x, w: (md.tanh(x * w), ())
        return md.sum(md.scan(md.checkpoint(layer), x, w, dim=n)[0])

    def explained(count):
        rules = stages(mesh={"stage": 4}, layers={"microbatches": {"batch": count}})
        x = data(md.Dim("batch", count), d)
        return md.explain(
            md.value_and_grad(loss), weight(n, d), x, layout=rules, target="v5p:2x2x1"
        )

    (few,), (many,) = (explained(count).pipelines for count in (8, 32))
    assert few.kept == many.kept > 0
    assert (many.schedule.first_back, many.schedule.slots) == (3, 7)
    text = str(explained(32))
    assert "4 stages, 32 microbatches, early; a stage waits for 3 of 35 ticks" in text
    assert "the backward pass of microbatch 0 begins at tick 3" in text


def test_a_search_tries_the_schedule_and_writes_it():
    late = stages("batch -> data", mesh={"stage": 2, "data": 2}, layers={"schedule": "late"})
    plan = plan_of(late, late.mesh)
    tried = [layout_of(one).rules for one in Neighbours(["batch"], [], {}).small(plan)]
    assert [LAYERS, "batch -> data"] in tried


def _equations(jaxpr):
    for e in jaxpr.eqns:
        yield e
        for value in jax.tree.leaves(list(e.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def test_each_tick_hands_one_microbatch_on_and_one_back():
    run, args = net(4)
    rules = stages("batch -> data", mesh={"stage": 2, "data": 2})
    found = collectives(with_gradient(run), args[:3], *args[3:], layout=rules)
    ticks = 4 + 2 - 1
    assert found["ppermute", ("stage",)] == 2 * ticks


def test_without_gradients_it_is_any_pipeline():
    run, args = net(4)
    rules = stages("batch -> data", mesh={"stage": 2, "data": 2})
    program, _ = assert_same(run, *args, layout=rules, gradients=False)
    assert [op.schedule.early for op in program.ops if op.schedule] == [False]


@pytest.mark.parametrize("count, number, rounds", [(2, 4, 1), (4, 3, 1), (4, 8, 2), (3, 3, 3)])
def test_every_item_goes_back_once_before_its_place_is_taken(count, number, rounds):
    schedule = Schedule(count, number, rounds, early=True)
    ticks = range(schedule.first_back + schedule.items + count - 1)
    for stage in range(count):
        places: dict = {}
        done = []
        for tick in ticks:
            if 0 <= (item := tick - stage) < schedule.items:
                assert places.get(schedule.slot(item)) is None
                places[schedule.slot(item)] = item
            elif tick < schedule.items + count - 1:
                assert places.get(schedule.slot(item)) is None
            if 0 <= (item := schedule.back(stage, tick)) < schedule.items:
                assert places[schedule.slot(item)] == item
                places[schedule.slot(item)] = None
                done.append(item)
        assert sorted(done) == [*range(schedule.items)]
        assert max(places) < schedule.slots


def test_what_one_microbatch_cannot_tell_is_an_error():
    run, args = net(4)
    rules = stages("batch -> data", mesh={"stage": 2, "data": 2})

    def message(fn, *args):
        with pytest.raises(md.MeshDSLError) as e:
            md.lower(md.value_and_grad(fn), rules).program(*args)
        return str(e.value)

    squared = lambda head, *others: md.square(run(head, *others)[0])
    assert "its loss is one term of a sum over all microbatches" in message(squared, *args)
    whole = lambda head, *others: md.mean(md.replicate(run(head, *others)[1]["x"]))
    assert "replicate: this needs all of a dim that is cut" in message(whole, *args)

    def in_report(*args):
        loss, report = run(*args)
        return loss, md.mean(report["x"], "batch") * args[3]

    with pytest.raises(md.MeshDSLError, match="it can be one of the two"):
        md.lower(md.value_and_grad(in_report, has_aux=True), rules).program(*args)

    n, d = dims(layers=4, d=8)

    def two(w, x):
        layer = lambda x, w: (md.tanh(x * w), ())
        once = md.scan(layer, x, w, dim=n)[0]
        return md.sum(md.scan(layer, once, w, dim=n)[0])

    w, x = weight(n, d), args[3]
    assert 'schedule = "early" is for one scan' in message(two, w, x)

    inside = lambda w, x: md.checkpoint(lambda w: two(w, x))(w)
    assert "cannot stand inside of another loop, of md.checkpoint" in message(inside, w, x)


def test_gradients_of_what_follows_are_added_up_in_the_dtype_of_the_parameter():
    n, b, d = dims(layers=2, batch=64, d=8)
    w, head, x = weight(n, d), weight(d, seed=2), data(b, d, low=0.5)

    def loss(parameters, x):
        w, head = parameters
        layer = lambda x, w: (x + md.tanh(x * w), ())
        return md.mean(md.scan(layer, x, w, dim=n)[0] * head) + 1.0

    fn = md.value_and_grad(loss, compute=jnp.bfloat16, reduce=jnp.float32)
    rules = stages(mesh={"stage": 2}, layers={"microbatches": {"batch": 64}})
    (value, gradients), exact = (
        md.lower(fn, rules)((w, head), x),
        md.value_and_grad(loss)((w, head), x),
    )
    assert_equal(gradients, exact[1], tolerance=4e-3)
    assert_equal(value, exact[0], tolerance=4e-3)


def test_the_rule_says_when_microbatches_go_back():
    with pytest.raises(md.MeshDSLError, match="schedule is 'late' or 'early', not 'erly'"):
        stages(mesh={"stage": 2}, layers={"schedule": "erly"})
    with pytest.raises(md.MeshDSLError, match="a schedule is of a pipeline; add microbatches"):
        layout({"rule": "layers -> stage", "schedule": "early"}, mesh={"stage": 2})
    rule = dataclasses.replace(stages(mesh={"stage": 2}).parsed[0], where="", text="")
    assert (rule.schedule, rule.microbatches) == ("early", ("batch", 4))
