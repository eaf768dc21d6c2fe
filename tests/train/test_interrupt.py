"""SIGTERM and Ctrl-C in one process; for several see `tests/test_hosts.py`."""

import signal
import subprocess
import sys

import pytest

from meshdsl.train.interrupt import stopping


@pytest.mark.parametrize("number, why", [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")])
def test_a_signal_is_a_wish_that_is_seen_after_the_step(number, why):
    before = signal.getsignal(number)
    with stopping() as stop:
        assert stop.at(1) is None
        signal.raise_signal(number)
        assert stop.at(2) == why
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_is_an_interrupt():
    with stopping() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.at(1) == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("name, code, why", [("SIGTERM", 0, "preempted"), ("SIGINT", 130, "interrupted")])
def test_where_there_is_no_step_to_save_a_signal_ends_the_program_at_once(name, code, why):
    program = f"""
import hashlib, os, signal
from meshdsl.train.interrupt import ending_at_once
with ending_at_once():
    os.kill(os.getpid(), signal.{name})
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, as a compiler spends them
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (code, f"meshdsl train: {why}; nothing more was saved\n")
