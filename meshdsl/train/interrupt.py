"""SIGTERM (a scheduler takes the machine back) and Ctrl-C stop a run between two steps.

So the run can save its step. A signal is taken as a wish to stop, which the training loop asks for
after each step.

Processes that train together must stop after the same step, because all of them take part in its
collectives and in saving it. A process that gets a signal puts the wish into the store that the
processes share (`meshdsl.hosts`). In each process a thread waits for a wish in the store. When one
comes, each process says which step it has begun, and all stop after the first step that none of
them has passed. While they find out, the loop waits at its next step; where there is no wish, a
step asks nothing of the network. A run that stops for a new layout goes on, and may stop again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count as counter
from queue import SimpleQueue

from meshdsl.hosts import store
from meshdsl.hosts.signals import REASONS, heard

# Seconds in which all processes have said which step they have begun; one may still be compiling.
_AGREEMENT = 600.0
RELAYOUT = "relayout"  # a wish to go on with another layout
_OVER = "over"  # in place of a wish, where the run came to its end before one
_LAST = (*REASONS.values(), _OVER)  # no wish counts after one of these
_run_numbers = counter()  # of the runs in this process: the same in all processes


class Stopping:
    """Whether a run is to stop, and why: what the training loop asks after each step.

    Attributes:
      wish: the reason of the signal that this process got, "preempted" or "interrupted"; None where
        it got none.
    """

    def __init__(self) -> None:
        self.wish: str | None = None
        self._reason: str | None = None  # what all processes stop for
        self._last: int | None = None  # the step after which all processes stop
        self._step = 0  # the one that this process has begun
        self._agreeing = threading.Lock()  # kept while the processes agree: none goes on meanwhile
        self._wishes: SimpleQueue[str] = SimpleQueue()
        self._went_on, self._ended = threading.Event(), False

    def reason_to_stop(self, step: int) -> str | None:
        """Why the run stops after `step`, counted from 1.

        "preempted" or "interrupted", or RELAYOUT until `go_on` is called; None where it goes on.
        """
        if store.count() == 1:
            return self.wish or self._reason
        with self._agreeing:
            self._step = step
            return self._reason if self._last is not None and step >= self._last else None

    def take(self, number: int) -> bool:
        """Take a signal as a wish; returns False for a second Ctrl-C, which is not taken."""
        if self.wish == "interrupted":
            return number != signal.SIGINT
        self.wish = REASONS[signal.Signals(number)]
        self._wishes.put(self.wish)
        return True

    def ask(self, reason: str) -> None:
        """Ask for a stop after which the run goes on; one process does, for all."""
        if store.count() == 1:
            self._reason = reason
        else:
            self._wishes.put(reason)

    def go_on(self) -> None:
        """The run goes on after it has stopped for what `ask` was given."""
        with self._agreeing:
            self._reason = self._last = None
        self._went_on.set()

    def put_wishes(self, key: str) -> None:
        """Put the wishes of this process into the store, and at last that its run is over.

        Each has a number there. Where another process has taken one, the next wish has the next
        number. So if there is a wish, all processes agree on it, also those whose run is over.
        """
        number, wish = 0, ""
        with suppress(RuntimeError):  # the store is gone, and JAX ends the process
            while wish not in _LAST:
                wish = self._wishes.get()
                while not store.put(f"{key}/{number}/wish", wish):
                    number += 1

    def follow_wishes(self, key: str) -> None:
        """Wait until a process has a wish, agree on a step, and so on until the run is over."""
        with suppress(RuntimeError):
            for number in counter():
                if (reason := store.wait_for(f"{key}/{number}/wish")) != _OVER:
                    self._agree(f"{key}/{number}", reason)
                if reason in _LAST:
                    return
                self._went_on.wait()
                with self._agreeing:
                    if not self._ended:
                        self._went_on.clear()

    def _agree(self, key: str, reason: str) -> None:
        """Settle the step after which all processes stop."""
        with self._agreeing:
            store.put(f"{key}/steps/{store.index()}", str(self._step))
            store.wait_for_all(f"{key}/told", _AGREEMENT)
            if store.first():
                begun = map(int, store.values_below(f"{key}/steps").values())
                store.put(f"{key}/last", str(1 + max(begun)))
            self._last, self._reason = int(store.wait_for(f"{key}/last")), reason

    def end(self) -> None:
        """Say that the run is over, which ends the threads."""
        with self._agreeing:
            self._ended = True
            self._went_on.set()
        self._wishes.put(_OVER)


@contextmanager
def stopping() -> Iterator[Stopping]:
    """A context in which SIGTERM and the first Ctrl-C are wishes to stop, which its value tells.

    A second Ctrl-C ends the program at once.
    """
    stop = Stopping()
    key = f"stop/{next(_run_numbers)}"
    threads = [
        threading.Thread(target=work, args=(key,), name="meshdsl stopping", daemon=True)
        for work in ((stop.put_wishes, stop.follow_wishes) if store.count() > 1 else ())
    ]
    with heard(*REASONS, by=stop.take):
        for thread in threads:
            thread.start()
        try:
            yield stop
        finally:
            stop.end()
            for thread in threads:
                thread.join()
