"""A second process that estimates what a search will probably ask for next.

A search asks for one estimate after another, and each takes a good part of a second, nearly all of
it in Python. So it says beforehand what it expects to ask for, and a copy of the process works on
that meanwhile. The result of a search whose limit is a number of estimates is the same with and
without: what the copy finds counts only once the search asks for it. One whose limit is a time
takes all that the copy has found (`taken`).

A process may be copied only before JAX has made its devices, as their threads would be missing in
the copy. The command line makes the copy before anything is traced. `md.search`, which is called in
a process of the user's, has none.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from meshdsl.layout_search.found import Judged
from meshdsl.layout_search.plan import Plan

_QUEUE = 2  # plans that the copy has at once, so that it need not wait for the next
_PATIENCE = 20.0  # seconds without an answer after which the copy is given up


class Request(NamedTuple):
    """A plan, and the name of the shipped layout that it is, if it is one."""

    plan: Plan
    shipped: str = ""


Answer = Judged | str
"""What a plan comes to, or why it cannot be used."""


class Ahead:
    """Estimates in a second process: `expect` says what is coming, `take` gives what is asked for.

    Args:
      estimate: of a request; it runs in both processes.
    """

    def __init__(self, estimate: Callable[[Request], Answer]):
        self._estimate = estimate
        self._expected: list[Request] = []
        self._sent: list[Request] = []  # and not answered
        self._known: dict[Request, Answer] = {}
        self._practised: Request | None = None
        context = get_context("fork")
        self._pipe, theirs = context.Pipe()
        given = theirs, self._pipe, estimate
        self._process = context.Process(target=_serve, args=given, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that NumPy may have
            self._process.start()
        theirs.close()

    def practise(self, request: Request) -> None:
        """Let the copy estimate what nobody needs, as its first trace takes twice as long."""
        self._practised = request
        self.expect([request])

    def expect(self, requests: Sequence[Request]) -> None:
        """Say which estimates will probably be asked for, the next one first."""
        self._expected = [r for r in requests if r not in self._known and r not in self._sent]
        self._send()

    def take(self, request: Request) -> Answer:
        """The estimate of a request: the one that was made ahead, or one that is made here.

        While the copy is still working on it, this process works on what is expected next.
        """
        self._receive()
        while request not in self._known:
            if request in self._expected:
                self._expected.remove(request)
            self._send()
            if request not in self._sent or (request != self._sent[0] and not self._expected):
                self._known[request] = self._estimate(request)
            elif self._expected:
                other = self._expected.pop(0)
                self._known[other] = self._estimate(other)
            elif not self._pipe.poll(_PATIENCE):
                self.close()
            self._receive()
        return self._known.pop(request)

    def taken(self) -> dict[Request, Answer]:
        """All estimates that were made ahead and not asked for yet."""
        self._receive()
        known, self._known = self._known, {}
        return known

    def close(self) -> None:
        """End the copy. What is asked for afterwards is estimated here."""
        self._expected, self._sent = [], []
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _send(self) -> None:
        while self._expected and len(self._sent) < _QUEUE and not self._pipe.closed:
            request = self._expected.pop(0)
            try:
                self._pipe.send(request)
            except OSError:
                self.close()
                return
            self._sent.append(request)

    def _receive(self) -> None:
        try:
            while not self._pipe.closed and self._pipe.poll():
                request, answer = self._pipe.recv()
                self._sent.remove(request)
                if answer is not None and request != self._practised:
                    self._known.setdefault(request, answer)
        except (EOFError, OSError):
            self.close()


def can_copy() -> bool:
    """Whether a copy of this process can work beside it: there is a core for it, and no devices.

    Threads of Python's, such as those that the command line has for signals, only wait. NumPy may
    have a thread for each core, which it makes anew in a copy. Those of JAX's devices are more.
    """
    if sys.platform != "linux":
        return False
    try:
        threads = len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return False
    cores = len(os.sched_getaffinity(0))
    return cores > 1 and threads - (threading.active_count() - 1) <= cores


def _serve(pipe: Connection, theirs: Connection, estimate: Callable[[Request], Answer]) -> None:
    """What the copy does: it answers requests until the search ends, or is killed."""
    theirs.close()
    awake = signal.set_wakeup_fd(-1)  # by which threads of the search learn of signals
    if awake != -1:
        os.close(awake)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search itself ends the copy
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer = estimate(request)
        except Exception:  # the search comes to it by itself, and says so
            answer = None
        try:
            pipe.send((request, answer))
        except OSError:
            return
