"""Runs with workers from the command line: what is told, saved, resumed, sampled and explained."""

import json
import re

import jax
import numpy as np
import optax
import pytest

from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.local_settings import Local
from meshdsl.train.trained import parameters_by_name
from meshdsl_cli import main
from tests.helpers import only
from tests.train.common import SHORT, TINY, losses, records
from tests.train.test_diloco import drawn, first_values, small_batch, small_run
from tests.train.test_local import EXPERTS, local_job, with_workers
from tests.train.test_two_processes import train_in_two

WORKERS = """
[mesh.dcn]
replica = 2
[mesh]
data = 4
[layout]
rules = ["worker -> replica", "batch -> replica, data"]
parameters = ["d_model -> data"]
"""
pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def layout(tmp_path):
    path = tmp_path / "workers.toml"
    path.write_text(WORKERS)
    return str(path)


def settings(layout: str, text: str) -> list[str]:
    how = [*SHORT, f"layout={layout}", f"data.sources.text.paths={text}", "compile_cache=false"]
    return [*how, "local.workers=2", "local.every=3", "steps=7", "checkpoint.every=2"]


AT_ONCE = "exchange of 2 workers every 3 steps: psum(replica) 12 x, 9.8 KiB; 3.3 KiB per step"
LATE = "exchange of 2 workers every 3 steps, in 2 fragments: psum(replica) "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exchanged", "line"),
    [((), AT_ONCE), (("local.fragments=2", "local.delay=2"), LATE)],
    ids=["at once", "late"],
)
def test_a_run_goes_on_bit_for_bit(exchanged, line, tmp_path, layout, text, capsys):
    """From the middle of a round, after an exchange, before the last one, and during one."""
    how = [*settings(layout, text), "checkpoint.every=1", "checkpoint.keep=9", "validation.every=3"]
    how += exchanged
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert main(["train", "--out", str(whole), *how]) == 0
    said = capsys.readouterr().out
    assert line in said
    assert re.search(r"of workers +\S+ KiB per device", said)
    assert main(["train", "--out", str(again), *how]) == 0
    for kept in (6, 3, 2):
        for folder in (again / "checkpoints").iterdir():
            if folder.name.isdecimal() and int(folder.name) > kept:
                folder.rename(tmp_path / f"{kept}-{folder.name}")
        assert main(["train", "--resume", "--out", str(again)]) == 0
        assert f"resumed after step {kept}" in capsys.readouterr().out
        assert losses(again) == losses(whole)
        found = [record.get("validation_loss") for record in records(again)]
        assert found == [record.get("validation_loss") for record in records(whole)]
    assert [i for i, loss in enumerate(found, 1) if loss is not None] == [3, 6, 7]

    # What is evaluated and exported are the outer parameters.
    capsys.readouterr()
    assert main(["checkpoint", "show", str(whole)]) == 0
    shown = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    table = ["[worker=2,", "vocab=256,", "d_model=16]"]
    assert ["workers.params.embedding.table", *table] in shown
    assert ["params.embedding.table", "[vocab=256,", "d_model=16]", "float32"] in shown
    file = tmp_path / "model.safetensors"
    assert main(["checkpoint", "export", str(whole), "--out", str(file)]) == 0
    files = TensorFiles(file)
    assert tuple(files.leaves["embedding.table"]["shape"]) == (256, 16)
    assert not any(name.startswith("workers") for name in files.leaves)
    prompt = ["--prompt", "def ", "--tokens", "4"]
    assert main(["generate", str(whole), *prompt]) == 0

    # All workers on one device go on as workers in slices do.
    for folder, on in ((whole, layout), (again, "single")):
        more = ["steps=9", f"layout={on}"]
        assert main(["train", "--resume", "--out", str(folder), *more]) == 0
    assert losses(again) == pytest.approx(losses(whole), rel=1e-6)

    warm = ["train", "--out", str(tmp_path / "warm"), *settings(layout, text), "local.workers=4"]
    more = ["steps=1", "batch=16", "precision.loss_scale=dynamic"]
    assert main([*warm, f"warm_start={whole}", *more]) == 0
    said = capsys.readouterr().out
    assert f"warm start from {whole}, step 9: 12 of 12 parameters" in said


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_workers(tmp_path, layout, text, capsys):
    """From the outer parameters; the state of the outer optimizer stays."""
    how = [*settings(layout, text), "batch=16", "precision.loss_scale=dynamic"]
    out = tmp_path / "run"
    assert main(["train", "--out", str(out), *how, "steps=8", "checkpoint.keep=9"]) == 0
    more = ["train", "--resume", "--out", str(out), "local.workers=4", "steps=10"]
    assert main(more) == 0
    said = capsys.readouterr().out
    assert "`workers` is other in the checkpoint of step 8; it begins again" in said
    assert "all workers begin again from the outer parameters" in said
    assert "resumed after step 8" in said
    assert len(losses(out)) == 10
    lion = [*more[:-2], "local.workers=4", "steps=11", "optimizer.name=lion"]
    assert main(lion) == 2
    assert "holds a checkpoint of another model or optimizer: `workers.opt_state" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_workers_rejoin_from_the_outer_parameters():
    outer = optax.sgd(0.7, 0.9, nesterov=True)
    step = small_run(first_values(), optax.adam(0.1), outer, 3, Local()).local
    state = step.init(jax.random.key(0))
    batch = small_batch(drawn(16, 5), drawn(16))
    for _ in range(2):
        state, _ = step(state, batch)
    state = step.exchange(state)
    state, _ = step(state, batch)
    outer, momentum = jax.device_get((state.params, state.opt_state))
    found = step.rejoined(state)
    for name, x in outer.items():
        np.testing.assert_array_equal(found.params[name].array, x.array)
        for own in np.asarray(found.workers.params[name].array):
            np.testing.assert_array_equal(own, x.array)
    jax.tree.map(np.testing.assert_array_equal, found.opt_state, momentum)
    inner = jax.tree.leaves(found.workers.opt_state)
    assert not any(np.any(np.asarray(x)) for x in inner)


@pytest.mark.slow
def test_two_processes_with_a_worker_each_train_as_one_process(tmp_path, layout, text):
    how = settings(layout, text)
    assert main(["train", "--out", str(tmp_path / "one"), *how]) == 0
    train_in_two(layout, how, tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_skipped_by_each_worker(tmp_path, layout, text):
    how = [*settings(layout, text), "guard.nonfinite=skip", "guard.patience=2"]
    out = tmp_path / "run"
    assert main(["train", "--out", str(out), *how, "optimizer.learning_rate=1e30"]) == 2
    assert records(out)[-1]["skipped"] == 1


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_seen_at_the_next_exchange(tmp_path, layout, text, capsys):
    how = [*settings(layout, text), "guard.nonfinite=stop", "local.every=5", "checkpoint.every=100"]
    out = tmp_path / "run"
    assert main(["train", "--out", str(out), *how, "optimizer.learning_rate=1e30"]) == 2
    said = capsys.readouterr().err
    bad = int(re.search(r"step (\d+): loss .*, gradient norm nan", said)[1])
    assert bad < 5 and [path.name for path in out.glob("nonfinite-*")] == [f"nonfinite-{bad}.npz"]
    assert [record["step"] for record in records(out)] == [1, 2, 3, 4, 5]
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
def test_explain_and_compile_say_what_is_sent_when(layout, capsys):
    target = ["--layout", layout, "--target", "v5e:2x2", "--slices", "2"]
    how = [*TINY, "local.workers=2", "local.every=100", "model.remat=none", "model.loss_chunk=0"]
    assert main(["explain", *target, *how, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (replica,) = [axis for axis in found["axes"] if axis["name"] == "replica"]
    assert (replica["count"], replica["bytes"], replica["idle"]) == (0, 0, False)
    assert all("replica" not in op["idle"] for op in found["ops"])
    (note,) = found["notes"]
    assert re.fullmatch(
        r"exchange of 2 workers every 100 steps: psum\(replica\) 12 x, 9.8 KiB; 100 B per step; "
        r"[\d.]+ .?s, [\d.]+ .?s per step; `replica`: .*GB/s.*",
        note,
    ), note
    assert main(["explain", *target, *how, "--json", "local.delay=1"]) == 0
    *_, beside = json.loads(capsys.readouterr().out)["notes"]
    assert re.fullmatch(
        r"exchange of 2 workers every 100 steps: it runs beside a step, and is hidden by one of "
        r"[\d.]+ .?s or more; one of [\d.]+ .?s hides it where each device has [\d.]+ GB/s",
        beside,
    ), beside
    gradients = [t for t in found["memory"]["at_rest"] if t["kind"] == "gradient"]
    table = next(t for t in gradients if t["name"].endswith("embedding.table"))
    assert table["shape"] == [1, 256, 4]
    assert main(["compile", "--layout", layout, "--target", "cpu:8", *how]) == 0
    assert "exchange of 2 workers every 100 steps: psum(replica) 12 x" in capsys.readouterr().out


@pytest.mark.usefixtures("compiled_for_users")
@pytest.mark.parametrize(
    "name",
    only([], ["fsdp", "tensor", "zero2", "experts", "pipeline"], ["fsdp", "experts", "pipeline"]),
)
def test_only_the_exchange_crosses_slices_as_users_compile(name):
    more = EXPERTS if name == "experts" else ("model.layers=4",) if name == "pipeline" else ()
    job = local_job(with_workers(name, 2), "local.workers=2", *more)
    compiled = from_hlo(job.lowered.compile().as_text(), job.mesh)
    assert compiled and not any("replica" in c.axes for c in compiled)
    assert job.local is not None
    recorded = [c for c in job.local.exchange_program().collectives if "replica" in c.axes]
    count = len(parameters_by_name(job.state.params))
    assert [(c.operation, c.axes) for c in recorded] == [("psum", ("replica",))] * count
    text = job.local.lower_exchange().compile().as_text()
    found = [c for c in from_hlo(text, job.mesh) if "replica" in c.axes]
    assert {(c.operation, c.axes) for c in found} == {("psum", ("replica",))}
    assert sum(c.total_bytes for c in found) == sum(c.total_bytes for c in recorded)
