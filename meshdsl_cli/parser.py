"""From the words of a command line to the function that runs them, with its flags and settings."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, NoReturn

from meshdsl_cli.commands import COMMANDS
from meshdsl_cli.declare import Command, Flag, Group

_SETTING = re.compile(r"[A-Za-z_][\w.]*=.*", re.DOTALL)
_ANY_TEXT = {flag.name for command in COMMANDS for flag in command.all_flags() if flag.any_text}


class Call(NamedTuple):
    """A command line that has been understood.

    Attributes:
      name: its first word, such as `train`.
      function: what runs it, as `module:function`.
      arguments: the values of its flags, and its settings as `arguments.settings`.
    """

    name: str
    function: str
    arguments: argparse.Namespace


def parse(words: Sequence[str]) -> Call:
    """Understand the words of a command line.

    Settings `key=value` may stand anywhere, also after `--data PATH...`; a path that looks like a
    setting is written `./a=b`.

    Raises:
      SystemExit: what was asked for is help or the version, which is printed; or there is a mistake
        in a flag, which is reported in one line on stderr. The code is 0, or 2 for a mistake.
    """
    flags, settings = _split_off_settings(words)
    parser = _program()
    found = vars(parser.parse_args(flags))
    name, command = found.pop("name"), found.pop("command")
    if mistake := _mistake(command, name, found, settings):
        parser.exit(2, f"meshdsl {name}: {mistake}\n")
    return Call(name, command.function, argparse.Namespace(**found, settings=settings))


def _mistake(
    command: Command, name: str, found: Mapping[str, Any], settings: Sequence[str]
) -> str | None:
    """What is wrong with a command line that argparse has accepted, in the command's own words."""
    if settings and not command.settings:
        return command.without_settings.format(setting=settings[0], command=name)
    for flag in command.own_flags():
        if flag.missing and found[flag.attribute] is None:
            return flag.missing
    return None


def _split_off_settings(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words without settings, and the settings.

    A flag whose value may be any text is joined to the word after it: `--mesh=data=4`.
    """
    flags: list[str] = []
    settings: list[str] = []
    wants_text = False
    for word in words:
        if wants_text:
            flags[-1] += f"={word}"
        elif _SETTING.fullmatch(word):
            settings.append(word)
        else:
            flags.append(word)
        wants_text = not wants_text and word in _ANY_TEXT
    return flags, settings


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=_width())


def _width() -> int:
    """Of help and usage, in columns."""
    return max(40, min(100, shutil.get_terminal_size().columns - 2))


def _program() -> _Parser:
    parser = _Parser(
        prog="meshdsl",
        description="Write a model once, choose in a file how it is split over a mesh.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions, and end")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for command in COMMANDS:
        _add_command(commands, command, f"meshdsl {command.name}")
    return parser


class _Version(argparse.Action):
    """Prints the versions of meshdsl and of JAX; libtpu's too where that is installed."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        for package in ("meshdsl", "jax", "jaxlib", "libtpu"):
            with suppress(PackageNotFoundError):
                print(f"{package} {version(package)}")
        parser.exit()


def _add_command(commands: Any, command: Command, program: str) -> None:
    """Declare a command, and its parts, to argparse."""
    parser = commands.add_parser(
        command.name,
        prog=program,
        help=command.help,
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        usage=command.usage(program, _width()),
        epilog=command.epilog,
        formatter_class=_Formatter,
    )
    parser.set_defaults(command=command)
    for flag in command.flags:
        _add_flag(parser, flag)
    if command.parts:
        names = "|".join(part.name for part in command.parts)
        parts = parser.add_subparsers(required=not command.function, metavar=names)
        for part in command.parts:
            _add_command(parts, part, f"{program} {part.name}")


def _add_flag(parser: Any, flag: Flag | Group) -> None:
    """Declare a flag, or several of them, to argparse; `parser` may be a group of one."""
    if isinstance(flag, Flag):
        parser.add_argument(flag.name, **flag.options)
        return
    if flag.title:
        group = parser.add_argument_group(flag.title, flag.description)
    else:
        group = parser.add_mutually_exclusive_group()
    for one in flag.flags:
        _add_flag(group, one)
