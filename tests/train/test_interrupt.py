"""SIGTERM and Ctrl-C in one process; for several see `tests/test_hosts.py`."""

import signal

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
