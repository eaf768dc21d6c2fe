"""Ctrl-C and SIGTERM: heard by a thread, whatever the main thread does.

Python runs a handler in the main thread, between two of its own instructions. So a handler does
not run while a compiler, a collective or a read waits there in C, and an exception that it raises
may come out in a callback of JAX, which loses it. Handlers here do nothing. But Python also
writes the number of each signal into a pipe, the moment it comes, and a thread reads the pipe: it
gives the signal to whoever listens, or else ends the program.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from select import select

from rich.console import Console

from meshdsl.hosts import store
from meshdsl.hosts.ending import ended

REASONS = {signal.SIGTERM: "preempted", signal.SIGINT: "interrupted"}
# A scheduler starts a preempted run again, so that is no failure; Ctrl-C is the user's word.
EXIT_CODES = {"preempted": 0, "interrupted": 130}

Listener = Callable[[int], bool]

_listener: Listener | None = None
_hearing = False


def hear() -> None:
    """Ctrl-C ends this program from here on, until its very end."""
    _listen()
    signal.signal(signal.SIGINT, _nothing)


@contextmanager
def heard(*numbers: int, by: Listener | None = None) -> Iterator[None]:
    """Hear these signals in here, also where the shell had them ignored.

    Args:
      by: called with each of them, in another thread; says whether it takes the signal. One that
        it does not take, or that nobody listens to, ends the program at once: with a line on
        stderr, and with exit code 130 for Ctrl-C or 0 for SIGTERM.
    """
    global _listener
    stop = _listen()
    usual = {number: signal.signal(number, _nothing) for number in numbers}
    before, _listener = _listener, by
    try:
        yield
    finally:
        _listener = before
        for number, handler in usual.items():
            # None: it was set by C code.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        stop()


def _nothing(number: int, frame: object) -> None:
    """The handler. Without one of its own, Python writes nothing into the pipe."""


def _listen() -> Callable[[], None]:
    """Start the threads, unless they run already; returns what stops them."""
    global _hearing
    if _hearing:
        return lambda: None
    _hearing = True
    read, write = os.pipe()
    os.set_blocking(write, False)
    awake = signal.set_wakeup_fd(write)
    untaken: SimpleQueue[int] = SimpleQueue()
    # Two, so that the second Ctrl-C is heard while what the first one began hangs. Both from the
    # start: Python 3.12 starts no thread while it shuts down.
    threads = [
        threading.Thread(target=_end, args=(untaken,), name="meshdsl end", daemon=True),
        threading.Thread(target=_give, args=(read, untaken), name="meshdsl signals", daemon=True),
    ]
    for thread in threads:
        thread.start()

    def stop() -> None:
        global _hearing
        signal.set_wakeup_fd(awake)
        os.close(write)  # which ends the one thread
        untaken.put(0)  # and this the other
        for thread in threads:
            thread.join()
        os.close(read)
        _hearing = False

    return stop


def _give(pipe: int, untaken: SimpleQueue[int]) -> None:
    """Give each signal to the listener, or else end the program.

    To end in good order takes a moment, and may hang: the output may be a pipe that nobody empties,
    another process may be out of reach. The next signal, or a few seconds, cut that short.
    """
    while written := os.read(pipe, 1):
        number = written[0]
        if number not in REASONS or (_listener and _listener(number)):
            continue
        untaken.put(number)
        select([pipe], (), (), 5.0 if store.count() > 1 else 1.0)
        os._exit(EXIT_CODES[REASONS[number]])


def _end(untaken: SimpleQueue[int]) -> None:
    """End the program in good order once a signal has not been taken."""
    if number := untaken.get():
        reason = REASONS[signal.Signals(number)]
        try:
            if sys.stdout.isatty():
                Console().show_cursor()  # a progress bar hides it
            ended(f"meshdsl: {reason}; nothing more was saved", EXIT_CODES[reason])
            sys.stdout.flush()
        finally:
            os._exit(EXIT_CODES[reason])
