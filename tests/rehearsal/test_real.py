"""A drawn trace meets a real run: it is predicted, measured, and changes no loss."""

import json

import pytest

from meshdsl_cli import main
from tests.train.common import losses, train
from tests.train.test_kill_matrix import TINY, environment

STEPS = 120
# The first fault of this trace comes while the run starts, the second one long after its end.
SEED = 235


@pytest.mark.slow
def test_a_trace_is_met_for_real(tmp_path, text, monkeypatch, capsys):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    run = ["--data", text, "--layout", "fsdp", *TINY, f"steps={STEPS}"]
    code, alone = train(tmp_path / "alone", *run, "--devices", "2")
    assert code == 0
    settings = "\n".join(
        ['layout = "fsdp"', f"steps = {STEPS}", "[data.sources.text]", f'paths = ["{text}"]']
    )
    (tmp_path / "run.toml").write_text(settings)
    words = ["rehearse", str(tmp_path / "run.toml"), "--real", str(tmp_path / "real"), *TINY]
    faults = ["--faults", "mtbf=50h", "--scale", "300", "--seed", str(SEED)]
    capsys.readouterr()
    assert main([*words, *faults, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert losses(tmp_path / "real/run") == alone
    assert found["predicted"]["faults"] == found["measured"]["faults"] == 1
    for which in ("predicted", "measured"):
        assert 0 < found[which]["goodput"] < 1
        assert found[which]["seconds"] > found[which]["work"] > 0
