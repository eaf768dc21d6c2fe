"""How processes that run together end when one of them fails.

Left alone, the others would wait in a collective for as long as the one that failed is alive, and it would wait for them at its end: tried, nobody
ends. So it leaves a note in the store, and ends at once; the others look for such a note every second, and end too. A process that dies
without a word, by SIGKILL or with its machine, is missed by the coordination service after `join.HEARTBEAT` seconds, which ends the others.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

from meshdsl.hosts import store

LAUNCHED = "MESHDSL_LAUNCHER"  # in the environment of processes that `meshdsl launch` started: the end of a pipe that closes with it
FOLLOWED = 75  # the exit code, under the launcher, of a process that ended because another one failed
_EVERY = 1.0  # seconds between two looks at the store
_NOTE = "failed"

_over = threading.Event()


def ended(text: str, code: int) -> int:
    """Report an error that ends this program: print `text`, and return the exit code.

    With several processes the text is printed under the number of this one, the others are told, and the process ends here: it does not return.
    Where another one failed before, what happens here is its consequence, and nothing is printed.
    """
    if store.count() == 1:
        print(text, file=sys.stderr)
        return code
    text = "\n".join(f"process {store.index()}: {line}" for line in text.splitlines())
    note = json.dumps({"process": store.index(), "code": code, "text": text})
    with suppress(RuntimeError):  # the store is gone, and the others know that by themselves
        if not store.put(_NOTE, note):
            _end_with(json.loads(store.peek(_NOTE)))
    print(text, file=sys.stderr)
    if store.first():
        _over.wait(2 * _EVERY)  # the store ends with this process: let the others read the note
    _exit(code)


def watch() -> None:
    """Look for the note of another process from now on, and leave one where an exception ends this one."""
    thread = threading.Thread(target=_look, name="meshdsl failures", daemon=True)
    thread.start()
    sys.excepthook = lambda kind, error, trace: ended("".join(traceback.format_exception(kind, error, trace)), 1)

    @atexit.register  # before JAX leaves the store, which was registered earlier
    def over() -> None:
        _over.set()
        thread.join()


def follow_launcher() -> None:
    """End when the launcher does, however it ends: nobody would stop this process any more."""
    if LAUNCHED in os.environ:
        threading.Thread(target=_follow, args=(int(os.environ[LAUNCHED]),), name="meshdsl launcher", daemon=True).start()


def _look() -> None:
    with suppress(RuntimeError):  # the store is gone: what JAX does about that ends this process
        while not _over.wait(_EVERY):
            if note := store.peek(_NOTE):
                told = json.loads(note)
                if told["process"] == store.index():
                    return
                _end_with(told)


def _end_with(told: dict[str, Any]) -> None:
    """End as another process did."""
    if LAUNCHED in os.environ:  # the launcher shows what the other one printed
        _exit(FOLLOWED)
    if store.first():
        print(told["text"], file=sys.stderr)
    _exit(told["code"])


def _follow(pipe: int) -> None:
    os.read(pipe, 1)
    _exit(1)


def _exit(code: int) -> None:
    """End without the barrier at which JAX waits for all processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
