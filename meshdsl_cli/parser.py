"""The command line, `meshdsl COMMAND`. The commands are in `meshdsl.commands`.

The program itself is `meshdsl_start`. A mistake of the user is one line on stderr and exit code 2.
Modules that load JAX's companions are imported by the command that needs them, so
`meshdsl layouts` answers at once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from meshdsl import __version__
from meshdsl.commands import (
    checkpoint,
    compare,
    compile,
    explain,
    generate,
    launch,
    layouts,
    plot,
    tokenizer,
    train,
)
from meshdsl.errors import MeshDSLError
from meshdsl.hosts import ended
from meshdsl.hosts.signals import hear

_SETTING = re.compile(r"[A-Za-z_][\w.]*=.*", re.DOTALL)
_COMMANDS = (
    train,
    generate,
    launch,
    checkpoint,
    tokenizer,
    plot,
    explain,
    compile,
    compare,
    layouts,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments, settings = _parse(words)
    try:
        code = arguments.command(arguments, settings)
        sys.stdout.flush()
        return code
    except MeshDSLError as error:
        return ended(f"meshdsl {words[0]}: {' '.join(str(error).split())}", 2)
    except BrokenPipeError:  # whoever reads, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ended("", 0)


def _parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags, and settings `key=value`. A setting may stand anywhere, also after `--data PATH...`; a path that looks like one is written `./a=b`."""
    flags, settings = [], []
    for before, word in zip(["", *words], words, strict=False):
        if before in _FREE and flags[-1:] == [before]:
            flags[-1] = f"{before}={word}"
        else:
            (settings if _SETTING.fullmatch(word) else flags).append(word)
    return _parser().parse_args(flags), settings


_FREE = (
    "--mesh",
    "--option",
    "--prompt",
)  # flags whose values may look like settings, or like flags


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="meshdsl",
        description="Write a model once, choose in a file how it is split over a mesh.",
    )
    parser.add_argument("--version", action="version", version=f"meshdsl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add(commands)
    return parser


if __name__ == "__main__":
    hear()
    sys.exit(main())
