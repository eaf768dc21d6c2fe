"""SIGTERM and Ctrl-C in one process; for several see `tests/hosts/test_hosts.py`."""

import signal
import subprocess
import sys
import time

import pytest

from meshdsl.train.interrupt import stopping
from tests.helpers import only


def stopped(stop, step, why):
    """Wait until the signal has gone its way through another thread."""
    until = time.monotonic() + 20
    while stop.reason_to_stop(step) != why:
        assert time.monotonic() < until, stop.reason_to_stop(step)
        time.sleep(0.001)
    return True


@pytest.mark.parametrize(
    "number, why", [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_is_a_wish_that_is_seen_after_the_step(number, why):
    before = signal.getsignal(number)
    with stopping() as stop:
        assert stop.reason_to_stop(1) is None
        signal.raise_signal(number)
        assert stopped(stop, 2, why)
    assert signal.getsignal(number) is before and signal.set_wakeup_fd(-1) == -1


def test_ctrl_c_counts_more_than_sigterm_and_a_second_one_is_not_taken():
    with stopping() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            assert stop.take(number)
        assert stop.reason_to_stop(1) == "interrupted"
        assert not stop.take(signal.SIGINT)


ALONE = "with heard(*REASONS):"
WANTED = "with stopping():\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(0.5)"


@pytest.mark.parametrize(
    ("around", "name", "code", "why"),
    only(
        [(ALONE, "SIGTERM", 0, "preempted")],
        [
            (ALONE, "SIGTERM", 0, "preempted"),
            (ALONE, "SIGINT", 130, "interrupted"),
            (WANTED, "SIGINT", 130, "interrupted"),
        ],
    ),
)
def test_a_signal_that_nobody_takes_ends_the_program_at_once(around, name, code, why):
    program = f"""
import hashlib, os, signal, time
from meshdsl.hosts.signals import REASONS, heard
from meshdsl.train.interrupt import stopping
{around}
    os.kill(os.getpid(), signal.{name})
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, as a compiler spends them
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (code, f"meshdsl: {why}; nothing more was saved\n")
