"""What a search knows of a layout without a trace is what a trace of it records."""

import random
from dataclasses import replace

import pytest

from meshdsl.commands.settings import model_values
from meshdsl.commands.training_workload import TrainingWorkload
from meshdsl.errors import MeshDSLError
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.neighbours import Neighbours
from meshdsl.layout_search.obeys import Obeys
from meshdsl.layout_search.plan import Line, Plan, layout_of
from meshdsl.machine import find_target
from meshdsl.train.config import Config
from meshdsl.train.settings import override
from tests.lowering.alike import assert_alike
from tests.search.workloads import workload

TARGET = "v5e:4x4"
SMALL = {
    "llama": ("llama3-8b", ["model.layers=2", "model.d_model=64", "model.d_ff=128"], 16),
    "gpt2": ("gpt2-124m", ["model.layers=2", "model.d_model=96", "model.d_ff=128"], 16),
    "unet": ("unet", ["model.channels=16", "model.levels=2"], 16),
}


def small(case: str) -> TrainingWorkload:
    model, settings, rows = SMALL[case]
    config = override(Config(), settings, **model_values(model), batch=rows)
    return TrainingWorkload(config, find_target(TARGET), case)


def walk(of, seed: int, steps: int) -> int:
    """Goes on from layout to layout as a search does that chooses at random.

    Returns:
      How many layouts could be used, of each of which the trace was what was foreseen.
    """
    draw, devices, usable = random.Random(seed), of.target.devices, 0
    settings = tuple((name, values[0]) for name, values in of.choices.items())
    plan = Plan((("data", devices),), (Line("rules", "batch", "data"),), settings=settings)
    program = of.program(layout_of(plan), dict(settings))
    dims = list(dict.fromkeys(d.name for op in program.ops for d in op.dims))
    stored = {d.name for a in program.arguments if a.role != "value" for d in a.dims}
    neighbours, obeys = (
        Neighbours(dims, sorted(stored), of.choices),
        Obeys(Constraints(), of.target),
    )
    for _ in range(steps):
        near = draw.choice([p for p in neighbours(plan) if _may_be_used(obeys, p)])
        if assert_foreseen(of, layout_of(near), dict(near.settings)):
            plan, usable = near, usable + 1
    return usable


def _may_be_used(obeys, plan) -> bool:
    try:
        return obeys(layout_of(plan), dict(plan.settings))
    except MeshDSLError:
        return False


def assert_foreseen(of, layout, settings) -> bool:
    """The ops of a layout are those of its trace, with what they move; or both refuse it."""
    try:
        found = of.ops(layout, settings)
    except MeshDSLError:
        with pytest.raises(MeshDSLError):
            of.program(layout, settings)
        return False
    traced = of.program(layout, settings).ops
    plain = lambda ops: [replace(op, lines=()) for op in ops]
    assert_alike(plain(traced), plain(found))
    return True


def test_what_a_neighbour_moves_is_foreseen():
    assert walk(workload("v5e:2x2"), seed=3, steps=4) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", SMALL)
def test_what_a_step_of_training_moves_is_foreseen(case, seed):
    assert walk(small(case), seed, steps=16) > 3
