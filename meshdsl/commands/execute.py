"""How a command ends: with its exit code, or where it cannot go on with one line on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from pkgutil import resolve_name

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import report_and_end
from meshdsl.hosts.standby import wait_until_told
from meshdsl.user_code import line_of


def execute(command: str, function: str, arguments: argparse.Namespace) -> int:
    """Run the function of a command, and return the exit code.

    A mistake of the user, and an output that cannot be written, are one line on stderr and exit
    code 2; the line also says where in code of the user's the mistake is. Where whoever reads the
    output has closed it, the code is 0.

    Args:
      command: its name, for that line.
      function: `module:function`, such as `meshdsl.commands.train:train_model`.
      arguments: the values of its flags, and its settings.
    """
    try:
        run = resolve_name(function)
        wait_until_told()
        code = run(arguments)
        if sys.stdout is not None:  # it is None where the shell has closed it
            sys.stdout.flush()
        return code
    except MeshDSLError as error:
        text, line = " ".join(str(error).split()), line_of(error)
        at = f" ({line})" if line and line not in text else ""
        return report_and_end(f"meshdsl {command}: {text}{at}", 2)
    except BrokenPipeError:  # whoever reads, `head` say, has seen enough
        _discard_output()
        return report_and_end("", 0)
    except OSError as error:
        if not _output_fails():
            raise
        _discard_output()
        return report_and_end(
            f"meshdsl {command}: the output cannot be written: {error.strerror}", 2
        )


def _output_fails() -> bool:
    """Whether an error came from the standard output, on a full disk say: then one more line fails
    as well."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """What is still to be written goes nowhere, so that Python does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
