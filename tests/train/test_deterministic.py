"""`--deterministic`: the same bits each time, or an error."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from meshdsl import MeshDSLError
from meshdsl.train.checkpoints.manifest import read
from meshdsl.train.deterministic import FLAG, ask_for_determinism, check_deterministic
from meshdsl_cli import main
from tests.train.common import TINY

GPUS = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu")]))
CPUS = SimpleNamespace(devices=np.array([SimpleNamespace(platform="cpu")]))


def test_gpus_need_their_flag_and_a_program_that_has_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    check_deterministic(CPUS, executable=True)
    with pytest.raises(MeshDSLError, match=f"GPUs need XLA_FLAGS={FLAG} in the environment"):
        check_deterministic(GPUS, executable=False)
    ask_for_determinism()
    ask_for_determinism()
    assert os.environ["XLA_FLAGS"] == f"--xla_a=1 {FLAG}"
    check_deterministic(GPUS, executable=False)
    with pytest.raises(MeshDSLError, match="--executable was compiled with other options"):
        check_deterministic(GPUS, executable=True)


@pytest.mark.slow
def test_two_runs_have_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    digests = []
    for name in "ab":
        run = ["train", "--layout", "fsdp-tensor", "--out", str(tmp_path / name), *TINY]
        assert main([*run, "steps=6", "--deterministic", "sample.tokens=0"]) == 0
        state = read(tmp_path / name / "checkpoints/6")["state"]
        digests.append({leaf: is_["digest"] for leaf, is_ in state.items() if "digest" in is_})
    assert digests[0] == digests[1] and len(digests[0]) > 20
