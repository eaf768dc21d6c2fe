"""Training with gradients that are sent in few bits over some axes: `precision.wire`."""

import re
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import leaves, override, read, to_toml
from meshdsl.train.trained import name_at, parameters_by_name
from meshdsl_cli import main
from tests.helpers import distance, only
from tests.train.common import SHORT, TINY, first_state, losses, tiny_job

pytestmark = pytest.mark.usefixtures("compiled_once")
LAYERS = ("model.layers=4", "model.d_ff=32")
EXPERTS = ("model.experts=4", "model.d_ff=32")
CASES = {
    "data": ("data", "data", ()),
    "hybrid-fsdp": ("hybrid-fsdp", "replica", ()),
    "zero1": ("zero1", "data", ()),
    "zero2": ("zero2", "data", ()),
    "fsdp": ("fsdp", "data", ()),
    "fsdp-once": ("fsdp-once", "data", ("microbatches=2", "batch=16")),
    "fsdp-tensor": ("fsdp-tensor", "data", ()),
    "fsdp-sequence": ("fsdp-sequence", "data", ()),
    "context": ("context", "data", ()),
    "pipeline": ("pipeline", "data", LAYERS),
    "pipeline-fsdp": ("pipeline-fsdp", "data", LAYERS),
    "pipeline-tensor": ("pipeline-tensor", "data", LAYERS),
    "early pipeline": ("early", "data", LAYERS),
    "experts": ("experts", "data", EXPERTS),
    "few bits": ("hybrid-fsdp", "replica", ("precision.matmul=int8",)),
    "frozen": ("hybrid-fsdp", "replica", ("frozen=embedding.*",)),
    "adapters": ("fsdp", "data", ("lora.parameters=blocks.*.weight", "lora.rank=2")),
}


def batch_of(job: Job) -> dict[str, md.Tensor]:
    random = np.random.default_rng(0)
    return {
        name: md.tensor(
            jax.device_put(random.integers(0, 200, x.shape, x.dtype), x.array.sharding), x.dims
        )
        for name, x in job.batch.items()
    }


def gradients(job: Job, settings: tuple[str, ...]) -> dict[str, md.Tensor]:
    state = first_state(job, *settings)
    return parameters_by_name(jax.jit(job.step.gradients)(state, batch_of(job)))


@cache
def of_one_device(settings: tuple[str, ...]) -> dict[str, md.Tensor]:
    return gradients(tiny_job("single", *settings), settings)


@pytest.fixture
def early(tmp_path):
    """The file of a layout: a pipeline that goes back early."""
    rules = Path("layouts/pipeline-fsdp.toml").read_text().replace("batch = 16 }", "batch = 2 }")
    path = tmp_path / "early.toml"
    path.write_text(rules.replace("microbatches =", 'schedule = "early", microbatches ='))
    return str(path)


# Each of these lies between two of the others, or has a part of what one of them has.
AT_NIGHT = {"data", "zero1", "zero2", "fsdp", "fsdp-tensor"}
AT_NIGHT |= {"pipeline", "pipeline-fsdp", "pipeline-tensor", "frozen"}


@pytest.mark.parametrize("name", only([], CASES, CASES.keys() - AT_NIGHT))
def test_gradients_are_nearly_those_of_exact_sums(name, early):
    """Of a block, int8 drops up to 1/255 of its largest number, once or twice."""
    layout, axis, more = CASES[name]
    layout = early if layout == "early" else layout
    found = gradients(tiny_job(layout, *more, f"precision.wire.{axis}=int8"), more)
    exact = of_one_device(more)
    changed = 0
    for key, wanted in exact.items():
        gap = distance(found[key].array, wanted.array, floor=1e-30)
        assert gap < 0.05 if len(wanted.dims) > 1 else gap < 1e-5, (key, gap)
        changed += gap > 1e-4
    assert changed >= sum(len(x.dims) > 1 for x in exact.values()) // 2, changed


def test_settings_are_written_and_read(tmp_path):
    config = override(Config(), ["precision.wire.replica=int8"])
    assert dict(leaves(config))["precision.wire"] == {"replica": "int8"}
    text = to_toml(config)
    assert '[precision.wire]\nreplica = "int8"' in text
    (tmp_path / "run.toml").write_text(text)
    assert read(tmp_path / "run.toml", Config()) == config
    (tmp_path / "run.toml").write_text('[precision]\nwire = { replica = "int8" }')
    assert read(tmp_path / "run.toml", Config()) == config


@pytest.mark.parametrize(
    ("layout", "setting", "said"),
    [
        (
            "hybrid-fsdp",
            "precision.wire.replicas=int8",
            "precision.wire: no axis `replicas` in the mesh; did you mean `replica`?",
        ),
        (
            "hybrid-fsdp",
            "precision.wire.replica=int9",
            "precision.wire: gradients are sent over `replica` as 'int8', 'fp8' or 'bfloat16', not "
            "'int9'; did you mean `int8`?",
        ),
        ("data", "precision.wire=int8", "`precision.wire` is a table of settings by name; set"),
        ("data", "precision.feedback=true", "precision.feedback: is for precision.wire"),
        (
            "zero1",
            "precision.wire.data=int8 precision.feedback=true",
            "precision.feedback: the optimizer's state of `embedding.table` is "
            "split over `data`, by its `d_model`; feedback is for axes over which a gradient is "
            "summed as a whole, as in hybrid-fsdp",
        ),
        (
            "hybrid-fsdp",
            "precision.wire.data=int8 precision.wire.replica=fp8 precision.feedback=true",
            "precision.feedback: is for one format over all axes, not for data = int8, replica =",
        ),
        (
            "tensor",
            "precision.wire.model=int8",
            "value_and_grad: wire: no gradient of two or more dims is summed over `model`, so none "
            "can be sent as 'int8'",
        ),
    ],
)
def test_errors(layout, setting, said):
    with pytest.raises(MeshDSLError) as error:
        tiny_job(layout, *setting.split()).program()
    assert str(error.value).startswith(said)


@pytest.mark.slow
def test_explain_tells_what_goes_between_slices(tmp_path, capsys):
    layout = tmp_path / "slices.toml"
    layout.write_text(
        "[mesh.dcn]\nreplica = 2\n[mesh]\ndata = 4\n[layout]\n"
        'rules = ["batch -> replica, data"]\nparameters = ["d_model -> data"]\n'
    )
    target = ["--layout", str(layout), "--target", "v5e:2x2", "--slices", "2"]
    wide = [*TINY, "model.d_model=512", "model.remat=full", "model.loss_chunk=0"]
    between = []
    for wire in ([], ["precision.wire.replica=int8"]):
        assert main(["explain", *target, *wide, *wire]) == 0
        out = capsys.readouterr().out
        sent = re.search(r"replica: of these each device sends ([\d.]+) (\w+) to other slices", out)
        between.append(float(sent[1]) * {"KiB": 1, "MiB": 1024}[sent[2]])
        assert ("all_to_all(replica)" in out) == bool(wire)
    assert 3.7 < between[0] / between[1] < 4


def test_feedback_needs_sums_once_per_step(tmp_path):
    path = tmp_path / "layer.toml"
    path.write_text(Path("layouts/data.toml").read_text() + 'sum = "layer"\n')
    with pytest.raises(MeshDSLError, match="^precision.feedback: gradients are summed once per"):
        tiny_job(str(path), "precision.wire.data=int8", "precision.feedback=true")


WIRE = ["precision.wire.replica=int8"]
KEPT = [*WIRE, "precision.feedback=true"]
RUN = [*SHORT, "layout=hybrid-fsdp", "devices=4", "steps=4", "checkpoint.every=2"]


@pytest.mark.slow
@pytest.mark.parametrize("wire", [WIRE, KEPT], ids=["wire", "feedback"])
def test_a_run_goes_on_bit_for_bit(tmp_path, wire):
    for name in ("whole", "halves"):
        assert main(["train", "--out", str(tmp_path / name), *RUN, *wire]) == 0
    (tmp_path / "halves" / "checkpoints" / "4").rename(tmp_path / "gone")
    assert main(["train", "--resume", "--out", str(tmp_path / "halves")]) == 0
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_what_is_dropped_is_forgotten_where_the_axis_gets_another_size(tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", *out, *RUN, *KEPT, "devices=8"]) == 0
    other = tmp_path / "other.toml"
    other.write_text(Path("layouts/hybrid-fsdp.toml").read_text().replace("= 2", "= 4"))
    steps = 4
    for layout, forgets in (("hybrid-fsdp", False), (other, True)):
        steps += 2
        how = [f"layout={layout}", f"steps={steps}", "devices=8"]
        capsys.readouterr()
        assert main(["train", "--resume", *out, *how]) == 0
        said = f"`dropped` is other in the checkpoint of step {steps - 2}; it begins again"
        assert (said in capsys.readouterr().out) == forgets
    assert len(losses(tmp_path / "run")) == steps


@pytest.mark.parametrize("scale", only([], ["none", "dynamic", "1024"], ["dynamic"]))
def test_feedback_is_of_the_gradient_and_not_of_the_scaled_one(scale):
    job = tiny_job("hybrid-fsdp", *KEPT, f"precision.loss_scale={scale}")
    state = job.step.init(jax.random.key(0))
    state, _ = job.step(state, batch_of(job))
    plain = tiny_job("hybrid-fsdp", *KEPT)
    wanted, _ = plain.step(plain.step.init(jax.random.key(0)), batch_of(plain))
    for name, x in wanted.dropped.items():
        assert np.asarray(x.array).any(), name
        np.testing.assert_array_equal(x.array, state.dropped[name].array)


@pytest.mark.slow
def test_a_step_that_is_skipped_drops_nothing():
    job = tiny_job("hybrid-fsdp", *KEPT, "guard.nonfinite=skip")
    state, _ = job.step(job.step.init(jax.random.key(0)), batch_of(job))
    kept = jax.tree.map(np.asarray, state.dropped)
    name = "blocks.layer.mlp.up.weight"
    spoiled = jax.tree_util.tree_map_with_path(
        lambda path, x: x * np.nan if name_at(path).startswith(name) else x, state.params
    )
    state, measured = job.step(state.replace(params=spoiled), batch_of(job))
    assert measured["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, kept, jax.tree.map(np.asarray, state.dropped))
