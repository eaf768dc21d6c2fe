"""A process that a launcher started ahead of time, and that waits until it is told to begin.

It has imported all that its command needs by then, so that a round of an elastic run does not wait
for that.
"""

from __future__ import annotations

import json
import os
import time

from meshdsl.hosts.ending import LAUNCHED

# The variable of the environment that says to wait. Its value is the number of an open file, in
# which the process prints where it is not told to show what it prints.
STANDBY = "MESHDSL_STANDBY"

_told = 0.0  # when, by `time.perf_counter`


def wait_until_told() -> None:
    """Wait where this process was started for that; returns when the launcher tells it to begin.

    What the launcher tells is a line of JSON: what else the environment says, and whether to show
    what is printed. Without a line, because the launcher has ended, the process ends.
    """
    global _told
    log = os.environ.pop(STANDBY, None)
    if log is None:
        return
    with open(int(os.environ[LAUNCHED]), encoding="utf-8", closefd=False) as pipe:
        line = pipe.readline()
    if not line:
        os._exit(0)
    told = json.loads(line)
    os.environ.update(told["environment"])
    if not told["shows"]:
        os.dup2(int(log), 1)
        os.dup2(int(log), 2)
    _told = time.perf_counter()


def seconds_since_told() -> float | None:
    """Seconds since this process was told to begin; None where it did not wait for that."""
    return time.perf_counter() - _told if _told else None
