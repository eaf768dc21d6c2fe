"""A disk that gets full while a run saves: one error, whole checkpoints, and the run goes on.

The disk is a small one in memory, which takes the rights of an administrator; the test is skipped
where these are missing.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl_cli import main
from tests.train.common import losses
from tests.train.test_kill_matrix import TINY


@pytest.fixture
def disk(tmp_path):
    """A folder on a file system of 16 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("to mount a file system needs an administrator")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_loses_nothing(disk, text):
    run = disk / "run"
    settings = ["--data", text, "--layout", "data", "--devices", "2", *TINY]
    words = ["train", "--out", str(run), *settings, "schedule.shape=constant", "steps=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshdsl_cli", *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not any(step >= 3 for step in saved_steps(run / "checkpoints")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(2**16))
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    lines = [line for line in said.splitlines() if line]
    assert process.returncode == 2 and len(lines) == 1 and lines[0].startswith("meshdsl train: "), (
        said
    )
    assert "No space left on device" in said or "cannot be written" in said, said
    kept = saved_steps(run / "checkpoints")
    assert kept and [verify(run / "checkpoints" / str(step)) for step in kept] == [""] * len(kept)

    (disk / "filler").unlink()
    goes_on = ["train", "--resume", "--out", str(run), f"steps={kept[-1] + 2}", "--devices", "2"]
    assert main(goes_on) == 0
    assert len(losses(run)) == kept[-1] + 2
