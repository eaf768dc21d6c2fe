"""Two processes of four devices save and restore as one of eight, each what the other wrote."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl.train.checkpoints.tree_leaves import named_arrays
from tests.train.checkpoints.states import (
    FSDP,
    TENSOR,
    assert_equal,
    make_state,
    opened,
)

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def together(run, act):
    """What each of two processes prints."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.train.checkpoints.one_process", port]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(
            [*command, str(index), str(run), act],
            cwd=ROOT,
            env=os.environ | {"TPU_SKIP_MDS_QUERY": "1"},
            **pipes,
        )
        for index in range(2)
    ]
    found = []
    for process in started:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        found.append(json.loads(out.splitlines()[-1]))
    return found


def digests_of(seed):
    """Those of a state as one process has it."""
    return np.asarray(digests(named_arrays(make_state(FSDP, seed=seed)))).tolist()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    one, two = together(folder, "save")
    assert one == two
    return folder, one


def test_two_processes_save_what_one_would_keep_the_newest_and_agree_when_to_save(run):
    folder, saved = run
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "6"]
    assert (saved["latest"], saved["digests"]) == (6, digests_of(6))
    assert saved["due"].count(True) >= 1
    assert not verify(folder / "checkpoints" / "6")


def test_one_process_reads_under_another_layout_what_two_wrote(run):
    found, _, data = opened(run[0]).restore(make_state(TENSOR))
    assert_equal(found, make_state(FSDP, seed=6))
    assert data == {"next_index": 6}


def test_all_processes_pass_over_what_one_of_them_cannot_read(run):
    one, two = together(run[0], "restore")
    assert one == two
    assert one["said"] == [
        (
            "the checkpoint of step 6 is damaged: `params.up` cannot be read: a broken disk; "
            "using step 4"
        )
    ]
    assert one["digests"] == digests_of(4)
