"""Ctrl-C as a wish that the loop sees between two steps, so the run can finish its step and save it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets. A second one raises KeyboardInterrupt, also where the shell had it ignored."""
    seen = threading.Event()
    usual = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, usual)
