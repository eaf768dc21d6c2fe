"""A scan over stages: pipelines equal a loop, and hand microbatches on by one permute a tick."""

import pytest

import meshdsl as md
from tests.helpers import assert_same, data, dims, layout, weight

LAYERS = {"rule": "layers -> stage", "microbatches": {"batch": 4}, "uneven": "pad"}
SHARED = ("batch -> data, stage",)


def net(layers: int, batch: int = 16, **how):
    """A residual network, of parameters, rows, and a number for each row that layers close over."""
    n, b, d, f = dims(layers=layers, batch=batch, d=8, f=16)
    up, down = weight(n, d, f, ins=("d",)), weight(n, f, d, ins=("f",), seed=2)
    x, scale = data(b, d), data(b, seed=3)

    def run(up, down, x, scale):
        def layer(x, both):
            up, down = both
            hidden = md.tanh(md.einsum(x, up, out=(b, f)))
            x = x + md.einsum(hidden, down, out=(b, d)) * scale
            return x, (md.sum(hidden * hidden, b), md.max(x, d))

        body = md.checkpoint(layer) if how.get("remat", True) else layer
        return md.scan(body, x, (up, down), dim=n)

    return run, (up, down, x, scale)


def stages(*rules, mesh, rounds: int = 1, **how):
    return layout(LAYERS | {"rounds": rounds}, *rules, mesh=mesh, **how)


@pytest.mark.parametrize(
    "layers, rules",
    [
        (8, stages(*SHARED, mesh={"stage": 4, "data": 2})),
        (16, stages(*SHARED, mesh={"stage": 4, "data": 2}, rounds=2)),
        (7, stages("batch -> data", "f -> model", mesh={"stage": 2, "data": 2, "model": 2})),
        (5, stages("f -> data", mesh={"data": 2, "stage": 2}, rounds=2, parameters=["d -> data"])),
    ],
)
def test_a_pipeline_is_the_loop(layers, rules):
    run, args = net(layers)
    program, _ = assert_same(run, *args, layout=rules)
    ((_, pipeline),) = [(op, op.schedule) for op in program.ops if op.schedule]
    hops = [op for op in program.ops if op.name == "hand_on"]
    assert {op.count for op in hops} == {pipeline.ticks}
