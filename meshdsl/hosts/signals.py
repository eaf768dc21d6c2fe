"""Ctrl-C and SIGTERM, heard by a thread, so that they work whatever the main thread does.

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

from meshdsl.hosts import store
from meshdsl.hosts.ending import report_and_end

REASONS = {signal.SIGTERM: "preempted", signal.SIGINT: "interrupted"}
# A scheduler starts a preempted run again, so it did not fail; 130 is what shells say of Ctrl-C.
EXIT_CODES = {"preempted": 0, "interrupted": 130}
_SHOW_CURSOR = "\x1b[?25h"  # of a terminal: show the cursor

Listener = Callable[[int], bool]  # called with a signal; returns whether it takes it

_listener: Listener | None = None
_hearing = False


def end_on_ctrl_c() -> None:
    """Make Ctrl-C end this program at once, whatever it does, from here on to its very end."""
    _listen()
    signal.signal(signal.SIGINT, _nothing)


@contextmanager
def heard(*numbers: int, by: Listener | None = None) -> Iterator[None]:
    """A context in which these signals are heard, also where the shell had them ignored.

    Args:
      by: called with each of the signals, in another thread; returns whether it takes the signal.
        A signal that it does not take, and every signal where `by` is None, ends the program at
        once, with a line on stderr and exit code 130 for Ctrl-C or 0 for SIGTERM.
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
            # The handler is None where C code had set it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        stop()


def _nothing(number: int, frame: object) -> None:
    """The handler. Python writes into the pipe only the signals that have one of their own."""


def _listen() -> Callable[[], None]:
    """Start the threads, unless they run already; returns a function that stops them."""
    global _hearing
    if _hearing:
        return lambda: None
    _hearing = True
    read, write = os.pipe()
    os.set_blocking(write, False)
    awake = signal.set_wakeup_fd(write)
    untaken: SimpleQueue[int] = SimpleQueue()
    # There are two threads, so that a second Ctrl-C is heard while what the first one began hangs.
    # Both start here, because Python 3.12 starts no thread while it shuts down.
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
    """Give each signal to the listener, or end the program where it does not take the signal.

    The other thread ends the program in good order. That takes a moment, and may hang: the output
    may be a pipe that nobody empties, or another process may be out of reach. The next signal, or a
    few seconds, cut it short.
    """
    while written := os.read(pipe, 1):
        number = written[0]
        if number not in REASONS or (_listener and _listener(number)):
            continue
        untaken.put(number)
        select([pipe], (), (), 5.0 if store.count() > 1 else 1.0)
        os._exit(EXIT_CODES[REASONS[signal.Signals(number)]])


def _end(untaken: SimpleQueue[int]) -> None:
    """Wait for a signal that no listener took, and end the program in good order."""
    if number := untaken.get():
        reason = REASONS[signal.Signals(number)]
        try:
            if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
                sys.stdout.write(_SHOW_CURSOR)  # a progress bar hides it
            report_and_end(f"meshdsl: {reason}; nothing more was saved", EXIT_CODES[reason])
            sys.stdout.flush()
        finally:
            os._exit(EXIT_CODES[reason])
