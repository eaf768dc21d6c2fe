"""The command that measures on GPUs can be tried without one."""

import json

import pytest

from benchmarks import gpu, gpu_estimates, grouped_products
from tests.nightly import nightly


def test_without_a_gpu_the_command_says_so_in_a_line():
    with pytest.raises(SystemExit, match=r"^no GPU: JAX finds none; .* --platform cpu --tiny$"):
        gpu.main(["parity"])


@pytest.mark.slow
@nightly
def test_the_whole_command_runs_with_tiny_sizes(tmp_path, monkeypatch):
    """Both JAX implementations begin with the same loss; without PyTorch its rows are left out."""
    monkeypatch.setattr(gpu, "TURNS", 1)
    monkeypatch.setattr(gpu, "CHUNK", 1)
    path = tmp_path / "gpu.json"
    tiny = ["--platform", "cpu", "--tiny", "--seconds", "0.1", "--models", "llama-1.1b"]
    gpu.main([*tiny, "--out", str(path)])
    found = json.loads(path.read_text())
    assert found["parity"] and all(one["good"] for one in found["parity"].values())
    for by_name in found["speed"].values():
        ours, plain = by_name["meshdsl"], by_name["plain JAX"]
        assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-3)
        assert min(*ours["tokens_per_second"], *plain["tokens_per_second"]) > 0


@pytest.mark.slow
def test_products_of_groups_are_right_in_every_way_that_is_timed(tmp_path):
    path = tmp_path / "grouped.json"
    grouped_products.main(["--platform", "cpu", "--tiny", "--out", str(path)])
    found = json.loads(path.read_text())
    errors = [
        one["error"]
        for name, ways in found.items()
        if name not in ("device", "jax")
        for one in ways.values()
        if "error" in one
    ]
    assert len(errors) == 7 and max(errors) < 0.02


@pytest.mark.slow
def test_estimates_are_compared_with_tiny_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--platform", "cpu", "--tiny", "--steps", "2", "--workloads", "experts"]
    gpu_estimates.main([*given, "--out", "found.json"])
    steps = json.loads((tmp_path / "found.json").read_text())["steps"]
    assert [step["name"] for step in steps] == ["experts, dots", "experts, full"]
    for step in steps:
        assert min(step["seconds"], step["estimated"]["calibrated"]) > 0
        assert step["peak"] == pytest.approx(step["memory"], rel=0.5)
