"""What `guard.nonfinite` does, in real runs: one step gets parameters that are NaN."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl_cli as cli
from meshdsl.train.job import Job
from meshdsl.train.step import TrainStep
from meshdsl.train.training_loop import TrainingLoop
from tests.train.common import losses

TINY = [
    "model.d_model=16",
    "model.layers=1",
    "model.heads=2",
    "model.d_ff=16",
    "model.length=16",
    "model.dropout=0.1",
    "batch=4",
    "steps=6",
    "schedule.warmup=2",
    "validation.batches=1",
    "sample.tokens=0",
    "--layout",
    "fsdp",
    "--devices",
    "2",
]


@pytest.fixture
def placed(monkeypatch):
    """The tokens of all batches that were trained on, in order."""
    seen, place = [], Job.place

    def remember(job, arrays):
        seen.append(np.asarray(arrays["tokens"]))
        return place(job, arrays)

    monkeypatch.setattr(Job, "place", remember)
    return seen


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """The runs differ in nothing that is compiled but what a step does where it is not finite."""
    # All of them: a run that is the first to ask for some gets no more, as do the tests after it.
    jax.devices()
    steps, first, compiled = {}, [], TrainingLoop._compiled

    def step(run):
        policy = run.job.config.guard.nonfinite == "skip"
        return steps.get(policy) or steps.setdefault(policy, compiled(run))

    def init(self, key):
        first[:] = first or [jax.jit(self._first_state, out_shardings=self.shardings)]
        return first[0](key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "_compiled", step)
        patch.setattr(TrainStep, "init", init)
        yield


@pytest.fixture
def poison(monkeypatch):
    """Makes the parameters NaN that the compiled step gets in the given ones of its calls."""
    compiled = TrainingLoop._compiled

    def at(*numbers):
        def poisoned(run):
            step, calls = compiled(run), iter(range(1, 100))

            def call(state, batch):
                if next(calls) not in numbers:
                    return step(state, batch)
                good = jax.tree.map(jnp.copy, state)
                bad = jax.tree.map(lambda x: jax.device_put(x * jnp.nan, x.sharding), state.params)
                state, measured = step(state.replace(params=bad), batch)
                assert not np.isfinite(measured["loss"])
                if "skipped" in measured:  # nothing has changed: what is NaN was given
                    jax.tree.map(np.testing.assert_array_equal, state.opt_state, good.opt_state)
                    state = state.replace(params=good.params)
                return state, measured

            return call

        monkeypatch.setattr(TrainingLoop, "_compiled", poisoned)

    return at


def train(out, *words):
    """The exit code, and the losses of all steps, each of which has one record."""
    code = cli.main(["train", "--out", str(out), *words])
    return code, losses(out)


def assert_saved(folder, batches):
    """These batches, and no others, are in files of the folder."""
    assert {path.name for path in folder.glob("nonfinite-*")} == set(batches)
    for name, tokens in batches.items():
        np.testing.assert_array_equal(np.load(folder / name)["tokens"], tokens)


def assert_all_differ(batches):
    assert len({batch.tobytes() for batch in batches}) == len(batches)


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """The losses of a run in which all is well."""
    return train(tmp_path_factory.mktemp("whole") / "run", "--data", text, *TINY)[1]


def test_a_roll_back_goes_on_from_the_newest_checkpoint_with_other_batches(
    text, expected, placed, poison, tmp_path, capsys
):
    poison(3)  # seen when step 4 has begun; batches 5 to 8 lead from step 2 to 6
    code, losses = train(
        tmp_path / "a", "--data", text, *TINY, "checkpoint.every=2", "guard.nonfinite=rollback"
    )
    assert code == 0 and len(losses) == 6 and all(map(math.isfinite, losses))
    assert losses[:2] == expected[:2] and losses[2] != expected[2]
    assert "rolled back to step 2; " in capsys.readouterr().out
    assert len(placed) == 8
    assert_all_differ(placed)
    assert_saved(tmp_path / "a", {"nonfinite-3.npz": placed[2]})


def test_roll_backs_to_the_first_state_and_from_the_step_that_was_to_be_saved(
    text, placed, poison, tmp_path, capsys
):
    # The one is seen when step 3 has begun; the other, in the third step from the start with
    # batch 4, before its checkpoint.
    poison(2, 6)
    code, losses = train(
        tmp_path / "a", "--data", text, *TINY, "checkpoint.every=3", "guard.nonfinite=rollback"
    )
    assert code == 0 and len(losses) == 6 and all(map(math.isfinite, losses))
    assert capsys.readouterr().out.count("rolled back to step 0; ") == 2
    assert len(placed) == 3 + 3 + 6
    assert_all_differ(placed)
    assert_saved(tmp_path / "a", {"nonfinite-2.npz": placed[1], "nonfinite-3.npz": placed[5]})


def test_a_skipped_step_changes_nothing_and_the_run_goes_on(
    text, expected, placed, poison, tmp_path
):
    poison(3)
    code, losses = train(tmp_path / "a", "--data", text, *TINY, "guard.nonfinite=skip")
    assert code == 0 and [math.isfinite(loss) for loss in losses] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    np.testing.assert_allclose(losses[:2], expected[:2], rtol=1e-6)
    assert losses[3] != expected[3]
    assert len(placed) == 6
    assert_all_differ(placed)
    assert_saved(tmp_path / "a", {"nonfinite-3.npz": placed[2]})


def test_a_run_that_stops_can_go_on_from_its_newest_checkpoint(
    text, expected, placed, poison, tmp_path, capsys
):
    poison(3)
    assert train(tmp_path / "a", "--data", text, *TINY, "checkpoint.every=2")[0] == 2
    assert "step 3: loss nan, gradient norm nan; its batch is in" in capsys.readouterr().err
    assert_saved(tmp_path / "a", {"nonfinite-3.npz": placed[2]})
    poison()
    code, losses = train(tmp_path / "a", "--resume")
    assert code == 0 and losses == expected
