"""`meshdsl launch`: several processes of one meshdsl command on this machine."""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

from meshdsl.commands.flags import count
from meshdsl.errors import MeshDSLError
from meshdsl.hosts.ending import FOLLOWED, LAUNCHED
from meshdsl.hosts.join import VARIABLES
from meshdsl.hosts.signals import EXIT_CODES, heard

INTERRUPTED = EXIT_CODES["interrupted"]
PROGRAM = (sys.executable, "-m", "meshdsl_start")
TOGETHER = 5.0  # seconds that the others have to end by themselves when one has failed
_LINES = 60  # of what a failed process printed last


def add(commands) -> None:
    launch = commands.add_parser(
        "launch",
        help="run a command in several processes on this machine",
        usage="%(prog)s --processes N [--devices-per-process N] [--coordinator-port N] -- COMMAND ...",
        epilog="For example: meshdsl launch --processes 2 --devices-per-process 4 -- train --layout fsdp. Several machines: see docs/launch.md",
    )
    launch.add_argument("--processes", type=count, required=True, help="how many")
    launch.add_argument(
        "--devices-per-process",
        type=count,
        help="GPUs of each, by default an equal share; without GPUs virtual CPU devices, one by default",
    )
    launch.add_argument(
        "--coordinator-port", type=count, help="where process 0 listens; by default a free port"
    )
    launch.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="any meshdsl command line"
    )
    launch.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise MeshDSLError("after -- comes the command to run, such as: train --layout fsdp")
    if _tpu_here():
        raise MeshDSLError(
            "one process holds all TPU chips of a machine: run the command itself, on every machine of the pod (see docs/launch.md)"
        )
    environments = devices_of_each(arguments.processes, arguments.devices_per_process, _gpus())
    return launch([*words, *settings], environments, arguments.coordinator_port or _free_port())


def launch(words: Sequence[str], environments: Sequence[dict[str, str]], port: int) -> int:
    """Run `meshdsl` with `words` in one process for each of `environments`; returns the exit code of the run.

    Process 0 has the output of this one. What another one printed is shown if it fails. When one fails all end, and when this process ends, however
    it does. SIGTERM and Ctrl-C go to all of them; a second Ctrl-C kills them and ends this one.
    """
    pipe, hold = os.pipe()  # nobody writes to it: whoever reads waits for the end of this process
    told = {
        VARIABLES[0]: f"localhost:{port}",
        VARIABLES[1]: str(len(environments)),
        LAUNCHED: str(pipe),
    }
    started: list[subprocess.Popen] = []
    starting = threading.Lock()
    came: list[int] = []

    def pass_on(number: int) -> bool:
        again = number == signal.SIGINT and number in came
        came.append(number)
        with starting:
            reached = _send(started, signal.SIGKILL if again else number)
        return reached and not again

    with ExitStack() as stack:
        logs = [
            stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            for _ in environments
        ]
        stack.enter_context(heard(signal.SIGTERM, signal.SIGINT, by=pass_on))
        with starting, _held_back(signal.SIGINT):
            for i, (devices, log) in enumerate(zip(environments, logs, strict=True)):
                started.append(
                    subprocess.Popen(
                        [*PROGRAM, *words],
                        env={**os.environ, **told, VARIABLES[2]: str(i), **devices},
                        stdin=subprocess.DEVNULL,
                        stdout=log if i else None,
                        stderr=log if i else None,
                        pass_fds=[pipe],
                        # Ctrl-C reaches this process alone, which passes it on once.
                        start_new_session=True,
                    )
                )
        failed = [
            i
            for i in _wait(started)
            if started[i].returncode not in (FOLLOWED, *(-number for number in came))
        ]
        interrupted = [i for i, process in enumerate(started) if process.returncode == INTERRUPTED]
        if (
            0 not in failed or started[0].returncode < 0
        ):  # what it printed is there, and what went wrong before they joined went wrong in all
            for i in failed or (interrupted if started[0].returncode == FOLLOWED else []):
                _show(i, started[i].returncode, logs[i])
    os.close(pipe)
    os.close(hold)
    codes = [started[i].returncode for i in failed] or [
        process.returncode for process in started if process.returncode not in (0, FOLLOWED)
    ]
    return 0 if not codes else codes[0] if codes[0] > 0 else 128 - codes[0]


def _wait(started: Sequence[subprocess.Popen]) -> list[int]:
    """Wait until all have ended, and end them when one has failed; the numbers of those that failed, the first one first."""
    failed: list[int] = []
    until = math.inf
    while True:
        codes = [process.poll() for process in started]
        failed += [
            i
            for i, code in enumerate(codes)
            if code not in (None, 0, INTERRUPTED) and i not in failed
        ]
        if None not in codes:
            return failed
        if failed and until == math.inf:
            until = time.monotonic() + (
                TOGETHER if codes[failed[0]] > 0 else 0.0
            )  # nobody was told of a signal
        if time.monotonic() >= until:
            _send(started, signal.SIGKILL)
            for process in started:
                process.wait()
            return failed
        time.sleep(0.05)


@contextmanager
def _held_back(number: int) -> Iterator[None]:
    """Processes that are started in here get this signal when they unblock it, once ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _send(started: Sequence[subprocess.Popen], number: int) -> bool:
    """Send a signal to those that have not ended; whether there were any."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        process.send_signal(number)
    return bool(running)


def _show(number: int, code: int, log: IO[str]) -> None:
    """What a failed process printed last, under its number."""
    name = f"process {number}: "
    log.seek(0)
    for line in deque(log, maxlen=_LINES):
        print(line.rstrip() if line.startswith(name) else name + line.rstrip(), file=sys.stderr)
    if code < 0:
        print(f"{name}ended by {signal.Signals(-code).name}", file=sys.stderr)


def devices_of_each(processes: int, each: int | None, gpus: Sequence[str]) -> list[dict[str, str]]:
    """What the environment of each process says of its devices.

    Args:
      each: how many devices a process has; for GPUs by default an equal share, for virtual CPU devices one.
      gpus: the GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES knows; none: virtual CPU devices.

    Raises:
      MeshDSLError: there are fewer GPUs than that.
    """
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(each or 1)}] * processes
    each = each or max(1, len(gpus) // processes)
    if processes * each > len(gpus):
        raise MeshDSLError(
            f"--processes {processes}: with {each} GPU{'s' * (each > 1)} each that is {processes * each}, and there are {len(gpus)}"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])}
        for i in range(processes)
    ]


def _gpus() -> list[str]:
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _tpu_here() -> bool:
    """JAX, which is imported by now, sets the variable where no TPU is attached."""
    return "TPU_SKIP_MDS_QUERY" not in os.environ and not os.environ.get(
        "JAX_PLATFORMS", ""
    ).startswith("cpu")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
