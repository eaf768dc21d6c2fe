"""The program `meshdsl`, which Ctrl-C ends at any moment, also while JAX is imported.

It starts outside of the package, because `import meshdsl` imports JAX, and that takes a second.
From then on signals are the matter of `meshdsl.hosts.signals`.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_code = 1  # the exit code: this one where an exception ends the program


def run() -> NoReturn:
    """Run the command line, and end with its exit code."""
    global _code
    signal.signal(signal.SIGINT, _end)
    # `meshdsl launch` holds it back until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    atexit.register(_leave)  # the first one that is registered is the last one that is called

    # Only now: this is what takes a second.
    from meshdsl.cli import main
    from meshdsl.hosts.signals import hear

    hear()
    try:
        _code = main()
    except SystemExit as ended:  # of the parser: a mistake, or --help
        _code = ended.code
    sys.exit(_code)


def _end(number: int, frame: object) -> None:
    with suppress(OSError):  # nobody reads any more
        os.write(2, b"meshdsl: interrupted; nothing more was saved\n")
    os._exit(130)


def _leave() -> None:
    """End at once, where Python would take itself apart: for half a second, deaf to signals."""
    with suppress(OSError, ValueError):  # nobody reads any more, or it is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_code)


if __name__ == "__main__":
    run()
