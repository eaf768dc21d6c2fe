"""How processes that run together end when one of them fails.

Left alone they would wait for each other for ever: the others in a collective, for the one that
failed, and that one at its end, for the others. So a process that fails leaves a note in the store
and sends it to each of the others, where a thread waits for it, and all end. Where a process dies
without a word, by SIGKILL or with its machine, another one misses it; see `heartbeat`.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from meshdsl.hosts import store

# The variable of the environment by which `meshdsl launch` gives each process that it starts the
# end of a pipe, which closes when the launcher ends.
LAUNCHED = "MESHDSL_LAUNCHER"
# The exit code, under the launcher, of a process that ended because another one failed. No process
# ends with this code for another reason.
FOLLOWED = 79
_READING = 2.0  # seconds in which the other processes have read what was sent to them
_NOTE = "failed"  # the key of the note of the first process that fails
# Errors of JAX's that may come of the death of another process begin so, whatever their class.
_OF_ANOTHER = re.compile(
    "(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DATA_LOSS|DEADLINE_EXCEEDED): "
)
_TOLD = "told"  # the folder in which that note is sent: a key for the number of each other process

_ending = threading.RLock()  # kept by the first thread that ends this process


def report_and_end(text: str, code: int) -> int:
    """Print `text` to stderr, and end this program with the exit code `code`, in all processes.

    With one process, that is up to the caller: the exit code is returned. With several, the text is
    printed under the number of this one, the others are told, and the process ends in here. Where
    another process failed before, whatever happens here is a consequence of that, so nothing is
    printed, and the process ends as that one did.

    Args:
      text: empty to print nothing.
    """
    if store.count() == 1:
        _report(text)
        return code
    _ending.acquire()
    text = "\n".join(f"process {store.index()}: {line}" for line in text.splitlines())
    note = json.dumps({"process": store.index(), "code": code, "text": text})
    with suppress(RuntimeError):  # the store is gone, and the others know that by themselves
        if not store.put(_NOTE, note):
            _end_as(json.loads(store.wait_for(_NOTE)))
    _report(text)
    with suppress(RuntimeError):
        for other in set(range(store.count())) - {store.index()}:
            store.put(f"{_TOLD}/{other}", note)
    _leave(code)


def end_alone(text: str, code: int) -> None:
    """Print `text` to stderr and end this process, where the store can tell nobody any more.

    It returns where another thread has begun to end this process, and has not come to an end yet:
    that thread may wait for the store.
    """
    if _ending.acquire(timeout=_READING):
        _report(f"process {store.index()}: {text}")
        _exit(code)


def end_together(find_missed: Callable[[], None]) -> None:
    """End this process when another one fails, and the others when an exception ends this one.

    It holds from the call to the end of the program, and is for a program of several processes.

    Args:
      find_missed: called where an error of JAX's ends this process, because that may come of the
        death of another one. It ends the program if so.
    """
    thread = threading.Thread(target=_wait_for_note, name="meshdsl failures", daemon=True)
    thread.start()

    def report_exception(kind, error, trace) -> None:
        if _OF_ANOTHER.match(str(error)):
            find_missed()
        report_and_end("".join(traceback.format_exception(kind, error, trace)), 1)

    sys.excepthook = report_exception

    @atexit.register  # runs before JAX leaves the store, because that was registered earlier
    def stop_waiting() -> None:
        with suppress(RuntimeError):
            store.put(f"{_TOLD}/{store.index()}", "")  # an empty note ends the thread
        thread.join()


def follow_launcher() -> None:
    """End this process when `meshdsl launch`, if that started it, ends, however it ends.

    Nobody would stop the process any more.
    """
    if LAUNCHED in os.environ:
        pipe = int(os.environ[LAUNCHED])
        threading.Thread(
            target=_end_with_launcher, args=(pipe,), name="meshdsl launcher", daemon=True
        ).start()


def _wait_for_note() -> None:
    with suppress(RuntimeError):  # the store is gone: what JAX does about that ends this process
        if note := store.wait_for(f"{_TOLD}/{store.index()}"):
            _ending.acquire()
            _end_as(json.loads(note))


def _end_as(note: dict[str, Any]) -> NoReturn:
    """End as the process that left the note does."""
    if note["process"] == store.index():  # a signal came while this process ended
        _leave(note["code"])
    if LAUNCHED in os.environ:  # the launcher shows what the other one printed
        _leave(FOLLOWED)
    if store.first():
        _report(note["text"])
    _leave(note["code"])


def _report(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _end_with_launcher(pipe: int) -> None:
    os.read(pipe, 1)  # until the launcher has ended
    _exit(1)


def _leave(code: int) -> NoReturn:
    """End this process; process 0 gives the others time to read the store, which ends with it."""
    if store.first():
        time.sleep(_READING)
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End this process without the barrier at which JAX would wait for all processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
