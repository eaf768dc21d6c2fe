"""A folder without room, losses that are not finite, steps that never end."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from meshdsl import MeshDSLError, hosts
from meshdsl.train import watchdog
from meshdsl.train.config import Guard
from meshdsl.train.folder import check_folder
from meshdsl.train.nonfinite import NonfiniteGuard
from meshdsl.train.watchdog import HUNG, Watchdog

# -- the folder ------------------------------------------------------------------------------------


def test_a_folder_that_can_be_made_is_left_alone(tmp_path):
    check_folder(tmp_path / "runs" / "a", 1000)
    check_folder(tmp_path, 1000)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MeshDSLError, match=r"file/a: cannot be written: .*file: Not a directory"):
        check_folder(tmp_path / "file" / "a", 0)
    with pytest.raises(MeshDSLError, match=r"^/proc/run: cannot be written: /proc: "):
        check_folder(Path("/proc/run"), 0)


def test_a_full_disk_is_an_error_that_says_how_much_is_missing(tmp_path):
    need = r"the checkpoints that are kept there need 1024.00 PiB, and [\d.]+ \wiB are free; "
    with pytest.raises(MeshDSLError, match=need + "set less checkpoint.keep"):
        check_folder(tmp_path, 2**60)


# -- what is not finite ----------------------------------------------------------------------------


def run(path, bad, steps=6, **settings):
    """Train with a bad batch at the steps `bad`.

    Returns the verdicts, each one step late as in the loop.
    """
    judge = NonfiniteGuard(Guard(**settings), path)
    record, verdicts = [], []
    for number in range(1, steps + 1):
        tokens = np.full((2, 4), -1 if number in bad else number, np.int32)
        judge.keep(number, {"tokens": tokens, "targets": tokens + 1})
        before, infinite = record, float("inf") if number in bad else 1.0
        record = [{"step": number, "loss": -infinite, "gradient_norm": infinite}]
        if settings.get("nonfinite") == "skip":  # as the compiled step does it
            record[0]["skipped"] = float(number in bad)
        verdicts.append(judge.judge(before))
        if verdicts[-1] == "rollback":
            record = []
    return [*verdicts, judge.judge(record)]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_by_default_a_loss_that_is_not_finite_stops_the_run_and_its_batch_is_saved(tmp_path):
    with pytest.raises(MeshDSLError) as error:
        run(tmp_path, bad=(4,))
    assert str(error.value) == (
        "step 4: loss -inf, gradient norm inf; its batch is in "
        f"{tmp_path}/nonfinite-4.npz; to go on from the newest checkpoint: "
        f"meshdsl train --resume --out {tmp_path}, with guard.nonfinite=skip, "
        "guard.nonfinite=rollback or a lower optimizer.learning_rate"
    )
    batch = np.load(tmp_path / "nonfinite-4.npz")
    assert (batch["tokens"] == -1).all() and (batch["targets"] == 0).all()
    assert batch["tokens"].shape == (2, 4)


def test_a_gradient_that_is_not_finite_stops_the_run_too(tmp_path):
    with pytest.raises(MeshDSLError, match=r"step 3: loss 1, gradient norm nan; to go on"):
        NonfiniteGuard(Guard(), tmp_path).judge(
            [{"step": 3, "loss": 1.0, "gradient_norm": float("nan")}]
        )


def test_a_roll_back_passes_over_the_batch_and_roll_backs_end(tmp_path):
    assert run(tmp_path, bad=(3,), nonfinite="rollback").count("rollback") == 1
    said = r"step 5: .* the run was rolled back 1 times before \(guard.patience=1\)"
    with pytest.raises(MeshDSLError, match=said):
        run(tmp_path, bad=(2, 5), nonfinite="rollback", patience=1)
    assert files(tmp_path) == ["nonfinite-2.npz", "nonfinite-3.npz", "nonfinite-5.npz"]


def test_a_step_that_fails_again_has_a_file_of_its_own(tmp_path):
    for _ in range(2):
        with pytest.raises(MeshDSLError):
            run(tmp_path, bad=(2,))
    assert files(tmp_path) == ["nonfinite-2-2.npz", "nonfinite-2.npz"]


def test_skipped_steps_are_saved_and_too_many_in_a_row_stop_the_run(tmp_path):
    assert set(run(tmp_path, bad=(2, 3, 5), nonfinite="skip", patience=3)) == {"go"}
    assert files(tmp_path) == ["nonfinite-2.npz", "nonfinite-3.npz", "nonfinite-5.npz"]
    said = (
        r"step 4: .* the last of 3 steps in a row that were skipped \(guard.patience=3\); "
        "its batch is in .*nonfinite-4.npz"
    )
    with pytest.raises(MeshDSLError, match=said):
        run(tmp_path, bad=(2, 3, 4), nonfinite="skip", patience=3)


def test_a_loss_scale_that_is_looked_for_saves_no_batches(tmp_path):
    judge = NonfiniteGuard(Guard(nonfinite="skip"), tmp_path, dynamic=True)
    judge.keep(1, {"tokens": np.zeros((1, 1), np.int32)})
    metrics = {"step": 1, "loss": 1.0, "gradient_norm": float("inf"), "skipped": 1.0}
    assert judge.judge([metrics]) == "go" and not files(tmp_path)


def test_each_process_saves_its_own_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "count", lambda: 2)
    monkeypatch.setattr(hosts, "index", lambda: 1)
    with pytest.raises(MeshDSLError, match=r"nonfinite-2-process-1.npz"):
        run(tmp_path, bad=(2,))
    assert (tmp_path / "nonfinite-2-process-1.npz").exists()


# -- steps that never end --------------------------------------------------------------------------


def test_a_step_that_hangs_is_reported_with_its_stack_and_ends_the_process(tmp_path):
    program = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from meshdsl.train.watchdog import Watchdog

        def a_step_that_hangs():
            time.sleep(60)

        with Watchdog(0.3 / 60, Path({str(tmp_path)!r})) as dog:
            for step in (1, 2, 3, 4):
                time.sleep(0.15)
                dog.beat(step)
            a_step_that_hangs()
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == HUNG == 75
    for report in (ended.stderr, (tmp_path / "hang-0.txt").read_text()):
        assert "process 0: nothing has come after step 4 for 0.005 minutes (guard.tim" in report
        assert "in a_step_that_hangs" in report and "exit code 75" in report


@pytest.mark.parametrize(("factor", "ends"), [(1000, False), (1, True)])
def test_until_its_first_beat_a_watchdog_is_more_patient(factor, ends, tmp_path, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(Watchdog, "_end", lambda self: (ended.set(), self._over.set()))
    monkeypatch.setattr(watchdog, "_FIRST", factor)
    with Watchdog(0.4 / 60, tmp_path) as dog:
        assert ended.wait(0.7) == ends
        if not ends:
            dog.beat(1)
            assert ended.wait(5), "the first beat ends the patience at once"


def test_an_orderly_end_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(Watchdog, "_end", lambda self: (tmp_path / "ended").touch())
    for minutes in (0.0, 1.0):
        with Watchdog(minutes, tmp_path) as dog:
            dog.beat(1)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def exits(monkeypatch):
    """The exit codes of the processes that a watchdog ends."""
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(watchdog, "_TELLING", 0.3)
    return codes


def test_a_file_system_that_hangs_does_not_keep_the_process_alive(exits, tmp_path, capsys):
    os.mkfifo(tmp_path / "hang-0.txt")  # nobody reads it: whoever opens it waits
    Watchdog(1.0, tmp_path)._end()
    assert exits == [HUNG]
    assert "in test_a_file_system_that_hangs" in capsys.readouterr().err
    os.close(os.open(tmp_path / "hang-0.txt", os.O_RDONLY | os.O_NONBLOCK))


class Broken:
    def write(self, said):
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [None, Broken()])
def test_a_broken_stderr_does_not_keep_the_process_alive(stderr, exits, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    Watchdog(1.0, tmp_path)._end()
    assert exits == [HUNG]
    assert "in test_a_broken_stderr" in (tmp_path / "hang-0.txt").read_text()


def test_whatever_fails_the_process_ends(exits, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "index", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # only here, where the process lives on
        Watchdog(1.0, tmp_path)._end()
    assert exits == [HUNG]
