"""What the declaration of a command consists of: flags, groups of flags, and the command itself."""

from __future__ import annotations

import textwrap
from argparse import REMAINDER
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NO_BREAK = "\xa0"  # a space at which a line does not end


class Flag:
    """A flag such as `--steps N` or, under a name without dashes, a word such as `RUN`.

    >>> Flag("--steps", type=count, metavar="N", help="how many steps to train")

    Args:
      name: what the user types, or for a word the name of its value in the function of the command.
      any_text: the value may look like a setting `key=value` or like a flag, as in `--mesh data=4`.
      missing: for a flag that must be given, what the user is told where it is not; argparse has
        a sentence of its own for those with `required=True`.
      options: what `argparse.ArgumentParser.add_argument` takes: `help`, `type`, `default`, ...
    """

    def __init__(self, name: str, *, any_text: bool = False, missing: str = "", **options: Any):
        if "choices" in options:
            options.setdefault("metavar", "|".join(options["choices"]))
        self.name = name
        self.any_text = any_text
        self.missing = missing
        self.options = options

    def but(self, **changes: Any) -> Flag:
        """The same flag with some of its declaration changed: `LAYOUT.but(default="data")`."""
        before = {"any_text": self.any_text, "missing": self.missing, **self.options}
        return Flag(self.name, **(before | changes))

    @property
    def attribute(self) -> str:
        """The name of its value in the function of the command: `warm_start` for `--warm-start`."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def required_usage(self) -> str:
        """How the usage line shows it where it must be there: `--steps N`, `RUN...`."""
        value: str = self.options.get("metavar", "")
        match self.options.get("nargs"):
            case "?":
                value = f"[{value}]"
            case "+":
                value = f"{value}..."
        return f"{self.name} {value}".rstrip() if self.name.startswith("-") else value

    @property
    def usage(self) -> str:
        """How the usage line shows it: `[--steps N]`, `RUN...`."""
        text = self.required_usage
        if self.name.startswith("-") and not (self.missing or self.options.get("required")):
            text = f"[{text}]"
        return f"{text}..." if self.options.get("action") == "append" else text


@dataclass(frozen=True)
class OneOf:
    """Flags of which a command line has at most one."""

    flags: tuple[Flag, ...]

    @property
    def usage(self) -> str:
        return f"[{' | '.join(flag.required_usage for flag in self.flags)}]"


@dataclass(frozen=True)
class Group:
    """Flags that stand together in the help, under a title and a sentence about them."""

    title: str
    description: str
    flags: tuple[Flag, ...]

    @property
    def usage(self) -> str:
        return f"[{' '.join(flag.required_usage for flag in self.flags)}]"


@dataclass(frozen=True)
class Command:
    """A command: what the user types after `meshdsl`, or after the command that it is a part of.

    Attributes:
      name: what the user types.
      help: what it does, in a line.
      function: what runs it, as `module:function`. It is called with the values of the flags as
        attributes, and the settings as `arguments.settings`, and returns the exit code. Empty
        where the command does nothing without one of its parts.
      flags: flags and words, in the order in which the usage line has them.
      parts: commands of its own, as in `meshdsl checkpoint ls`.
      settings: whether it takes settings `key=value`.
      without_settings: what the user is told who gives a setting to a command that takes none.
      epilog: what stands below the flags in the help.
    """

    name: str
    help: str
    function: str = ""
    flags: tuple[Flag | OneOf | Group, ...] = ()
    parts: tuple[Command, ...] = ()
    settings: bool = False
    without_settings: str = "`{setting}`: `{command}` has no settings"
    epilog: str | None = None

    def own_flags(self) -> Iterator[Flag]:
        """Its flags, without those of its parts."""
        for flag in self.flags:
            yield from (flag,) if isinstance(flag, Flag) else flag.flags

    def all_flags(self) -> Iterator[Flag]:
        """Its flags and those of its parts."""
        yield from self.own_flags()
        for part in self.parts:
            yield from part.all_flags()

    def usage(self, program: str, width: int) -> str:
        """What stands after `usage: ` in the help of `program`, in lines of at most `width`."""
        pieces = [flag.usage for flag in self.flags]
        if self.parts:
            names = "|".join(part.name for part in self.parts)
            pieces.append(f"[{names}]" if self.function else f"{names} ...")
        # What is left of the line, where a command takes that, has settings too.
        if self.settings and all(f.options.get("nargs") != REMAINDER for f in self.own_flags()):
            pieces.append("[key=value...]")
        begin = f"usage: {program} "
        text = textwrap.fill(
            " ".join(piece.replace(" ", _NO_BREAK) for piece in pieces),
            width,
            initial_indent=begin,
            subsequent_indent=" " * len(begin),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return text.replace(_NO_BREAK, " ").removeprefix("usage: ")
