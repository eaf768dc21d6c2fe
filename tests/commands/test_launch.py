"""`meshdsl launch`: its processes start, end and fail together."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshdsl import MeshDSLError
from meshdsl.commands import processes as command
from meshdsl.commands.launch import devices_of_each
from meshdsl.commands.processes import Place, launch, starts
from meshdsl.hosts.ending import FOLLOWED
from meshdsl.train.watchdog import HUNG
from meshdsl_cli import main
from tests.train.test_kill_matrix import alive

ME = """
import os, signal, sys, time
me = int(os.environ['MESHDSL_PROCESS_ID'])
def ready():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
"""
BEGUN = "open(f'FOLDER/{me}', 'w').close()\n"


@pytest.fixture
def run(monkeypatch):
    """Launches a program of a few lines in two processes; each knows its number as `me`."""
    monkeypatch.setattr(command, "PROGRAM", (sys.executable, "-c"))
    return lambda code, processes=2: (
        launch(
            starts([ME + code], devices_of_each(processes, 4, ())),
            processes,
            Place("localhost:1234"),
        ).code
    )


def test_process_0_has_the_terminal_and_each_knows_its_place(run, capfd):
    names = ("MESHDSL_COORDINATOR", "MESHDSL_PROCESSES", "JAX_NUM_CPU_DEVICES")
    assert run(f"print(me, *(os.environ[name] for name in {names}))") == 0
    assert capfd.readouterr() == ("0 localhost:1234 2 4\n", "")


@pytest.mark.parametrize(
    ("code", "expected", "printed"),
    [
        (
            "if me: print('no disk', file=sys.stderr); sys.exit(3)\ntime.sleep(60)",
            3,
            "process 1: no disk\n",
        ),
        (
            "if me == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
            137,
            "process 1: ended by SIGKILL\n",
        ),
        (
            "if me == 1: print('process 1: no disk'); sys.exit(2)\n"
            f"time.sleep(0.3); print('after it', file=sys.stderr); sys.exit({FOLLOWED})",
            2,
            "after it\nprocess 1: no disk\n",
        ),
        (
            f"if me: print('nothing has come'); sys.exit({HUNG})\ntime.sleep(60)",
            HUNG,
            "process 1: nothing has come\n",
        ),
        ("print('no such command', file=sys.stderr); sys.exit(2)", 2, "no such command\n"),
    ],
    ids=["error", "killed", "told the others", "hung", "before they met"],
)
def test_when_one_fails_all_end_and_it_is_shown_by_its_number(
    run, monkeypatch, capfd, code, expected, printed
):
    monkeypatch.setattr(command, "TOGETHER", 0.5)
    start = time.monotonic()
    assert run(code, processes=3 if "sleep(0.3)" in code else 2) == expected
    assert capfd.readouterr().err == printed and time.monotonic() - start < 20


def ends(number, code):
    """A line of a program, which ends with this code when the signal comes."""
    return f"signal.signal(signal.{number.name}, lambda *_: sys.exit({code}))\n"


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [
        (signal.SIGTERM, ends(signal.SIGTERM, 0), 0),
        (signal.SIGINT, ends(signal.SIGINT, 130), 130),
        (signal.SIGTERM, ends(signal.SIGTERM, f"{FOLLOWED} if me else 0"), 0),
        (signal.SIGINT, ends(signal.SIGINT, f"130 if me else {FOLLOWED}"), 130),
        (signal.SIGTERM, "", 143),
        (signal.SIGINT, f"{BEGUN}time.sleep(1)\n{ends(signal.SIGINT, 130)}ready()\n", 130),
    ],
    ids=[
        "preempted",
        "interrupted",
        "preempted before a step",
        "interrupted before a step",
        "preempted before it is ready",
        "interrupted before it is ready",
    ],
)
def test_signals_reach_every_process_once(run, capfd, tmp_path, number, code, expected):
    here = signal.getsignal(number)

    def send():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        signal.raise_signal(number)

    threading.Thread(target=send, daemon=True).start()
    code = code if BEGUN in code else code + BEGUN + "ready()\n"
    assert run(code.replace("FOLDER", str(tmp_path)) + "time.sleep(60)") == expected
    assert capfd.readouterr().err == "" and signal.getsignal(number) is here


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_launcher_and_all_that_it_started(tmp_path):
    hangs = f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n{BEGUN}time.sleep(60)"
    hangs = hangs.replace("FOLDER", str(tmp_path))
    code = f"""
import sys
from meshdsl.commands import launch, processes
processes.PROGRAM = (sys.executable, "-c")
start = processes.starts([{ME + hangs!r}], launch.devices_of_each(2, 1, ()))
processes.launch(start, 2, processes.Place("localhost:1234"))
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.iterdir())) < 2:
        assert launcher.poll() is None, launcher.stderr.read()
        time.sleep(0.05)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    launcher.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(1)
    launcher.send_signal(signal.SIGINT)
    assert launcher.communicate(timeout=20)[1] == "meshdsl: interrupted; nothing more was saved\n"
    assert launcher.returncode == 130
    time.sleep(0.5)
    assert len(children) == 2 and not any(map(alive, children))


def test_gpus_are_shared_out():
    names = [str(i) for i in range(8)]
    assert devices_of_each(2, None, names) == [
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        {"CUDA_VISIBLE_DEVICES": "4,5,6,7"},
    ]
    assert devices_of_each(2, 1, names)[1] == {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(
        MeshDSLError, match="--processes 3: with 4 GPUs each that is 12, and there are 8"
    ):
        devices_of_each(3, 4, names)


def test_any_command_can_be_launched(capfd):
    assert main(["launch", "--processes", "2", "--", "layouts"]) == 0
    assert capfd.readouterr().out.count("zero1") == 1
    assert main(["launch", "--processes", "2"]) == 2
    assert (
        capfd.readouterr().err
        == "meshdsl launch: after -- comes the command to run, such as: train --layout fsdp\n"
    )
