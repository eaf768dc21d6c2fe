"""Training in few bits: which matrices, the same under every layout, and resumed bit for bit."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.train.config import Config
from meshdsl.train.few_bits import formats_of, slow_formats, with_formats
from meshdsl.train.settings import leaves, override, read, to_toml
from meshdsl_cli import main
from tests.helpers import only
from tests.nightly import nightly
from tests.train.common import SHORT, TINY, losses, tiny_job
from tests.train.test_trained import steps

pytestmark = pytest.mark.usefixtures("compiled_once")
pytestmark = pytest.mark.usefixtures("compiled_once")
INT8, AUTO = "precision.matmul=int8", "precision.matmul=auto"
BLOCKS = (INT8, "precision.scales=block=2", "precision.gradient_rounding=stochastic")
FEED_FORWARD = {f"blocks.layer.mlp.{name}.weight" for name in ("gate", "up", "down")}
LAYERS = ("model.layers=4", "model.d_ff=32")


def low(*settings: str) -> set[str]:
    """The names of the matrices that are multiplied in few bits."""
    return set(tiny_job("single", *settings).formats.recipes)


def test_heads_and_embeddings_stay_as_they_are_by_default():
    found = low(INT8)
    assert FEED_FORWARD <= found and all(name.startswith("blocks.") for name in found)
    assert not low()


def test_patterns_choose_matrices_and_formats():
    assert low(INT8, "precision.except=*attention*") == FEED_FORWARD | {
        "head.weight",
        "embedding.table",
    }
    table = {"*": "fp8", "*.mlp.*": "int8", "*.up.*": "compute"}
    config = override(Config(), **{"precision.matmul": table})
    model = jax.eval_shape(config.model.init, jax.random.key(0))
    found = formats_of(config.precision, model).recipes
    assert found["blocks.layer.mlp.down.weight"].name == "int8"
    assert found["blocks.layer.attention.out.weight"].name == "fp8"
    assert "blocks.layer.mlp.up.weight" not in found


def test_the_settings_are_written_and_read(tmp_path):
    config = override(Config(), [INT8, "precision.scales=static=8", "precision.except=head.*"])
    assert dict(leaves(config))["precision.except"] == ["head.*"]
    text = to_toml(config)
    assert "\nexcept = [" in text
    (tmp_path / "run.toml").write_text(text)
    assert read(tmp_path / "run.toml", Config()) == config
    config = override(config, **{"precision.matmul": {"*": "int8", "*.out.*": "fp8"}})
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert read(tmp_path / "run.toml", Config()) == config


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "precision.matmul=int9",
            "precision.matmul=int9: the format is one of 'int8', 'fp8', 'mxfp8', 'nvfp4', not 'in",
        ),
        ("precision.scales=row", "precision.scales='row': expected channel, block=N for blocks of"),
        ("precision.scales=static=0", "precision.scales='static=0': expected channel, block=N"),
        ("precision.scales=block=0", "precision.scales='block=0': expected channel, block=N for"),
        (
            "precision.matmul=compute precision.scales=static=8",
            "precision.scales='static=8': is for precision.matmul=int8 or fp8",
        ),
        (
            "precision.matmul=compute precision.gradient_rounding=stochastic",
            "precision.gradient_rounding='stochastic': is for precision.matmul=int8 or fp8 or mx",
        ),
        (
            "precision.gradient_rounding=up",
            "precision.gradient_rounding=up: expected nearest or stochastic",
        ),
        (
            "precision.matmul=mxfp8 precision.scales=static=8",
            "precision.scales='static=8': mxfp8 has scales of its own, for blocks of 32; leave `sc",
        ),
        (
            "precision.matmul=nvfp4 precision.scales=block=32",
            "precision.scales='block=32': nvfp4 has scales of its own, for blocks of 16; leave `sc",
        ),
        ("precision.except=*wight", "precision.except: no parameter is called `*wight`"),
        ("precision.except=*", "precision.except: it names "),
    ],
)
def test_errors(setting, said):
    with pytest.raises(MeshDSLError) as error:
        tiny_job("single", INT8, *setting.split())
    assert str(error.value).startswith(said)


def test_a_pattern_of_formats_takes_nothing_out():
    with pytest.raises(MeshDSLError, match="'!head.*' is no pattern; the format of matrices that"):
        override(Config(), **{"precision.matmul": {"*": "int8", "!head.*": "int8"}})


def test_a_format_that_the_chip_only_emulates_is_said():
    fp8 = override(Config(), ["precision.matmul=fp8"]).precision
    assert slow_formats(fp8, find_target("v5p:2x2x1")) == (
        "precision.matmul: v5p multiplies fp8 at 1 times the rate of bfloat16; int8 at 1.98 "
        "times it",
    )
    assert not slow_formats(fp8, find_target("tpu7x:2x2x1")) and not slow_formats(fp8, None)


def test_what_is_in_blocks_is_multiplied_in_bfloat16():
    blocks = override(Config(), ["precision.matmul=int8", "precision.scales=block=128"]).precision
    assert slow_formats(blocks, find_target("v5p:2x2x1")) == (
        "precision.matmul: v5p multiplies int8 in blocks at 1 times the rate of bfloat16; int8 at "
        "1.98 times it",
    )
    four = override(Config(), ["precision.matmul=nvfp4"]).precision
    assert not slow_formats(four, find_target("b200:8"))
    (line,) = slow_formats(four, find_target("h100:8"))
    assert "h100 multiplies nvfp4 at 1 times the rate of bfloat16; fp8 at 2 times it" in line


@pytest.mark.parametrize(
    ("target", "format", "why"),
    [
        ("v5e:2x2", "int8", "which v5e multiplies at 2.21 times the rate of bfloat16"),
        ("v5p:2x2x1", "int8", "which v5p multiplies at 1.98 times the rate of bfloat16"),
        (
            "v6e:2x2",
            "compute",
            "because v6e multiplies nothing much faster than bfloat16: fp8 at 0.98 times its rate, "
            "int8 at 1.37 times its rate",
        ),
        ("tpu7x:2x2x1", "fp8", "which tpu7x multiplies at 2.02 times the rate of bfloat16"),
        ("h100:8", "fp8", "which h100 multiplies at 2 times the rate of bfloat16"),
        ("b200:8", "fp8", "which b200 multiplies at 2 times the rate of bfloat16"),
        (
            "v4:2x2x1",
            "compute",
            "because v4 multiplies nothing much faster than bfloat16: fp8 at 0.83 times its rate, "
            "int8 at 0.9 times its rate",
        ),
        (None, "compute", "because the rates of the chip are not known"),
    ],
)
def test_auto_is_what_the_chip_multiplies_fastest(target, format, why):
    auto = override(Config(), [AUTO, "precision.gradient_rounding=stochastic"]).precision
    precision, line = with_formats(auto, find_target(target).chip if target else None)
    assert precision.matmul == format and line == f"precision.matmul=auto: {format}, {why}"
    assert precision.gradient_rounding == ("nearest" if format == "compute" else "stochastic")


def test_auto_may_be_one_format_of_several():
    table = {"*": "auto", "*.out.*": "mxfp8"}
    precision = override(Config(), **{"precision.matmul": table}).precision
    found, _ = with_formats(precision, find_target("v5p:2x2x1").chip)
    assert found.matmul == {"*": "int8", "*.out.*": "mxfp8"}
    again, line = with_formats(precision, None, lambda: SimpleNamespace(precision=found))
    assert again.matmul == found.matmul and line.endswith("int8, as it was when this run began")
    other = replace(precision, matmul={"*.mlp.*": "auto", "*": "auto", "*.out.*": "int8"})
    again, _ = with_formats(other, None, lambda: SimpleNamespace(precision=found))
    assert again.matmul == {"*.mlp.*": "compute", "*": "int8", "*.out.*": "int8"}
    alone = replace(precision, matmul={"*.mlp.*": "auto"})
    assert with_formats(alone, find_target("v5p:2x2x1").chip)[0].matmul == {"*.mlp.*": "int8"}


@pytest.mark.slow
def test_a_run_keeps_what_auto_was(tmp_path):
    run = ["train", "--out", str(tmp_path), *SHORT, "layout=single", AUTO]
    assert main([*run, "steps=1"]) == 0
    written = (tmp_path / "config.toml").read_text()
    assert "# precision.matmul=auto: compute, because the rates of the chip are not" in written
    (tmp_path / "config.toml").write_text(written.replace('matmul = "compute"', 'matmul = "int8"'))
    assert main([*run, "steps=2", "--resume", "auto"]) == 0
    found = read(tmp_path / "config.toml", Config())
    assert found.precision.matmul == "int8" and found.steps == 2


def test_explain_says_so(capsys):
    # `auto` traces a step for each choice.
    small = [*TINY, "precision.matmul=fp8", "model.remat=full", "model.loss_chunk=0"]
    assert main(["explain", "--layout", "fsdp", "--target", "v5p:2x2x1", *small]) == 0
    notes = capsys.readouterr().out.partition("\nnotes\n")[2]
    assert "precision.matmul: v5p multiplies fp8 at 1 times the rate of bfloat16" in notes


# Either way to scale has about one half of the layouts, each kind of split among them, and the
# nightly profile the other half. By channel there is no pipeline-tensor, which hangs on virtual CPU
# devices: docs/from-python.md says why.
BY_CHANNEL = (
    *("fsdp-tensor", "context", "sequence", "fsdp-sequence", "tensor"),
    *("zero1", "pipeline", "pipeline-fsdp"),
)
BY_BLOCK = ("zero2", "fsdp-once", "hybrid-fsdp", "ulysses", "pipeline-rounds")


def at_night(layouts):
    return [pytest.param(name, marks=[pytest.mark.slow, nightly]) for name in layouts]


@pytest.mark.parametrize(
    "layout",
    [
        *only(["fsdp-tensor"], BY_CHANNEL, ["context", "fsdp-sequence", "zero1", "pipeline-fsdp"]),
        *at_night(BY_BLOCK),
    ],
)
def test_the_first_step_is_that_of_one_device(layout):
    """Later ones differ where a rounding of what differs in its last bit goes the other way."""
    (found, _), (expected, _) = (steps(each, INT8, *LAYERS) for each in (layout, "single"))
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [*at_night(["experts-fsdp", "experts-tensor"]), "experts-exchange"]
)
def test_experts_are_those_of_one_device(layout):
    experts = "model.experts=4", "model.experts_used=2"
    assert "blocks.layer.mlp.down" in low(INT8, *experts)
    (found, _), (expected, _) = (steps(each, INT8, *experts) for each in (layout, "single"))
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        *("fsdp-tensor", "pipeline-tensor", "zero2", "ulysses"),
        *at_night(["fsdp-once", "hybrid-fsdp", "pipeline-rounds"]),
        *at_night(name for name in BY_CHANNEL if name not in ("fsdp-tensor", "context")),
    ],
)
def test_blocks_and_random_rounding_are_those_of_one_device(layout):
    (first, then), (expected, later) = (
        steps(each, *BLOCKS, *LAYERS) for each in (layout, "single")
    )
    np.testing.assert_allclose(first, expected, rtol=2e-6)
    np.testing.assert_allclose(then, later, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*at_night([(INT8,)]), BLOCKS], ids=str)
def test_an_early_pipeline_is_one_device_too(how, tmp_path):
    rules = Path("layouts/pipeline-fsdp.toml").read_text().replace("batch = 16 }", "batch = 2 }")
    path = tmp_path / "early.toml"
    path.write_text(rules.replace("microbatches =", 'schedule = "early", microbatches ='))
    (found, _), (expected, _) = (steps(str(each), *how, *LAYERS) for each in (path, "single"))
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*at_night([(INT8,)]), BLOCKS], ids=str)
def test_a_run_goes_on_bit_for_bit(how, tmp_path):
    settings = [*SHORT, "layout=fsdp", "devices=4", *how, "steps=4", "checkpoint.every=2"]
    assert main(["train", "--out", str(tmp_path / "whole"), *settings]) == 0
    assert main(["train", "--out", str(tmp_path / "halves"), *settings]) == 0
    (tmp_path / "halves" / "checkpoints" / "4").rename(tmp_path / "gone")
    assert main(["train", "--resume", "--out", str(tmp_path / "halves")]) == 0
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_an_adapter_trains_beside_a_frozen_weight_in_few_bits():
    lora = ("lora.parameters=blocks.*.weight", "lora.rank=2")
    first, then = steps("fsdp", INT8, *lora)
    assert then != first and np.isfinite([first, then]).all()
    np.testing.assert_allclose(first, steps("single", INT8, *lora)[0], rtol=2e-6)
