"""A drawn trace meets a real run: it is predicted, measured, and changes no loss."""

import json

import pytest

from meshdsl.rehearsal.launched import Launched
from meshdsl.train.folder import RunFolder
from meshdsl_cli import main
from tests.train.common import losses
from tests.train.test_kill_matrix import TINY, environment

STEPS = 60
# The first fault of this trace comes while the run starts, the second one long after its end.
SEED = 235


@pytest.mark.slow
def test_a_trace_is_met_for_real(tmp_path, text, monkeypatch, capsys):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    settings = [f"steps = {STEPS}", 'layout = "fsdp"', f'data.sources.text.paths = ["{text}"]']
    config = tmp_path / "run.toml"
    config.write_text("\n".join(settings))
    alone = Launched(["train", str(config), *TINY], 1, 2, RunFolder(tmp_path / "alone"))
    with alone.started() as process:
        assert process.wait() == 0, alone.last_line()
    words = ["rehearse", str(config), "--real", str(tmp_path / "real"), *TINY, "--json"]
    assert main([*words, *f"--faults mtbf=50h --scale 300 --seed {SEED}".split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert losses(tmp_path / "real/run") == losses(tmp_path / "alone")
    assert found["predicted"]["faults"] == found["measured"]["faults"] == 1
    for which in ("predicted", "measured"):
        assert 0 < found[which]["goodput"] < 1
        assert found[which]["seconds"] > found[which]["work"] > 0
        assert found[which]["losses"]["start"] > 0
