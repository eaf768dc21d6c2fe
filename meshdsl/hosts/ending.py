"""How processes that run together end when one of them fails.

Left alone, the others would wait in a collective for as long as the one that failed is alive, and it would wait for them at its end: tried, nobody
ends. So it leaves a note in the store, tells each of the others, which wait for that, and all end. A process that dies without a word,
by SIGKILL or with its machine, is missed by the coordination service after `join.HEARTBEAT` seconds, which ends the others.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from meshdsl.hosts import store

LAUNCHED = "MESHDSL_LAUNCHER"  # in the environment of processes that `meshdsl launch` started: the end of a pipe that closes with it
FOLLOWED = 79  # the exit code, under the launcher, of a process that ended because another one failed; no other end has this code
_READING = 2.0  # seconds in which the others have read what they were told
_NOTE = "failed"  # by the first process that fails
_TOLD = "told"  # that note once more, under the number of each of the others; nothing, where it came to its end before

_ending = threading.RLock()  # kept by the first thread that ends this process


def ended(text: str, code: int) -> int:
    """Report what ends this program: print `text`, if any, and return the exit code.

    With several processes the text is printed under the number of this one, the others are told, and the process ends here: it does not return.
    Where another one failed before, what happens here is its consequence, and nothing is printed.
    """
    if store.count() == 1:
        _report(text)
        return code
    _ending.acquire()
    text = "\n".join(f"process {store.index()}: {line}" for line in text.splitlines())
    note = json.dumps({"process": store.index(), "code": code, "text": text})
    with suppress(RuntimeError):  # the store is gone, and the others know that by themselves
        if not store.put(_NOTE, note):
            _end_with(json.loads(store.peek(_NOTE)))
    _report(text)
    with suppress(RuntimeError):
        for other in set(range(store.count())) - {store.index()}:
            store.put(f"{_TOLD}/{other}", note)
    _leave(code)


def watch() -> None:
    """Wait for the note of another process from now on, and leave one where an exception ends this one."""
    thread = threading.Thread(target=_wait, name="meshdsl failures", daemon=True)
    thread.start()
    sys.excepthook = lambda kind, error, trace: ended(
        "".join(traceback.format_exception(kind, error, trace)), 1
    )

    @atexit.register  # before JAX leaves the store, which was registered earlier
    def over() -> None:
        with suppress(RuntimeError):
            store.put(f"{_TOLD}/{store.index()}", "")  # which ends the thread
        thread.join()


def follow_launcher() -> None:
    """End when the launcher does, however it ends: nobody would stop this process any more."""
    if LAUNCHED in os.environ:
        threading.Thread(
            target=_follow, args=(int(os.environ[LAUNCHED]),), name="meshdsl launcher", daemon=True
        ).start()


def _wait() -> None:
    with suppress(RuntimeError):  # the store is gone: what JAX does about that ends this process
        if note := store.wait_for(f"{_TOLD}/{store.index()}"):
            _ending.acquire()
            _end_with(json.loads(note))


def _end_with(told: dict[str, Any]) -> NoReturn:
    """End as the process that left the note."""
    if told["process"] == store.index():  # a signal came while it ended
        _leave(told["code"])
    if LAUNCHED in os.environ:  # the launcher shows what the other one printed
        _leave(FOLLOWED)
    if store.first():
        _report(told["text"])
    _leave(told["code"])


def _report(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _follow(pipe: int) -> None:
    os.read(pipe, 1)
    _exit(1)


def _leave(code: int) -> NoReturn:
    if store.first():
        time.sleep(_READING)  # the store ends with this process
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End without the barrier at which JAX waits for all processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
