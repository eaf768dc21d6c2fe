"""The program `meshdsl`, which Ctrl-C ends at any moment, also while JAX is imported.

Until the command line has been understood and JAX is loaded, a handler ends the program. From
then on signals are the matter of `meshdsl.hosts.signals`. What is needed in between is loaded by
its name once the handler is there, so that this file itself imports next to nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pkgutil import resolve_name
from types import FrameType
from typing import NoReturn

_exit_code = 1  # this one where an exception ends the program


def start() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code."""
    global _exit_code
    signal.signal(signal.SIGINT, _end)
    # `meshdsl launch` holds the signal back until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Imports and traces make millions of objects and little garbage, for which Python would look
    # often.
    gc.set_threshold(20_000, 20, 20)
    atexit.register(_leave)  # what is registered first is called last
    _exit_code = main(sys.argv[1:], hear_signals=True)
    sys.exit(_exit_code)


def main(words: Sequence[str], *, hear_signals: bool = False) -> int:
    """Run a command line such as `["train", "--steps", "3"]`, and return the exit code.

    Args:
      words: the command line, without the name of the program.
      hear_signals: let Ctrl-C end this process from the moment when JAX is loaded.
    """
    try:
        call = resolve_name("meshdsl_cli.parser:parse")(words)
    except SystemExit as ended:  # after --help, or a mistake that has been reported
        return int(ended.code or 0)
    # From here on JAX is imported.
    if hear_signals:
        resolve_name("meshdsl.hosts.signals:end_on_ctrl_c")()
    return resolve_name("meshdsl.commands.execute:execute")(*call)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # nobody reads any more
        os.write(2, b"meshdsl: interrupted; nothing more was saved\n")
    os._exit(130)


def _leave() -> None:
    """End at once, where Python would take itself apart: for half a second, deaf to signals."""
    for stream in (sys.stdout, sys.stderr):
        # Nobody reads any more, or it is closed, or the shell has closed it: then it is None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(_exit_code)
