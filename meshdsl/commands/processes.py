"""Several processes of one meshdsl command on this machine: they start, end and fail together."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import IO, NamedTuple

from meshdsl.commands.restarts import Outcome
from meshdsl.hosts.ending import FOLLOWED, LAUNCHED
from meshdsl.hosts.join import VARIABLES
from meshdsl.hosts.signals import EXIT_CODES, heard
from meshdsl.hosts.standby import STANDBY

INTERRUPTED = EXIT_CODES["interrupted"]
PROGRAM = (sys.executable, "-m", "meshdsl_cli")
TOGETHER = 5.0  # seconds that the others have to end by themselves when one has failed
_LINES = 60  # of what a failed process printed last


class Place(NamedTuple):
    """Where processes that are launched here stand among all of a run.

    Attributes:
      coordinator: `host:port`, where process 0 listens.
      first: the number of the first of them.
      total: how many all hosts have; None for those of this one alone.
    """

    coordinator: str
    first: int = 0
    total: int | None = None


class Started(NamedTuple):
    """A process that was started.

    Attributes:
      log: what it prints where it is not shown.
      hold: a pipe that the process reads, and sees closed when this process ends.
    """

    process: subprocess.Popen
    log: IO[str]
    hold: int

    def close(self) -> None:
        """Let go of it; it ends if it waits or runs."""
        os.close(self.hold)
        self.log.close()


# What starts a process: called with its number on this host, with what its environment says beside
# that of this process and of its devices, and whether it prints where this process does.
Start = Callable[[int, dict[str, str], bool], Started]


def launch(start: Start, count: int, place: Place, ask: Callable[[], int] = lambda: 0) -> Outcome:
    """Run a command line of meshdsl in several processes.

    Process 0 has the output of this one. What another one printed is shown if it fails. When one
    fails all end, and when this process ends, however it does. SIGTERM and Ctrl-C go to all of
    them; a second Ctrl-C kills them and ends this one.

    Args:
      start: starts one of them.
      count: how many are started.
      ask: called many times a second; the number of a signal that the processes should get, or 0.

    Returns: the exit code of the run, and whether this process was told to end.
    """
    told = {VARIABLES[0]: place.coordinator, VARIABLES[1]: str(place.total or count)}
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
        logs: list[IO[str]] = []
        stack.enter_context(heard(signal.SIGTERM, signal.SIGINT, by=pass_on))
        with starting:
            for number in range(count):
                i = place.first + number
                each = stack.enter_context(
                    closing(start(number, told | {VARIABLES[2]: str(i)}, not i))
                )
                started.append(each.process)
                logs.append(each.log)
        asked: list[int] = []
        failed = _wait(started, ask, asked)
        # Those have not failed that ended because another one did, or by a signal passed on.
        followed = (FOLLOWED, *(-number for number in (*came, *asked)))
        failed = [i for i in failed if started[i].returncode not in followed]
        _show_failed(started, failed, logs, place.first)
    code = _exit_code(started, failed)
    if code == 0 and place.total and any(each.returncode == FOLLOWED for each in started):
        code = FOLLOWED  # what failed did so on another host
    return Outcome(code, bool(came))


def starts(words: Sequence[str], environments: Sequence[dict[str, str]]) -> Start:
    """What starts a process of `meshdsl` with `words` for each of `environments`."""
    return lambda number, told, shows: start_process(words, told | environments[number], shows)


def start_process(
    words: Sequence[str], environment: dict[str, str], shows: bool = True, waits: bool = False
) -> Started:
    """Start a process of `meshdsl`.

    Args:
      words: a command line, such as `["train", "--layout", "fsdp"]`.
      environment: what its environment says beside that of this process.
      shows: whether it prints where this process does.
      waits: whether it begins only when it is told, see `hosts.standby`.
    """
    log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - `Started` closes it
    pipe, hold = os.pipe()
    own = {LAUNCHED: str(pipe)} | ({STANDBY: str(log.fileno())} if waits else {})
    output = None if shows else log
    with _held_back(signal.SIGINT):
        process = subprocess.Popen(
            [*PROGRAM, *words],
            env={**os.environ, **environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[pipe, log.fileno()],
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        )
    os.close(pipe)
    return Started(process, log, hold)


def _wait(
    started: Sequence[subprocess.Popen], ask: Callable[[], int], asked: list[int]
) -> list[int]:
    """Wait until all have ended, and end them when one has failed.

    Args:
      ask: as for `launch`.
      asked: gets the signals that were sent because of it.

    Returns: the numbers of those that failed, the first one first.
    """
    failed: list[int] = []
    until = math.inf
    while True:
        if (number := ask()) and number not in asked:
            asked.append(number)
            _send(started, number)
        codes = [process.poll() for process in started]
        failed += [
            i
            for i, code in enumerate(codes)
            if code not in (None, 0, INTERRUPTED) and i not in failed
        ]
        if None not in codes:
            return failed
        if failed and until == math.inf:
            # A process that a signal ended has told nobody.
            ended_by_signal = started[failed[0]].returncode < 0
            until = time.monotonic() + (0.0 if ended_by_signal else TOGETHER)
        if time.monotonic() >= until:
            _send(started, signal.SIGKILL)
            for process in started:
                process.wait()
            return failed
        time.sleep(0.05)


def _show_failed(
    started: Sequence[subprocess.Popen],
    failed: Sequence[int],
    logs: Sequence[IO[str]],
    number: int,
) -> None:
    """Show what processes that failed printed last.

    Nothing where process 0 is one of them and says itself what went wrong: its output is there, and
    what went wrong before the processes met went wrong in all of them.

    Args:
      number: of the first of them.
    """
    first = started[0].returncode
    if number == 0 and 0 in failed and first >= 0:
        return
    interrupted = [i for i, process in enumerate(started) if process.returncode == INTERRUPTED]
    for i in failed or (interrupted if first == FOLLOWED else []):
        _show(number + i, started[i].returncode, logs[i])


def _show(number: int, code: int, log: IO[str]) -> None:
    """Show what a failed process printed last, under its number."""
    name = f"process {number}: "
    log.seek(0)
    for line in deque(log, maxlen=_LINES):
        print(line.rstrip() if line.startswith(name) else name + line.rstrip(), file=sys.stderr)
    if code < 0:
        print(f"{name}ended by {signal.Signals(-code).name}", file=sys.stderr)


def _exit_code(started: Sequence[subprocess.Popen], failed: Sequence[int]) -> int:
    """The code of the run: that of the first process that failed, or else that was not 0."""
    codes = [started[i].returncode for i in failed] or [
        process.returncode for process in started if process.returncode not in (0, FOLLOWED)
    ]
    if not codes:
        return 0
    return codes[0] if codes[0] > 0 else 128 - codes[0]


def _send(started: Sequence[subprocess.Popen], number: int) -> bool:
    """Send a signal to those that have not ended; returns whether there were any."""
    going = [process for process in started if process.poll() is None]
    for process in going:
        process.send_signal(number)
    return bool(going)


@contextmanager
def _held_back(number: int) -> Iterator[None]:
    """Processes that are started in here get this signal when they unblock it, once ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
