"""SIGTERM (a scheduler that takes the machine back) and Ctrl-C, as wishes that the loop sees between two steps, so that a run can save its step.

Processes that train together must stop after the same step: all of them take part in its collectives, and in saving it. Whoever got a signal
leaves the wish in the store that the processes share (`meshdsl.hosts`). All wait for one there, in a thread of their own, tell which step they have begun, and stop after the first step that none of them has passed. A step asks nothing of the network; meanwhile the loop waits, at its next step.
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

_AGREEMENT = (
    600.0  # seconds in which all processes have told where they are; one may still be compiling
)
_OVER = "over"  # in place of a wish, where the run came to its end before one
_number = counter()  # of runs in this process; the same in all of them


class Stopping:
    """What the loop asks after each step."""

    def __init__(self) -> None:
        self.wish: str | None = None  # of this process
        self._reason: str | None = None  # of all
        self._last: int | None = None  # the step after which all stop
        self._step = 0
        self._telling = threading.Lock()  # while the processes agree, none goes on
        self._wishes: SimpleQueue[str] = SimpleQueue()

    def at(self, step: int) -> str | None:
        """Why the run stops after `step`, counted from 1: "preempted", "interrupted", or None: it goes on."""
        if store.count() == 1:
            return self.wish
        with self._telling:
            self._step = step
            return self._reason if self._last is not None and step >= self._last else None

    def take(self, number: int) -> bool:
        """Take a signal as a wish, but not a second Ctrl-C."""
        if self.wish == "interrupted":
            return number != signal.SIGINT
        self.wish = REASONS[signal.Signals(number)]
        self._wishes.put(self.wish)
        return True

    def tell(self, key: str) -> None:
        """Pass on the first wish of this process, or that the run is over, unless there is a wish: then all agree, also those at their end."""
        with suppress(RuntimeError):  # the store is gone, and JAX ends the process
            store.put(f"{key}/wish", self._wishes.get())

    def watch(self, key: str) -> None:
        """Learn the wish of any process, until there is one or the run is over."""
        with suppress(RuntimeError):
            if (reason := store.wait_for(f"{key}/wish")) != _OVER:
                self._agree(key, reason)

    def _agree(self, key: str, reason: str) -> None:
        with self._telling:
            store.put(f"{key}/steps/{store.index()}", str(self._step))
            store.wait_for_all(f"{key}/told", _AGREEMENT)
            if store.first():
                store.put(
                    f"{key}/last", str(1 + max(map(int, store.values_below(f"{key}/steps").values())))
                )
            self._last, self._reason = int(store.wait_for(f"{key}/last")), reason

    def over(self) -> None:
        self._wishes.put(_OVER)


@contextmanager
def stopping() -> Iterator[Stopping]:
    """SIGTERM and the first Ctrl-C are wishes in here; a second Ctrl-C ends the program at once."""
    stop = Stopping()
    key = f"stop/{next(_number)}"
    works = (stop.tell, stop.watch) if store.count() > 1 else ()
    how = {"args": (key,), "name": "meshdsl stopping", "daemon": True}
    threads = [threading.Thread(target=work, **how) for work in works]
    with heard(*REASONS, by=stop.take):
        for thread in threads:
            thread.start()
        try:
            yield stop
        finally:
            stop.over()
            for thread in threads:
                thread.join()
