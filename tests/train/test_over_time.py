"""Losses and checkpoints of before: this version has the losses and reads the checkpoints.

Losses are those of a file for each version of JAX, to 1e-5: kinds of CPUs round differently, and
each step adds to it. `python -m tests.train.over_time` writes the file of the installed version.
"""

import json
import shutil

import pytest

from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl_cli import main
from tests.helpers import only
from tests.train.common import losses
from tests.train.over_time import LAYOUTS, RUNS, file_of_losses, losses_of, write_text


@pytest.mark.parametrize("layout", only([], LAYOUTS, ["fsdp-tensor"]))
def test_a_hundred_steps_have_the_losses_that_they_had(layout, tmp_path):
    if not file_of_losses().exists():
        pytest.skip(f"no losses are kept for this version of JAX: {file_of_losses().name}")
    expected = json.loads(file_of_losses().read_text())[layout]
    assert losses_of(layout, tmp_path) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("run", sorted(RUNS.iterdir()), ids=lambda path: path.name)
def test_a_run_of_an_earlier_version_goes_on(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    expected = losses(tmp_path / "run")
    text = write_text(tmp_path / "text.txt")
    assert verify(tmp_path / "run/checkpoints/2") == ""
    resume = [
        "train",
        "--resume",
        "--out",
        str(tmp_path / "run"),
        f"data.sources.text.paths={text}",
    ]
    assert main(resume) == 0
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    assert main(["checkpoint", "verify", str(tmp_path / "run")]) == 0
