"""Signs of life: a process that dies or stands still is missed by another, named, and all end.

Each process writes a number into the store every few seconds, and looks at that of the next one.
So the work of a process does not grow with their number. What is counted is how often a process has
looked in vain, and not a time: one that was stopped itself, or whose clock was set, accuses nobody.

Process 0 holds the store. Where that does not answer for as long, process 0 is missed by all.

JAX's own service misses a process too, after half of `join.HEARTBEAT` seconds or more, but it ends
the others by an abort with a C++ stack trace. So it is given more time than this module takes.
Where process 0 is killed, `relay` sees it at once.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from meshdsl.hosts import store
from meshdsl.hosts.ending import end_alone, report_and_end

MISSED = os.EX_TEMPFAIL  # the exit code, 75, as that of the watchdog: "try again"
_BEAT = 5.0  # seconds from one sign of life to the next
_PATIENCE = 9  # so many looks in vain, one per beat, and a process counts as dead
_LOST = 3  # and so many where a connection was lost too
_ENDED = "ended"  # the sign of a process that has come to its end
_FOLDER = "alive"


class Heartbeat:
    """The signs of life of this process, and its look at the next one, in a thread.

    Another thread looks at whether the store answers.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._beats = 0
        self._thread = threading.Thread(target=self._work, name="meshdsl heartbeat", daemon=True)
        self._store = threading.Thread(target=self._watch, name="meshdsl store", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._store.start()

    def end(self) -> None:
        """Say that this process ends properly, so that nobody misses it."""
        self._over.set()
        self._thread.join()
        with suppress(RuntimeError):
            store.put_again(_mine(), _ENDED)

    def _work(self) -> None:
        other = (store.index() + 1) % store.count()
        seen, in_vain = "", 0
        with suppress(RuntimeError):  # the store is gone: JAX ends this process
            while not self._over.wait(_BEAT if self._beats else 0):
                self._beats += 1
                store.put_again(_mine(), str(self._beats))
                found = store.look(f"{_FOLDER}/{other}")
                in_vain = in_vain + 1 if found == seen and found != _ENDED else 0
                seen = found
                if in_vain >= _PATIENCE:
                    report_and_end(missed([other], _silence(in_vain)), MISSED)

    def _watch(self) -> None:
        seen, in_vain = 0, 0
        while not self._over.wait(_BEAT):
            in_vain = in_vain + 1 if self._beats == seen else 0
            seen = self._beats
            if in_vain >= _PATIENCE:
                end_alone(missed([0], _silence(in_vain)), MISSED)


def end_where_one_is_missed() -> None:
    """After an error of JAX's in a run of several processes: end it if one of them is dead.

    The error is then only what came of that. It takes some seconds to know. Process 0 finds out,
    and the others wait to be told.
    """
    wait = threading.Event().wait
    with suppress(RuntimeError):
        if not store.first():
            wait(2 * _LOST * _BEAT)  # the thread that waits for the note of process 0 ends this one
            return
        before = store.values_below(_FOLDER)
        wait(_LOST * _BEAT)
        after = store.values_below(_FOLDER)
        dead = [int(i) for i in before if after.get(i) == before[i] != _ENDED]
        if dead:
            report_and_end(missed(sorted(dead), _silence(_LOST)), MISSED)


def missed(dead: list[int], why: str) -> str:
    """What is said of processes that have died, or cannot be reached."""
    verb = "have" if dead[1:] else "has"
    return (
        f"{store.in_words(dead)} {verb} died or cannot be reached: {why}; "
        f"the run ends with exit code {MISSED}, and can be resumed"
    )


def _silence(beats: int) -> str:
    return f"no sign of life for {beats * _BEAT:g} s"


def _mine() -> str:
    return f"{_FOLDER}/{store.index()}"
