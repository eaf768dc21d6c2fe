"""Adapters of low rank: trained beside frozen matrices, the same under every layout, and merged."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.predict.explain import explain
from meshdsl.predict.memory.memory_view import kind_of
from meshdsl.train.adapters import adapted, first_adapters
from meshdsl.train.adapters import merged as added
from meshdsl.train.checkpoints import Checkpoints, named_leaves, read_params
from meshdsl.train.checkpoints.parameters import warm_start
from meshdsl.train.config import Lora
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.precision import cast
from meshdsl.train.stored_layout import find_layout
from meshdsl_cli import main
from tests.train.common import losses, tiny_job
from tests.train.test_trained import steps

pytestmark = pytest.mark.usefixtures("compiled_once")
LORA = ("lora.parameters=*weight,embedding.*", "lora.rank=4")
DOWN = "blocks.layer.mlp.down.weight"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["lora.parameters=*wight"], "lora.parameters: no parameter is called `*wight`"),
        (["lora.parameters=*norm*"], "lora.parameters: `blocks.layer.attention_norm.scale` "),
        (
            ["lora.parameters=head.*", "frozen=!head.*"],
            "lora.parameters: `head.weight` has an adapter, and `frozen` takes it out",
        ),
        (["lora.parameters=head.*", "lora.rank=0"], "lora.rank=0: must be at least 1"),
    ],
)
def test_what_cannot_have_an_adapter(settings, said):
    with pytest.raises(MeshDSLError) as error:
        tiny_job("single", *settings)
    assert str(error.value).startswith(said)


def test_an_adapter_is_two_parameters_with_a_dim_of_the_rank():
    layers, d_in, heads, size = (
        md.Dim(name, n)
        for name, n in zip(("layers", "d_in", "heads", "size"), (2, 6, 3, 4), strict=True)
    )
    weight = md.normal(jax.random.key(0), (d_in, heads, size), ins=d_in)
    stacked = weight.replace(dims=(layers, *weight.dims), array=np.zeros((2, 6, 3, 4), np.float32))
    made = first_adapters(Lora(rank=5, alpha=10), ["w"], {"w": stacked}, jax.random.key(0))
    a, b = made["a"]["w"], made["b"]["w"]
    assert [d.name for d in a.dims] == ["layers", "d_in", "rank"]
    assert [d.name for d in b.dims] == ["layers", "rank", "heads", "size"]
    assert (a.role.ins, a.role.outs, b.role.ins) == (("d_in",), ("rank",), ("rank",))
    assert float(made["scale"]) == 2.0
    assert not np.any(b.array) and np.std(a.array) == pytest.approx(6**-0.5, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp"])
def test_layouts_do_not_change_what_adapters_learn(layout):
    found, expected = steps(layout, *LORA), steps("single", *LORA)
    np.testing.assert_allclose(found[:1], expected[:1], rtol=1e-5)
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-4)


@pytest.mark.slow
def test_what_is_frozen_takes_no_memory_but_its_own():
    job = tiny_job("fsdp", "lora.parameters=blocks.*.weight", "precision.frozen=bfloat16")
    program = job.program()
    parameters = [a for a in program.arguments if kind_of(a) == "parameter"]
    base = [a for a in parameters if a.name.startswith("params.")]
    adapters = [a for a in parameters if a.name.startswith("adapters.")]
    optimizer = [a for a in program.arguments if kind_of(a) == "optimizer"]
    assert all(a.frozen and a.dtype == "bfloat16" for a in base)
    assert not any(a.frozen or a.dtype != "float32" for a in adapters)
    size = lambda found: sum(a.bytes for a in found)
    assert 2 * size(adapters) <= size(optimizer) <= 2 * size(adapters) + 64
    seen = explain(program).memory
    gradients = [t for t in seen.at_rest if t.kind == "gradient"]
    assert sum(t.bytes for t in gradients) == size(adapters)
    compiled = job.lowered.compile().memory_analysis()
    assert compiled is not None
    # On a CPU the compiler counts the arguments of one device, each with its own padding.
    assert compiled.argument_size_in_bytes == pytest.approx(size(program.arguments), rel=0.01)


CORPUS = "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. " * 300
RUN = (
    *("model.d_model=32", "model.layers=2", "model.heads=8", "model.d_ff=64", "model.length=32"),
    *("batch=8", "steps=30", "schedule.warmup=2", "validation.batches=2", "sample.tokens=4"),
    *("checkpoint.every=10", "log.every=100", "optimizer.learning_rate=1e-2"),
)


def train(out: Path, data: Path, *more: str, layout: str = "fsdp") -> None:
    words = ["train", *RUN, "--out", str(out), "--layout", layout, "--data", str(data), *more]
    assert main(words) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once) -> Path:
    """A run `base` of a few steps, and a run `lora` that goes on with adapters."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "corpus.txt").write_text(CORPUS)
    train(folder / "base", folder / "corpus.txt", "steps=4", "data.validation=0.2")
    start = f"warm_start={folder / 'base'}"
    average = "optimizer.average=0.8"
    train(folder / "lora", folder / "corpus.txt", start, "data.validation=0.2", average, *LORA)
    return folder


def validation(out: Path) -> list[float]:
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record["validation_loss"] for record in records if "validation_loss" in record]


def job_of(run: Path, layout: str = "fsdp") -> Job:
    found = find_layout(layout)
    return Job(RunFolder(run).stored_config(), found, md.make_mesh(found))


def arrays_of(params) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf.array) for name, leaf in named_leaves(params).items()}


@pytest.mark.slow
def test_a_fine_tune_lowers_the_validation_loss_and_leaves_the_base_alone(runs):
    assert validation(runs / "lora")[-1] < validation(runs / "base")[-1] - 0.3
    like = job_of(runs / "lora").state
    with Checkpoints(runs / "lora" / "checkpoints") as checkpoints:
        state = checkpoints.restore(like).state
    before = arrays_of(read_params(runs / "base" / "checkpoints", like.params)[1])
    for name, found in arrays_of(state.params).items():
        np.testing.assert_array_equal(found, before[name], err_msg=name)
    assert np.any(state.adapters["b"][DOWN].array)


@pytest.mark.slow
def test_merged_weights_compute_what_unmerged_ones_do(runs, tmp_path, capsys):
    job = job_of(runs / "lora", "tensor")
    with Checkpoints(runs / "lora" / "checkpoints") as checkpoints:
        state = checkpoints.restore(job.state).state
    step, params = read_params(runs / "lora" / "checkpoints", job.state.params)
    assert step == 30
    warm, _ = warm_start(runs / "lora", job.state.params)
    dims = job.batch["tokens"].dims
    tokens = md.tensor(np.arange(256, dtype=np.int32).reshape(8, 32) % 200, dims)

    def logits(model, tokens, adapters=None):
        return (model if adapters is None else adapted(model, adapters))(tokens)

    lowered = jax.jit(md.lower(logits, job.layout, job.mesh, dims=job.dims))
    unmerged = np.asarray(lowered(state.params, tokens, cast(state.adapters, "float32")).array)
    merged = np.asarray(lowered(params, tokens).array)
    plain = np.asarray(lowered(state.params, tokens).array)
    np.testing.assert_allclose(merged, unmerged, rtol=2e-5, atol=2e-5)
    assert np.abs(plain - unmerged).max() > 0.1
    for name, array in arrays_of(params).items():
        np.testing.assert_array_equal(arrays_of(warm)[name], array)

    out = tmp_path / "merged.safetensors"
    assert main(["checkpoint", "export", str(runs / "lora"), "--out", str(out)]) == 0
    for name, array in load_file(out).items():
        np.testing.assert_allclose(array, arrays_of(params)[name], rtol=1e-6, atol=1e-6)
    shown = job.step.averaged(state)
    expected = arrays_of(added(shown.params, shown.adapters))
    out = tmp_path / "average.safetensors"
    assert main(["checkpoint", "export", str(runs / "lora"), "--out", str(out), "--average"]) == 0
    for name, array in load_file(out).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6)
    assert np.abs(load_file(out)[DOWN] - arrays_of(params)[DOWN]).max() > 1e-4
    assert main(["export", "hf", str(runs / "lora"), "--out", str(tmp_path / "hf")]) == 0
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    found = tensors["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_allclose(found, arrays_of(params)[DOWN][1].T, rtol=1e-6, atol=1e-6)
    assert main(["generate", str(runs / "lora"), "--prompt", "the quick", "--tokens", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("the quick")


@pytest.mark.slow
def test_a_run_with_adapters_goes_on_with_the_same_losses(runs, tmp_path):
    start = (
        *("lora.parameters=blocks.*.weight", "frozen=!norm.*", "optimizer.average=0.9"),
        *(f"warm_start={runs / 'base'}", "sample.tokens=0", "validation.every=3", "proof=off"),
    )
    train(tmp_path / "whole", runs / "corpus.txt", *start, "steps=6")
    train(tmp_path / "halves", runs / "corpus.txt", *start, "steps=6", "checkpoint.every=3")
    for step in ("6",):
        (tmp_path / "halves" / "checkpoints" / step).rename(tmp_path / "gone")
    assert main(["train", "--resume", "--out", str(tmp_path / "halves")]) == 0
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")
    assert validation(tmp_path / "halves") == validation(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_begins_with_a_folder_of_hugging_face(runs, tmp_path, capsys):
    assert main(["export", "hf", str(runs / "base"), "--out", str(tmp_path / "hf")]) == 0
    short = (
        "steps=1",
        "batch=8",
        "sample.tokens=0",
        "validation.batches=1",
        "model.length=32",
        "proof=off",
    )
    words = ["--layout", "fsdp", "--data", str(runs / "corpus.txt"), *short]
    out = tmp_path / "run"
    assert main(["train", "--warm-start", str(tmp_path / "hf"), "--out", str(out), *words]) == 0
    said = capsys.readouterr().out
    assert "12 of 12 parameters" in said and "config.json says" not in said
    model = RunFolder(out).stored_config().model
    assert (getattr(model, "d_model", 0), getattr(model, "layers", 0)) == (32, 2)
    other = ["model.norm_epsilon=1e-3", "--out", str(tmp_path / "other")]
    assert main(["train", f"warm_start={tmp_path / 'hf'}", *other, *words]) == 0
    assert "config.json says norm_epsilon=1e-05, and the run has 0.001" in capsys.readouterr().out
    (tmp_path / "hf" / "config.json").write_text("[]")
    again = ["train", "--warm-start", str(tmp_path / "hf"), "--out", str(tmp_path / "no"), *words]
    assert main(again) == 2
    assert "config.json: is no JSON object" in capsys.readouterr().err
