"""Ctrl-C."""

import signal

import pytest

from meshdsl.train.interrupt import interruption


def test_the_first_is_a_wish_and_the_second_an_interrupt():
    before = signal.getsignal(signal.SIGINT)
    with interruption() as seen:
        assert not seen.is_set()
        signal.raise_signal(signal.SIGINT)
        assert seen.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
