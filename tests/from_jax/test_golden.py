"""A module of flax has the collectives of the transformer of the language, under many layouts."""

import runpy
from pathlib import Path

import optax
import pytest

import meshdsl as md
from meshdsl.mesh import axis_sizes
from meshdsl.program.collective import summary
from meshdsl.train.step import TrainStep
from tests.helpers import only
from tests.models import common, test_golden

EXAMPLE = Path(__file__).parents[2] / "examples/flax_llama.py"
DENSE = [name for name in test_golden.ALL if name not in common.EXPERTS][1::2]
SIZES = dict(length=16, vocab=64, d_model=64, layers=4, heads=16, kv_heads=8, head_dim=4, d_ff=128)


@pytest.mark.parametrize("name", only([], DENSE, DENSE[::2]))
def test_a_llama_of_flax_has_the_collectives_of_that_with_names(name):
    """As many of each kind over each axis, and as many bytes: there is no difference to state.

    Those of the transformer are in `tests/golden`, op by op.
    """
    family = runpy.run_path(str(EXAMPLE))["FlaxLlama"](**SIZES)
    layout = common.load(name)
    if layout.mesh:
        layout = common.on(layout, 8)
    loss = lambda model, batch, _: (family.loss(model, batch, None), {})
    mesh = md.make_mesh(axis_sizes(layout.mesh, 8) if layout.mesh else {})
    step = TrainStep(family.init, loss, optax.adamw(1e-3), layout, mesh, clip=1.0)
    batch = {
        key: md.abstract((common.BATCH, *t.dims[1:]), t.dtype)
        for key, t in family.batch(common.BATCH).items()
    }
    _, _, _, program = test_golden.traced(name)
    found = summary(step.program(step.abstract, batch).collectives)
    assert found == summary(program.collectives)
