"""`meshdsl doctor`: what is here, and what is wrong with it."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from meshdsl.commands import doctor
from meshdsl.commands.doctor import _extra, _left_alone, _packages
from meshdsl.errors import MeshDSLError
from meshdsl_cli import main
from tests.hosts.test_hosts import free_port


def test_where_all_is_well_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "find_cluster", lambda: None)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in said.splitlines()}
    assert lines["devices"].endswith("8 CPU devices") and "jax" in lines and "flax" in lines
    assert lines["cluster"].endswith("none: this process is alone")
    assert said.endswith("\nnothing is wrong\n")


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"jax": "0.9.1"}, "0.10 is the oldest that fits: pip install -U jax"),
        (
            {"jax": "0.10.2", "jaxlib": "0.9.2"},
            "does not fit jax 0.10.2: pip install jaxlib==0.10.2",
        ),
        ({"jax": "0.12.0", "jaxlib": "0.12.1"}, ""),
        ({"jax": "0.12.0", "jax-cuda12-plugin": "0.11.0"}, "does not fit jax 0.12.0: pip install"),
    ],
)
def test_versions_that_do_not_fit(found, wrong, monkeypatch):
    monkeypatch.setattr(doctor, "versions", lambda: found)
    monkeypatch.setattr(
        doctor, "_requirements", lambda: ["jax>=0.10", "grain>=1; extra == 'train'"]
    )
    said = "".join(each.wrong for each in _packages())
    assert said.startswith(wrong) and bool(said) == bool(wrong)


def test_devices_that_jax_does_not_use(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    assert _left_alone("cpu", tmp_path) == ""
    (tmp_path / "accel0").touch()
    assert 'pip install "jax[tpu]"' in _left_alone("cpu", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert 'pip install "jax[cuda12]"' in _left_alone("cpu", tmp_path)
    assert _left_alone("gpu", tmp_path) == ""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # as the user wants it
    assert _left_alone("cpu", tmp_path) == ""


def test_an_extra_that_is_missing_is_wrong_only_where_nothing_can_be_trained():
    def missing(name):
        raise MeshDSLError("not here")

    assert _extra("train", missing).wrong == 'nothing can be trained: pip install "meshdsl[train]"'
    assert _extra("wandb", missing) == (
        "extra wandb",
        'not installed: pip install "meshdsl[wandb]"',
        "",
    )


def test_processes_of_a_job_meet_and_one_of_them_speaks():
    told = {"MESHDSL_COORDINATOR": f"localhost:{free_port()}", "MESHDSL_PROCESSES": "2"}
    command = [sys.executable, "-m", "meshdsl_cli", "doctor"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env={
                        **os.environ,
                        **told,
                        "MESHDSL_PROCESS_ID": str(i),
                        "JAX_NUM_CPU_DEVICES": "1",
                    },
                    **how,
                )
            )
            for i in range(2)
        ]
        first, second = (each.communicate(timeout=120) for each in started)
    assert [each.returncode for each in started] == [0, 0], (first, second)
    assert "by variables of the environment: 2 processes met" in first[0] and second[0] == ""
    assert "devices of all" in first[0]
