"""The collectives of a train step, layout by layout, are those that `tests/golden/*.txt` promises.

The program that meshdsl hands to the compiler has exactly those collectives, each explained by a
recorded op; and what the compiler made of it has no others. `python -m tests.models.test_golden`
writes the files anew.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import optax
import pytest

import meshdsl as md
from meshdsl.mesh import axis_sizes
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program.collective import summary
from meshdsl.testing.collectives import collectives_table
from meshdsl.train.step import TrainStep
from tests.helpers import only
from tests.models import common

pytestmark = pytest.mark.usefixtures("compiled_for_users")
GOLDEN = Path(__file__).parent.parent / "golden"
CONFIG = common.Config(
    style="llama", layers=4, d_model=64, heads=16, kv_heads=8, d_ff=128, vocab=64, length=16
)
WITH_EXPERTS = dataclasses.replace(CONFIG, layers=2, experts=8, experts_used=2, capacity=1.25)
HEADER = (
    f"# One step of adamw on {{layers}} llama layers: d_model={CONFIG.d_model}, "
    f"heads={CONFIG.heads}, kv_heads={CONFIG.kv_heads}, "
    f"head_dim={CONFIG.dims['head_dim'].size}, d_ff={CONFIG.d_ff},\n"
    f"# vocab={CONFIG.vocab}, batch={common.BATCH.size}, "
    f"length={CONFIG.length}, float32, every layer rematerialised.\n"
    "{experts}"
    "# Bytes are of one execution on one device: the larger of what goes in and what comes out.\n"
)
ALL = [*common.LAYOUTS, *common.STAGES, *common.CONTEXT, *common.PIPELINES, *common.EXPERTS]
SLOW = ("context", "ulysses", "data", "tensor", "zero1", *common.EXPERTS)
SLOW += ("single", "fsdp", "sequence", "pipeline", "pipeline-fsdp")
QUICK = [name for name in ALL if name not in SLOW]
# What the compiler need not run: the gradients of a mean are constants, and it does not gather
# those; and the keys that the backward pass sends to the next device have just been sent there, as
# attention is recomputed; and the loss of the router's logits, which has no weight here.
DROPPED = {
    "fsdp-sequence": {("all_gather", ("model",)): (2, 256)},
    "pipeline-tensor": {("all_gather", ("model",)): (2, 256)},
    "experts": {("psum", ("data", "expert")): (2, 8)},
    "context-ring": {("ppermute", ("context",)): (8, 16384)},
}
# That which has the most kinds of collectives, and those that are compiled beside it: layouts of
# several axes stand for those of one.
MADE = ["zero2", "fsdp-sequence", "context-ring", "ulysses", "pipeline-tensor", "experts"]


def config_of(name):
    if name == "experts-exchange":
        return dataclasses.replace(WITH_EXPERTS, capacity=0.0)
    return WITH_EXPERTS if name in common.EXPERTS else CONFIG


def train_step(name):
    layout, config = common.load(name), config_of(name)
    sizes = axis_sizes(layout.mesh, 8 if layout.mesh else 1)
    layout = common.on(layout, 8) if layout.mesh else layout
    step = TrainStep(
        lambda key: common.Transformer.init(key, config),
        common.loss,
        optax.adamw(1e-3),
        layout,
        md.make_mesh(layout),
        clip=1.0,
    )
    return step, sizes, (step.abstract, common.batch(config))


@functools.cache
def traced(name):
    step, sizes, args = train_step(name)
    return step, sizes, args, step.program(*args)


def describe(program, sizes, config) -> str:
    """Where, in which pass, what, over which axis, how often and how much.

    And the op that wants it.
    """
    table = collectives_table(program, "step")
    mesh = ", ".join(f"{a}={n}" for a, n in sizes.items()) or "one device"
    with_capacity = f"with a capacity of {config.capacity}" if config.capacity else "none dropped"
    experts = (
        f"# experts={config.experts}, of which a token uses {config.experts_used}, "
        f"{with_capacity}.\n"
    )
    header = HEADER.format(layers=config.layers, experts=experts if config.experts else "")
    return f"{header}# mesh: {mesh}\n\n{table}\n"


@pytest.mark.parametrize("name", only(QUICK, ALL))
def test_a_train_step_has_the_promised_collectives(name):
    _, sizes, _, program = traced(name)
    assert describe(program, sizes, config_of(name)) == (GOLDEN / f"{name}.txt").read_text()


# By default tests/commands/test_compile.py compiles a step, and each test of an op compiles the op.
@pytest.mark.parametrize(
    "name", only([], MADE, ["zero2", "fsdp-sequence", "context-ring", "experts"])
)
def test_the_compiler_makes_no_others(name):
    step, _, args, program = traced(name)
    promised = summary(program.collectives)
    compiled = summary(from_hlo(step.lower(*args).compile().as_text(), step.mesh))
    for key, (count, size) in DROPPED.get(name, {}).items():
        promised[key] = promised[key][0] - count, promised[key][1] - size
    assert compiled == promised


def write():
    GOLDEN.mkdir(exist_ok=True)
    for name in ALL:
        step, sizes, args = train_step(name)
        (GOLDEN / f"{name}.txt").write_text(describe(step.program(*args), sizes, config_of(name)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    write()
