"""A scan over stages: pipelines equal a loop, and hand microbatches on by one permute a tick."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.ops import pipeline_loop
from meshdsl.splits.pipeline import Schedule
from tests.helpers import assert_same, data, dims, layout, only, weight, with_gradients

LAYERS = {"rule": "layers -> stage", "microbatches": {"batch": 4}, "uneven": "pad"}
SHARED = ("batch -> data, stage",)


def net(layers: int, batch: int = 16, **how):
    """A residual network, of parameters, rows, and a number for each row that layers close over.

    A layer adds a fourth of what it computes, so that 16 of them do not amplify rounding.
    """
    n, b, d, f = dims(layers=layers, batch=batch, d=8, f=16)
    up, down = weight(n, d, f, ins=("d",)), weight(n, f, d, ins=("f",), seed=2)
    x, scale = data(b, d), data(b, seed=3)

    def run(up, down, x, scale):
        def layer(x, both):
            up, down = both
            hidden = md.tanh(md.einsum(x, up, out=(b, f)))
            x = x + md.einsum(hidden, down, out=(b, d)) * (scale / 4)
            return x, (md.sum(hidden * hidden, b), md.sum(x * x, d))

        body = md.checkpoint(layer) if how.get("remat", True) else layer
        return md.scan(body, x, (up, down), dim=n)

    return run, (up, down, x, scale)


QUICK = ("uneven layers in rounds, FSDP", "another dim takes the axis of the rows")


def stages(*rules, mesh, rounds: int = 1, **how):
    return layout(LAYERS | {"rounds": rounds}, *rules, mesh=mesh, **how)


CASES = {
    "four rounds of two stages": (
        8,
        stages(*SHARED, mesh={"stage": 2, "data": 2}, rounds=4),
    ),
    "a stage of padding alone": (5, stages(*SHARED, mesh={"stage": 4, "data": 2})),
    "uneven layers in rounds, FSDP": (
        5,
        stages("f -> data", mesh={"data": 2, "stage": 2}, rounds=2, parameters=["d -> data"]),
    ),
    "another dim takes the axis of the rows": (
        4,
        stages("f -> data", *SHARED, mesh={"data": 4, "stage": 2}),
    ),
    "stages over two axes": (
        8,
        layout(
            LAYERS | {"rule": "layers -> stage, part"},
            "batch -> part, data",
            mesh={"part": 2, "data": 2, "stage": 2},
        ),
    ),
    "ZeRO-2": (
        4,
        stages(
            *SHARED,
            mesh={"stage": 2, "data": 4},
            gradients=["d -> data"],
            optimizer=["d -> data"],
        ),
    ),
    "FSDP, gathered once": (
        4,
        stages(*SHARED, mesh={"stage": 2, "data": 4}, parameters=["d -> data"], gather="step"),
    ),
}


@pytest.mark.parametrize(
    "layers, rules",
    [
        pytest.param(*case, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_a_pipeline_is_the_loop(layers, rules):
    run, args = net(layers)
    program, _ = assert_same(run, *args, layout=rules)
    ((_, pipeline),) = [(op, op.schedule) for op in program.ops if op.schedule]
    hops = [op for op in program.ops if op.name == "hand_on"]
    assert {op.count for op in hops} == {pipeline.ticks}


def gradients_of(run, args, rules):
    """The program of a loss and its gradients by the weights."""
    loss = lambda weights, *others: md.sum(run(*weights, *others)[0])
    return md.lower(md.value_and_grad(loss), rules).program(args[:2], *args[2:])


def test_each_tick_hands_one_microbatch_on_and_rounds_shorten_the_bubble():
    run, args = net(8)
    for rounds, ticks in ((1, 4 + 2 - 1), (4, 4 * 4 + 2 - 1)):
        rules = stages(*SHARED, mesh={"stage": 2, "data": 4}, rounds=rounds)
        program = md.lower(run, rules).program(*args)
        hops = [c for c in program.collectives if program.op_of(c).name == "hand_on"]
        assert [(c.operation, c.axes, c.count) for c in hops] == [("ppermute", ("stage",), ticks)]
        assert hops[0].bytes == 1 * 8 * 4  # one row of 8 numbers


@pytest.mark.parametrize("count, rounds", only([(2, 1)], [(2, 1), (4, 1), (4, 2)]))
def test_stages_that_share_the_rows_get_their_results_while_others_are_made(count, rounds):
    """No sum or gather over `stage` is left: what moves between stages moves at each tick."""
    run, args = net(2 * count * rounds)
    rules = stages(*SHARED, mesh={"stage": count, "data": 2}, rounds=rounds)
    program = gradients_of(run, args, rules)
    moved = {
        (program.op_of(c).name, c.operation)
        for c in program.collectives
        if c.axes == ("stage",) and program.op_of(c).name != "pipeline"
    }
    assert moved == {("hand_on", "ppermute")} | ({("hand_out", "ppermute")} if count > 2 else set())


@pytest.mark.parametrize(
    "microbatches, stages, rounds", [(4, 2, 1), (8, 4, 2), (4, 4, 3), (8, 8, 1)]
)
def test_each_result_arrives_once_at_its_stage(microbatches, stages, rounds):
    schedule = Schedule(stages, microbatches, rounds, hands_out=True)
    for stage in range(stages):
        arrivals = [schedule.arrives(stage, tick) for tick in range(schedule.ticks)]
        assert sorted(which for which, arrives in arrivals if arrives) == [*range(schedule.share)]
    assert sorted({schedule.microbatch_of(i) for i in range(schedule.items)}) == [
        *range(microbatches)
    ]


def test_what_a_body_closes_over_is_brought_home_once():
    run, args = net(4)
    rules = stages(*SHARED, mesh={"stage": 2, "data": 2})
    program = gradients_of(run, args, rules)
    found = [c for c in program.collectives if c.operation == "all_gather" and c.bytes == 8 * 4]
    assert [(program.op_of(c).name, c.count) for c in found] == [("pipeline", 1)]


def test_a_sum_over_stages_that_a_body_closes_over_is_taken_once():
    """Outside of the pipeline another dim has the axis of the stages, and leaves the sum."""
    n, b, l, d = dims(layers=4, batch=8, length=4, d=8)

    def run(w, x, per_row):
        rows = md.mean(per_row, l)
        layer = lambda x, w: (x + md.tanh(x * w) * md.sin(rows), ())
        return md.scan(layer, x, w, dim=n)[0]

    rules = stages("length -> stage", mesh={"stage": 2, "data": 2})
    assert_same(run, weight(n, d), data(b, d), data(b, l, seed=3), layout=rules)


def test_gathers_of_each_layer_stay_within_the_ticks():
    run, args = net(4)
    rules = stages(*SHARED, mesh={"stage": 2, "data": 2}, parameters=["d -> data"])
    program = gradients_of(run, args, rules)
    found = [c for c in program.collectives if (c.operation, c.axes) == ("all_gather", ("data",))]
    layers_and_ticks = 2 * 5
    assert [c.count for c in found] == [layers_and_ticks] * 4  # two weights, forward and again


@pytest.mark.slow
@pytest.mark.parametrize("layers, rounds", [(4, 1), (3, 2)])
def test_a_maximum_may_be_a_result_of_a_body_that_is_recomputed(layers, rounds):
    n, b, l, d = dims(layers=layers, batch=16, length=4, d=8)

    def run(w, x):
        def layer(x, w):
            return x * w, (md.mean(x), md.max(md.sum(x, l), d), md.max(x * w, l))

        return md.scan(md.checkpoint(layer), x, w, dim=n)

    mesh = {"stage": 2, "data": 2, "model": 2}
    rules = stages(*SHARED, "length -> model", mesh=mesh, rounds=rounds)
    assert_same(run, weight(n, d), data(b, l, d), layout=rules)


def test_what_waits_spoils_nothing(monkeypatch):
    """What a stage makes while it waits may be anything: neither results nor gradients see it."""
    run, args = net(4)
    rules = stages(*SHARED, mesh={"stage": 4, "data": 2})
    expected = md.lower(with_gradients(run, args), rules).program(*args)
    chunk = pipeline_loop.Pipe._chunk

    def spoilt(self, given, xs, in_round, number):
        made, ys = chunk(self, given, xs, in_round, number)
        item = number - self.stages.number
        real = (item >= 0) & (item < self.stages.schedule.items)
        nothing = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), carried((made, ys)))
        return pipeline_loop.choose(real, (made, ys), uncarried(nothing))

    monkeypatch.setattr(pipeline_loop.Pipe, "_chunk", spoilt)
    program, _ = assert_same(run, *args, layout=rules)
    assert len(program.ops) == len(expected.ops)


def test_fewer_rows_than_microbatches_are_one_each():
    run, args = net(4, batch=4)
    program, _ = assert_same(run, *args, layout=stages(*SHARED, mesh={"stage": 2, "data": 2}))
    assert [op.schedule.microbatches for op in program.ops if op.schedule] == [2]


def test_random_numbers_and_indices_are_those_of_the_whole_batch():
    n, b, d = dims(layers=4, batch=8, d=4)
    keys = jax.random.split(jax.random.key(1), n.size)

    def run(x):
        def layer(x, key):
            drawn = md.random.normal(key, (b, d))
            return x + drawn * md.cast(md.iota(b), jnp.float32), x

        return md.scan(layer, x, keys, dim=n)

    assert_same(run, data(b, d), layout=stages(*SHARED, mesh={"stage": 2, "data": 2}))


def test_numbers_keys_and_flags_may_be_carried():
    n, b, d = dims(layers=4, batch=8, d=4)

    def run(w, x):
        def layer(carry, w):
            x, count, key, odd, plain = carry
            x = x * w + md.cast(count, jnp.float32)
            carry = x, count + 1, jax.random.split(key)[0], ~odd, plain * 2
            return carry, (count, plain)

        none, yes = md.tensor(jnp.int32(0), ()), md.tensor(jnp.bool_(True), ())
        start = x, none, jax.random.key(0), yes, jnp.float32(1)
        (x, count, key, odd, plain), ys = md.scan(layer, start, w, dim=n)
        return x, count, md.tensor(jax.random.key_data(key), (md.Dim("words", 2),)), odd, plain, ys

    assert_same(run, weight(n), data(b, d), layout=stages(*SHARED, mesh={"stage": 4, "data": 2}))


def test_a_stage_alone_is_a_loop():
    run, args = net(4)
    program, _ = assert_same(run, *args, layout=stages(*SHARED, mesh={"stage": 1, "data": 4}))
    assert not [op for op in program.ops if op.schedule]


@pytest.mark.parametrize(
    "microbatches, stages, rounds", [(4, 2, 1), (8, 4, 2), (3, 2, 3), (1, 4, 2)]
)
def test_every_microbatch_meets_every_chunk_once_and_in_order(microbatches, stages, rounds):
    schedule = Schedule(stages, microbatches, rounds)
    met = {}
    for tick in range(schedule.ticks):
        for stage in range(stages):
            if found := schedule.at(stage, tick):
                which, in_round = found
                met.setdefault(which, []).append((tick, in_round * stages + stage))
                assert schedule.item_of(which, in_round) == tick - stage
    assert sorted(met) == list(range(microbatches))
    for ticks in met.values():
        assert [chunk for _, chunk in ticks] == list(range(stages * rounds))
        first = ticks[0][0]
        assert [tick for tick, _ in ticks] == list(range(first, first + stages * rounds))
    if microbatches % stages == 0 or rounds == 1:
        waits = (stages - 1) / (rounds * microbatches + stages - 1)
        assert schedule.bubble == pytest.approx(waits)


N, B, L, D = dims(layers=4, batch=16, length=4, d=8)
TOKENS, GROUPS, ROWS = dims(tokens=64, groups=8, rows=2)
BODIES = {
    "rows and length as one dim": lambda x, w: md.reshape(
        md.tanh(md.reshape(x * w, (TOKENS, D))), (B, L, D)
    ),
    "rows in groups": lambda x, w: md.reshape(
        md.tanh(md.reshape(x * w, (GROUPS, ROWS, L, D))), (B, L, D)
    ),
    "rows under another name": lambda x, w: md.rename(
        md.rename(x, "batch", "others") * w, "others", "batch"
    ),
    "each row by itself": lambda x, w: md.over(B, lambda x: md.cumsum(x, L))(x * w),
    "numbers of rows": lambda x, w: x * md.cast(md.iota(B), jnp.float32) * w,
    "placed by hand": lambda x, w: md.replicate(md.reshard(x, {"d": "data"})) * w,
}


@pytest.mark.parametrize("name", only(["rows and length as one dim", "each row by itself"], BODIES))
def test_a_body_may_do_with_rows_what_it_likes(name):
    body = md.checkpoint(lambda x, w: (BODIES[name](x, w), ()))
    rules = stages(*SHARED, "length -> model", mesh={"stage": 2, "data": 2, "model": 2})
    run = lambda w, x: md.scan(body, x, w, dim=N)
    assert_same(run, weight(N, D), data(B, L, D), layout=rules)


def test_leaves_of_the_carry_may_be_split_otherwise_along_the_rows():
    def run(w, x, scale):
        def layer(carry, w):
            x, scale = carry
            return (x * w * scale, md.sum(x, (L, D)) * 0.1 + scale), ()

        return md.scan(md.checkpoint(layer), (x, scale), w, dim=N)

    mesh = {"stage": 2, "data": 2, "model": 2}
    rules = stages("length -> model", "batch -> data, model", mesh=mesh)
    assert_same(run, weight(N, D), data(B, L, D), data(B, seed=4), layout=rules)
