"""Phases of a run: one run, whose settings change after some steps."""

import shutil

import jax
import numpy as np
import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.optimizer import make_schedule
from meshdsl.train.phases import phases_of
from meshdsl.train.settings import override, read, to_toml
from meshdsl.train.training_loop import TrainingLoop
from meshdsl.train.watch.events import read_events
from meshdsl.train.watch.goodput import goodput
from meshdsl_cli import main
from tests.train.common import SHORT, losses, records, train

pytestmark = pytest.mark.usefixtures("compiled_once")

RUN = """
layout = "fsdp"

[data.sources.short]
paths = ["short.txt"]

[data.sources.long]
paths = ["long.txt"]
weight = 0

[[phase]]
until = 3

[[phase]]
until = 6
batch = 16
model.length = 32
layout = "context"
data.sources.long.weight = 3
optimizer.learning_rate = { decay_to = 1e-5 }

[[phase]]
until = 9
batch = 8
model.length = 16
layout = "fsdp"
data.sources.long.weight = 0
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The file of a run of three phases, beside its data."""
    folder = tmp_path_factory.mktemp("phases")
    draw = np.random.default_rng(0)
    for name in ("short", "long"):
        (folder / f"{name}.txt").write_bytes(bytes(draw.integers(97, 123, 9000, np.uint8)))
    (folder / "run.toml").write_text(RUN.replace('["', f'["{folder}/'))
    return folder / "run.toml"


@pytest.fixture(scope="module")
def whole(file, compiled_once, tmp_path_factory):
    """The folder of a run that nothing disturbs, and the batches that it has read."""
    out, read_, place = tmp_path_factory.mktemp("runs") / "whole", [], Job.place

    def remember(job, arrays):
        read_.append((job, arrays))
        return place(job, arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "place", remember)
        keep = "checkpoint.every=1", "checkpoint.keep=9"
        assert train(out, str(file), *SHORT[1:-1], "proof=require", *keep)[0] == 0
    return out, read_


def test_a_run_of_phases_is_the_run_by_hand(whole):
    """Each phase by its own step, on its own batches, from the state of the phase before."""
    out, batches = whole
    by_hand, state, last = [], None, None
    for job, arrays in batches:
        if state is None:
            state = job.step.init(jax.random.key(job.config.seed))
        elif job is not last:
            structure = jax.tree.structure(job.state)
            shardings = jax.tree.leaves(job.step.shardings)
            moved = jax.device_put(jax.device_get(jax.tree.leaves(state)), shardings)
            state = jax.tree.unflatten(structure, moved)
        state, measured = job.step(state, job.place(arrays))
        by_hand.append(float(measured["loss"]))
        last = job
    assert losses(out) == by_hand
    shapes = [arrays["tokens"].shape for _, arrays in batches]
    assert shapes == [(8, 16)] * 3 + [(16, 32)] * 3 + [(8, 16)] * 3


def test_no_row_is_lost_or_read_twice(whole):
    """In the third phase `short` goes on where it was in the first one, cut as it was there."""
    rows = [row.tobytes() for _, arrays in whole[1] for row in arrays["tokens"]]
    assert len(set(rows)) == len(rows) == 3 * 8 + 3 * 16 + 3 * 8
    metrics = records(whole[0])
    assert [record["tokens"] for record in metrics] == [
        *(128, 256, 384),
        *(384 + 512 * i for i in (1, 2, 3)),
        *(1920 + 128 * i for i in (1, 2, 3)),
    ]
    assert metrics[3]["phase_seconds"] > 0


@pytest.mark.parametrize("step", [2, 3, 5, 6])
def test_a_run_goes_on_in_the_right_phase(whole, step, tmp_path, capsys):
    """After 3 and 6 steps, the last ones of a phase, it begins with the next one."""
    out = shutil.copytree(whole[0], tmp_path / "a")
    for later in range(step + 1, 10):
        shutil.rmtree(out / "checkpoints" / str(later))
    code, found = train(out, "--resume")
    assert code == 0 and found == losses(whole[0])
    now = 1 + (step >= 3) + (step >= 6)
    printed = capsys.readouterr().out
    assert printed.startswith(f"phase {now}, steps {3 * now - 2} to {3 * now}")
    assert [f"phase {n}, " in printed for n in (1, 2, 3)] == [n >= now for n in (1, 2, 3)]
    tokens = [[record["tokens"] for record in records(each)] for each in (out, whole[0])]
    assert tokens[0] == tokens[1]


def test_a_model_has_the_settings_of_the_phase_that_it_is_of(whole):
    lengths = [RunFolder(whole[0]).config_at(step).model.length for step in (3, 4, 6, 7, None)]
    assert lengths == [16, 32, 32, 16, 16]


@pytest.mark.parametrize("every", [2, 0])
def test_a_run_goes_back_to_an_earlier_phase(every, file, monkeypatch, tmp_path, capsys):
    """Where a step is not finite, and the newest checkpoint is of the phase before, or none is."""
    compiled, entered = TrainingLoop._compiled, []

    def poisoned(run):
        step = compiled(run)
        entered.append(run.now.phase.number)

        def call(state, batch):
            if entered == [1, 2]:  # in the second phase, when the run comes there
                bad = jax.tree.map(lambda x: jax.device_put(x * np.nan, x.sharding), state.params)
                state = state.replace(params=bad)
            return step(state, batch)

        return call

    monkeypatch.setattr(TrainingLoop, "_compiled", poisoned)
    words = *SHORT[1:], "guard.nonfinite=rollback", f"checkpoint.every={every}"
    code, found = train(tmp_path / "a", str(file), *words)
    assert code == 0 and len(found) == 9 and np.isfinite(found).all()
    assert f"rolled back to step {every}" in capsys.readouterr().out
    assert entered == [1, 2, 1, 2, 3]
    events = read_events(tmp_path / "a/events.jsonl")
    assert [one["phase"] for one in events if one["event"] == "phase"] == entered[1:]
    assert [one["step"] for one in events if one["event"] == "rollback"] == [every]
    assert (events[-1]["event"], events[-1]["reason"]) == ("end", "finished")
    spent = goodput(tmp_path / "a")
    assert spent.good > 0 and spent.losses["lost"] > 0 and spent.losses["phase"] > 0
    assert spent.steps == 9 and spent.lost_steps > 0


def test_a_run_does_not_go_back_for_ever(file, monkeypatch, tmp_path, capsys):
    """Also where each roll-back leads to the phase before, patience is counted through."""
    compiled = TrainingLoop._compiled

    def poisoned(run):
        step = compiled(run)
        if run.now.phase.number == 1:
            return step
        nan = lambda params: jax.tree.map(lambda x: jax.device_put(x * np.nan, x.sharding), params)
        return lambda state, batch: step(state.replace(params=nan(state.params)), batch)

    monkeypatch.setattr(TrainingLoop, "_compiled", poisoned)
    guard = "guard.nonfinite=rollback", "guard.patience=2", "checkpoint.every=2"
    assert main(["train", str(file), "--out", str(tmp_path / "a"), *SHORT[1:], *guard]) == 2
    says = capsys.readouterr()
    assert says.out.count("rolled back to step 2") == 2
    assert "the run was rolled back 2 times before (guard.patience=2)" in says.err


def test_a_phase_that_cannot_be_compiled_loses_no_step(whole, file, monkeypatch, tmp_path, capsys):
    lowered = Job.lowered.func

    def refused(job):
        if job.config.batch == 16:
            raise MeshDSLError("the compiler refuses it")
        return lowered(job)

    out, words = tmp_path / "a", [*SHORT[1:], "checkpoint.every=0"]
    with monkeypatch.context() as patch:
        patch.setattr(Job, "lowered", property(refused))
        assert main(["train", str(file), "--out", str(out), *words]) == 2
    said = capsys.readouterr()
    assert "the step of phase 2 cannot be compiled: the compiler refuses it" in said.out
    assert "the compiler refuses it" in said.err
    assert train(out, "--resume") == (0, losses(whole[0]))


def test_the_rate_falls_from_what_it_was(file):
    """And stays there: later phases have the schedule of the one before."""
    config = override(read(file, Config()), ["optimizer.learning_rate=0.01", "schedule.warmup=2"])
    first, second, third = phases_of(config)
    rates = [
        float(make_schedule(phase.config.schedule, 0.01, 9)(step))
        for phase in (first, second, third)
        for step in range(phase.before, phase.until)
    ]
    falls = np.linspace(rates[2], 1e-5, 4)[1:]
    np.testing.assert_allclose(rates[3:6], falls, rtol=1e-5)
    np.testing.assert_allclose(rates[6:], 1e-5, rtol=1e-5)
    assert second.changes == (
        *("layout=context.toml", "batch=16", "model.length=32"),
        *("data.sources.long.weight=3.0", "the learning rate falls to 1e-05"),
    )
    again = override(config, ["phase=[{until=3}, {optimizer.learning_rate=1e-3}]", "steps=9"])
    assert phases_of(again)[1].config.optimizer.learning_rate == 1e-3


def test_a_file_of_phases_is_written_and_read_again(file, tmp_path):
    path = tmp_path / "again.toml"
    for config in (read(file, Config()), override(Config(), ["phase=[{until=9}]"])):
        path.write_text(to_toml(config))
        assert read(path, Config()) == config and config.steps == 9


BAD = {
    "[{}, {until=9}]": "phase 1: `until`, the last step of the phase, is missing",
    "[{until=5}, {until=5}]": "phase 2: until=5, and phase 1 ends with step 5",
    "[{until=0}]": "phase 1: until=0, and steps count from 1",
    '[{until="9"}]': "phase 1: `until`, the last step of the phase, = 9: expected a whole number",
    "[{until=5}, {until=9, seed=1}]": "phase 2: `seed` is one for all phases of a run; set it "
    "outside of them",
    "[{until=5}, {until=9, model.lenght=8}]": "phase 2: no setting `model.lenght`; did you mean "
    "`model.length`?",
    "[{until=5}, {data.sources.web.weight=1}]": "phase 2: there is no dataset `web`",
    "[{until=5}, {optimizer.learning_rate={decay=1}}]": "phase 2: optimizer.learning_rate: "
    "expected a number, or { decay_to = NUMBER }, to which the rate falls until the end of the "
    "phase",
    "[{optimizer.learning_rate={decay_to=1}}]": "phase 1: optimizer.learning_rate: the first phase "
    "has no rate to fall from",
    '[{until=5}, {model.family="vit"}]': "phase 2: `model.family` is one for all phases of a run; "
    "set it outside of them",
}


@pytest.mark.parametrize(("phases", "says"), BAD.items(), ids=range(len(BAD)))
def test_bad_phases_are_one_line(phases, says):
    with pytest.raises(MeshDSLError) as error:
        phases_of(override(Config(), [f"phase={phases}"]))
    assert str(error.value) == says


def test_two_ends_of_a_run_are_refused():
    with pytest.raises(MeshDSLError, match="steps=7: the last phase ends with step 9; leave out"):
        override(Config(), ["phase=[{until=9}]", "steps=7"])


REFUSED = {
    "[{until=5}, {until=9, model.d_model=32}]": "phase 2: its model or optimizer has another state "
    "than the phase before: `params.embedding.table`",
    '[{until=5}, {until=9, layout="nothing"}]': "phase 2: layout nothing: no such file, and no "
    "shipped layout",
    "[{until=5}, {until=9, batch=12}]": "phase 2: layout fsdp.toml, rule 1: batch -> data: "
    "`batch`=12 does not divide over `data`=8",
    '[{until=5}, {until=9, optimizer.name="sgd"}]': "phase 2: its model or optimizer has another "
    "state than the phase before",
    "[{until=5}, {until=9, data.sources.text.weight=0}]": "data: the weights of all datasets "
    "are 0, so nothing would be read",
}


@pytest.mark.parametrize(("phases", "says"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_a_phase_cannot_train_is_said_before_anything_is_written(
    phases, says, text, tmp_path, capsys
):
    words = [*SHORT, "--layout", "fsdp", "--data", text, f"phase={phases}"]
    assert main(["train", "--out", str(tmp_path / "a"), *words]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_what_is_of_one_step_is_not_for_a_run_of_phases(file, tmp_path, capsys):
    assert main(["train", str(file), "--out", str(tmp_path / "a"), *SHORT, "--ledger"]) == 2
    assert "--ledger: is of one step, and this run has 3 phases" in capsys.readouterr().err
