"""The real TPU compiler on a small step: its options, memory and collectives.

It runs in a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason='the TPU compiler is not installed; pip install "meshdsl[tpu]"',
    ),
]

OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_all_gather"


@pytest.fixture(scope="module")
def reports():
    """What was found for each of the cases of `real.py`."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TPU_", "JAX_", "XLA_"))
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.predict.compiler.real"],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert (
        "libtpu" not in run.stderr and "TPU_" not in run.stderr
    )  # nothing of the environment has to be set for that
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_a_record_explains_every_collective_of_a_chip_s_program(reports):
    for report in reports[:2]:
        assert report["surprises"] == [] and report["unread"] == [], report["text"]
        assert sum(row["count"] for row in report["collectives"]) > 50
        named = [row for row in report["collectives"] if row["source"]]
        assert len(named) > 0.8 * len(report["collectives"])


def test_the_options_of_a_chip_make_its_collectives_asynchronous(reports):
    v5p, v5e = reports[:2]
    assert v5p["options"][OFFLOAD] == "True" and OFFLOAD not in v5e["options"]
    assert sum(row["asynchronous"] for row in v5p["collectives"]) > 20
    assert OFFLOAD in v5p["text"]


def test_gathers_over_a_whole_slice_are_gathers_and_run_while_the_device_computes(reports):
    rows = [row for row in reports[5]["collectives"] if row["bytes"] >= 2**21]
    gathers = [row for row in rows if row["phase"] in ("forward", "recompute")]
    assert {row["operation"] for row in gathers} == {"all_gather"}
    assert len(gathers) > 6 and all(row["asynchronous"] == row["count"] for row in gathers)


def test_memory_and_time_are_told(reports):
    for report in reports[:2]:
        memory = report["memory"]
        assert report["fits"] is True
        assert (
            memory["needed"]
            == memory["arguments"]
            + memory["outputs"]
            - memory["aliased"]
            + memory["temporaries"]
            + memory["code"]
        )
        assert memory["largest"] and memory["capacity"] > 2**33
        assert 0 < report["exposed_share"] < 1 and 0 < report["mfu"] < 1


def test_the_executable_can_be_saved_without_the_hardware(reports):
    assert all(report["saved"] > 100_000 for report in reports[:2])


def test_a_program_that_does_not_fit_is_a_verdict(reports):
    short = reports[2]
    assert short["fits"] is False and short["verdict"].startswith("does NOT fit: needs ")
    assert short["memory"]["capacity"] == 2**20 < short["memory"]["needed"]
    assert short["memory"][
        "largest"
    ]  # those of the estimate, as the compiler gave up before it had placed anything


def test_an_option_that_the_compiler_refuses_is_one_error(reports):
    assert reports[3] == {
        "error": "option `xla_tpu_no_such_thing`: the compiler for v6e:2x2 has no such option"
    }
    assert reports[4]["error"].startswith(
        "option `xla_tpu_scoped_vmem_limit_kib=many`: the compiler for v6e:2x2 fails: "
        "INVALID_ARGUMENT: Failed to parse"
    )
