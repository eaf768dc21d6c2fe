"""What a train step moves is known without a trace, under every layout that is shipped."""

from dataclasses import replace

import jax
import optax
import pytest

import meshdsl as md
from meshdsl.train.step import TrainStep
from tests.helpers import data, only
from tests.lowering.alike import TYPES, assert_alike, assert_recorded_alike
from tests.models import common
from tests.models.test_unet import CONFIG as UNET
from tests.models.test_unet import LAYOUTS, UNet, step

TRANSFORMERS = [*common.LAYOUTS, *common.STAGES, *common.CONTEXT, *common.PIPELINES]
CASES = [(name, style) for name in TRANSFORMERS for style in common.CONFIGS]
QUICK = [("fsdp-sequence", "llama")]


@pytest.mark.parametrize("name, style", only(QUICK, CASES))
def test_a_train_step_is_recorded_alike(name, style):
    config, layout = common.CONFIGS[style], common.load(name)
    layout = common.on(layout, 8) if layout.mesh else layout
    how = {"dims": [*config.dims.values()], "clip": 1.0}
    of = TrainStep(
        lambda key: common.Transformer.init(key, config),
        common.loss,
        optax.adamw(1e-3),
        layout,
        md.make_mesh(layout),
        **how,
    )
    args = of.abstract, common.batch(config)
    traced, found = of.program(*args).ops, of.record_from_types(TYPES, *args)
    # Who calls the two is not the same line.
    assert_alike([replace(op, lines=()) for op in traced], [replace(op, lines=()) for op in found])


@pytest.mark.parametrize("name", only(["spatial"], LAYOUTS))
def test_a_unet_is_recorded_alike(name):
    rules, dims = LAYOUTS[name]
    model = jax.eval_shape(lambda key: UNet.init(key, UNET), jax.random.key(0))
    assert_recorded_alike(step, model, data(*dims), layout=rules)
