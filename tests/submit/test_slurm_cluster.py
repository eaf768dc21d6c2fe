"""What `meshdsl submit slurm` gives to a real SLURM of three nodes on this machine."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from meshdsl.train.checkpoints.folders import newest_step
from meshdsl.train.watch.metrics_file import last_line
from tests.submit.slurm_cluster import Slurm, missing
from tests.train.common import TINY, losses, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "SLURM is here"),
]
SETTINGS = [*TINY, "checkpoint.every=5", "schedule.shape=constant", "proof=off"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Slurm(tmp_path_factory.mktemp("slurm"), 3)
    try:
        found.start()
        yield found
    finally:
        found.close()


def submit(cluster, folder, text, steps, *flags):
    """The number of the job."""
    (folder / "my.toml").write_text(f'[data.sources.text]\npaths = ["{text}"]\n')
    words = ["submit", "slurm", "my.toml", "--out", "runs/a", "--sbatch=--mem=0", *flags]
    environment = {**cluster.environment, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    output = f"--sbatch=--output={cluster.folder}/slurm-%A.out"
    done = subprocess.run(
        [sys.executable, "-m", "meshdsl_cli", *words, output, *SETTINGS, f"steps={steps}"],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Submitted batch job ")
    return done.stdout.split()[-1]


def comes_to(cluster, job, out, step):
    until = time.monotonic() + 240
    while (last_line(out / "metrics.jsonl") or {}).get("step", 0) < step:
        assert time.monotonic() < until, cluster.printed(job)
        time.sleep(0.05)


def alone(folder, text, steps):
    """The losses of such a run that nothing disturbs."""
    words = ["--data", text, "--layout", "data", "--devices", "2", *SETTINGS]
    code, found = train(folder / "alone", *words, f"steps={steps}")
    assert code == 0
    return found


def test_a_run_on_two_nodes_goes_on_after_it_was_told_to_end(cluster, tmp_path, text):
    """As `--signal` tells it before its time is over."""
    job, out = submit(cluster, tmp_path, text, 60, "--nodes", "2"), tmp_path / "runs/a"
    comes_to(cluster, job, out, 10)
    cluster.run("scancel", "--signal=TERM", job)
    cluster.go_on(job)
    saved = newest_step(out / "checkpoints")
    assert 10 <= saved < 60
    cluster.wait(job, "COMPLETED")
    assert f"resumed after step {saved}" in cluster.printed(job)
    np.testing.assert_allclose(losses(out), alone(tmp_path, text, 60), rtol=1e-5)


def test_a_run_goes_on_after_it_was_preempted_and_after_a_node_failed(cluster, tmp_path, text):
    job, out = submit(cluster, tmp_path, text, 200, "--nodes", "2"), tmp_path / "runs/a"
    comes_to(cluster, job, out, 10)
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--wrap=sleep 1"]
    other = cluster.run(*urgent, "--output=/dev/null").strip()
    cluster.wait(other, "COMPLETED")
    cluster.go_on(job)
    before = newest_step(out / "checkpoints")
    comes_to(cluster, job, out, before + 6)
    cluster.lose("n2")
    cluster.wait(job, "PENDING")
    while "n2" not in cluster.run("sinfo", "--noheader", "--states=down", "--format=%N"):
        time.sleep(0.2)
    cluster.go_on(job)
    cluster.wait(job, "COMPLETED")
    cluster.add("n2")
    np.testing.assert_allclose(losses(out), alone(tmp_path, text, 200), rtol=1e-5)


def test_an_array_has_a_run_for_each_value(cluster, tmp_path, text):
    job = submit(cluster, tmp_path, text, 4, "--nodes", "1", "--each", "seed=3,4")
    for task in ("0", "1"):
        cluster.wait(f"{job}_{task}", "COMPLETED")
    found = [losses(tmp_path / "runs/a" / f"seed={seed}") for seed in (3, 4)]
    assert [len(each) for each in found] == [4, 4] and found[0] != found[1]
