"""A run that goes on gets another layout: `relayout.toml`, and `meshdsl train --relayout`."""

import shutil
import threading
import time

import numpy as np
import pytest

from meshdsl.commands.relayout import change_layout
from meshdsl.errors import MeshDSLError
from meshdsl.train import relayout
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import Stopping
from meshdsl.train.phases import phases_of
from meshdsl.train.relayout import read_table
from meshdsl.train.settings import override
from meshdsl.train.watch import Watch
from meshdsl_cli import main
from meshdsl_cli.parser import parse
from tests.train.common import SHORT, losses, train
from tests.train.test_two_processes import run_in_two

pytestmark = pytest.mark.usefixtures("compiled_once")
KEEP = "steps=6", "checkpoint.every=1", "checkpoint.keep=9"
CHANGE = 'layout = "context"\nbatch = 16\nmodel.remat = "full"\n'
PHASES = "phase=[{until=3}, {layout='context', batch=16, model.remat='full'}]"


@pytest.fixture
def words(text):
    return ["--data", text, "--layout", "fsdp", "--devices", "8", *SHORT, *KEEP]


@pytest.fixture
def in_step(monkeypatch):
    """`in_step(3, call)` calls something in step 3 of a run, which waits until it has an effect."""
    monkeypatch.setattr(relayout, "_LOOK", 0.02)
    step, ask = Watch.step, Stopping.ask
    calls, asked = {}, threading.Event()
    monkeypatch.setattr(Stopping, "ask", lambda stop, why: (ask(stop, why), asked.set()))

    def watched(watch, number, measured, tell=True):
        if number in calls:
            refused = calls.pop(number)() / "relayout-refused.toml"
            while not (asked.is_set() or refused.exists()):
                time.sleep(0.01)
            asked.clear()
        return step(watch, number, measured, tell)

    monkeypatch.setattr(Watch, "step", watched)
    return calls.__setitem__


def written(folder, text=CHANGE):
    (folder / "relayout.toml").write_text(text)
    return folder


def test_a_run_changes_as_one_with_a_phase_would(words, in_step, tmp_path, capsys):
    out, other = tmp_path / "a", tmp_path / "b"
    in_step(3, lambda: written(out))
    code, found = train(out, *words)
    said = capsys.readouterr().out
    assert code == 0 and "phase 2, steps 4 to 6: layout=context.toml, batch=16" in said
    assert (0, found) == train(other, *words, PHASES)
    assert not (out / "relayout.toml").exists() and (out / "relayout-3.toml").exists()
    # Whoever goes on does so as the run did, with the words of its command line too.
    for steps in (4, 2):  # after the change, and before it
        for later in range(steps + 1, 7):
            shutil.rmtree(out / "checkpoints" / str(later))
        assert train(out, "--resume", *words) == (0, found)
    batches = [RunFolder(out).config_at(step).batch for step in (3, 4, None)]
    assert batches == [8, 16, 16]


@pytest.mark.slow
def test_two_changes_and_a_phase(words, in_step, tmp_path):
    """What was changed first holds for the second, and for a phase that says nothing else."""
    out, phases = tmp_path / "a", "phase=[{until=4}, {model.remat='none'}]"
    in_step(1, lambda: written(out, CHANGE))
    in_step(3, lambda: written(out, 'layout = "zero1"\n'))
    in_step(5, lambda: written(out, 'layout = "fsdp"\n'))
    code, found = train(out, *words, phases)
    by_hand = (
        "phase=[{until=1}, {until=3, layout='context', batch=16, model.remat='full'}, "
        "{until=4, layout='zero1'}, {until=5, model.remat='none'}, {layout='fsdp'}]"
    )
    assert (code, found) == train(tmp_path / "b", *words, by_hand)
    assert [step for step, _ in RunFolder(out).relayouts()] == [1, 3, 5]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("layout = ", "not TOML: "),
        ("batch = 9", "`batch`=9 does not divide over `data`=8"),
        ("model.d_model = 32", "its model or optimizer has another state than the phase before"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_run_goes_on(
    wanted, why, words, in_step, tmp_path, capsys
):
    out = tmp_path / "a"
    in_step(2, lambda: written(out, wanted))
    code, found = train(out, *words[:-2], "steps=3")
    said = capsys.readouterr().out
    assert code == 0 and len(found) == 3 and "relayout.toml is refused: " in said and why in said
    reason = (out / "relayout-refused.toml").read_text().splitlines()[0]
    assert reason.startswith("# ") and why in reason
    assert not (out / "relayout.toml").exists() and not RunFolder(out).relayouts()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("", 'it is empty; expected what changes, such as layout = "fsdp"'),
        ('layout = "nothing"', "nothing"),
        ("optimizer.learning_rate = 1", "`optimizer.learning_rate` is planned before a run"),
        ("until = 7", "`until` is planned before a run, in a .*phase.* of its file"),
        ("seed = 1", "`seed` is one for all phases of a run; set it outside of them"),
    ],
)
def test_what_a_run_cannot_change(wanted, why):
    with pytest.raises(MeshDSLError, match=why):
        read_table(wanted)


def test_a_command_tells_a_run_and_waits(words, in_step, tmp_path, capsys):
    out, codes = tmp_path / "a", []
    line = parse(["train", "--relayout", "--out", str(out), "--layout", "zero1", "batch=16"])

    def tell():
        thread = threading.Thread(target=lambda: codes.append(change_layout(line.arguments)))
        thread.start()
        told.append(thread)
        return out

    told = []
    in_step(4, tell)
    assert train(out, *words)[0] == 0
    told[0].join(60)
    assert codes == [0] and "changed after step 4: " in capsys.readouterr().out
    table = read_table((out / "relayout-4.toml").read_text())
    assert table["batch"] == 16 and table["layout"]["name"] == "layout zero1.toml"


def test_mistakes_of_the_command(words, tmp_path, capsys):
    out = tmp_path / "a"
    tell = ["train", "--relayout", "--out", str(out), "--layout", "fsdp"]

    def says(*more):
        assert main([*more]) == 2
        return capsys.readouterr().err

    assert "there is no run in" in says(*tell)
    assert train(out, *words[:-2], "steps=1")[0] == 0
    assert "no process trains in" in says(*tell)
    assert "goes with --out, --layout and settings, not with steps" in says(*tell, "--steps", "3")
    assert "say which run, with --out" in says("train", "--relayout", "--layout", "fsdp")
    assert "planned before a run" in says(*tell, "schedule.warmup=3")
    assert "did you mean `batch`?" in says(*tell, "bach=3")
    assert not (out / "relayout.toml").exists()


def test_a_file_of_a_change_that_is_damaged_is_named(tmp_path):
    (tmp_path / "relayout-3.toml").write_bytes(b"layout = \xff")
    with pytest.raises(MeshDSLError, match="relayout-3.toml: not TOML: "):
        RunFolder(tmp_path).relayouts()


def test_a_change_at_the_begin_of_a_phase_is_of_that_phase():
    config = override(Config(), ["steps=9", "phase=[{until=4}, {batch=64}]"])
    phases = phases_of(config, [(4, {"batch": 128, "layout": "fsdp"})])
    assert [(each.before, each.until, each.config.batch) for each in phases] == [
        (0, 4, config.batch),
        (4, 9, 128),
    ]
    assert [each.number for each in phases] == [1, 2] and phases[1].config.layout == "fsdp"
    with pytest.raises(MeshDSLError, match="batch=0"):
        phases_of(config, [(2, {"batch": 0})])


IN_TWO = """
import threading, time
from pathlib import Path
from meshdsl import hosts
from meshdsl.train import relayout
from meshdsl.train.interrupt import Stopping
from meshdsl.train.watch import Watch
from meshdsl_cli import main

relayout._LOOK = 0.02
out, step, ask, asked = Path({out!r}), Watch.step, Stopping.ask, threading.Event()
Stopping.ask = lambda stop, why: (ask(stop, why), asked.set())

def watched(watch, number, measured, tell=True):
    if number == 3 and hosts.first() and not asked.is_set():
        (out / "relayout.toml").write_text({change!r})
        asked.wait()
    return step(watch, number, measured, tell)

Watch.step = watched
assert main(["train", "--out", {out!r}, *{words}]) == 0
"""


@pytest.mark.slow
def test_two_processes_change_after_the_same_step(words, tmp_path):
    out, words = tmp_path / "a", [*words[:3], "fsdp", *words[6:], "steps=9"]
    run_in_two(IN_TWO.format(out=str(out), change=CHANGE, words=words))
    (step,) = (step for step, _ in RunFolder(out).relayouts())
    assert 3 <= step < 9
    phases = PHASES.replace("until=3", f"until={step}")
    code, found = train(tmp_path / "b", *words, "--devices", "8", phases)
    assert code == 0
    np.testing.assert_allclose(losses(out), found, rtol=1e-5)
