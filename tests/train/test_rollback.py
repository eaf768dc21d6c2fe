"""What `guard.nonfinite` does, in real runs: one step gets parameters that are NaN."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshdsl.train.job import Job
from meshdsl.train.step import TrainStep
from meshdsl.train.training_loop import TrainingLoop
from tests.train.common import SHORT, train

SIX = [*SHORT, "steps=6", "--layout", "fsdp", "--devices", "2"]


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


def assert_saved(folder, batches):
    """These batches, and no others, are in files of the folder."""
    assert {path.name for path in folder.glob("nonfinite-*")} == set(batches)
    for name, tokens in batches.items():
        np.testing.assert_array_equal(np.load(folder / name)["tokens"], tokens)


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """The losses of a run in which all is well."""
    return train(tmp_path_factory.mktemp("whole") / "run", "--data", text, *SIX)[1]


# What is poisoned, the settings, the step that the run goes back to, how many batches are trained
# on, and which of them are saved.
CASES = {
    # Seen when step 4 has begun; batches 5 to 8 lead from step 2 to 6.
    "the newest checkpoint": ((3,), "rollback", 2, 2, 8, {"nonfinite-3.npz": 2}),
    # The one is seen when step 3 has begun; the other, in the third step from the start with
    # batch 4, before its checkpoint.
    "the first state, twice": (
        *((2, 6), "rollback", 3, 0, 12),
        {"nonfinite-2.npz": 1, "nonfinite-3.npz": 5},
    ),
    "nowhere, for the step is skipped": ((3,), "skip", 200, None, 6, {"nonfinite-3.npz": 2}),
}


@pytest.mark.parametrize(
    "poisoned, guard, every, back, batches, kept", CASES.values(), ids=CASES.keys()
)
def test_a_run_goes_back_and_on_with_other_batches(
    text, expected, placed, poison, tmp_path, capsys, poisoned, guard, every, back, batches, kept
):
    poison(*poisoned)
    words = (*SIX, f"checkpoint.every={every}", f"guard.nonfinite={guard}")
    code, losses = train(tmp_path / "a", "--data", text, *words)
    finite = [guard == "rollback" or step not in poisoned for step in range(1, 7)]
    assert code == 0 and [*map(math.isfinite, losses)] == finite
    said = capsys.readouterr().out.count(f"rolled back to step {back}; ")
    assert said == (len(poisoned) if guard == "rollback" else 0)
    if poisoned == (3,):
        np.testing.assert_allclose(losses[:2], expected[:2], rtol=1e-6)
        assert losses[3] != expected[3]
    assert len(placed) == len({batch.tobytes() for batch in placed}) == batches
    assert_saved(tmp_path / "a", {name: placed[i] for name, i in kept.items()})


def test_a_run_that_stops_can_go_on_from_its_newest_checkpoint(
    text, expected, placed, poison, tmp_path, capsys
):
    poison(3)
    assert train(tmp_path / "a", "--data", text, *SIX, "checkpoint.every=2")[0] == 2
    assert "step 3: loss nan, gradient norm nan; its batch is in" in capsys.readouterr().err
    assert_saved(tmp_path / "a", {"nonfinite-3.npz": placed[2]})
    poison()
    code, losses = train(tmp_path / "a", "--resume")
    assert code == 0 and losses == expected
