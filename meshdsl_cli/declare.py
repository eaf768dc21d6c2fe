"""What the declaration of a command consists of: flags, groups of flags, and the command itself."""

from __future__ import annotations

import textwrap
from argparse import REMAINDER
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

_NO_BREAK = "\xa0"  # a space at which a line does not end


class Flag:
    """A flag such as `--steps N` or, under a name without dashes, a word such as `run RUN`.

    >>> Flag("--steps N", "how many steps to train", count)

    Args:
      usage: what the user types, and how the help calls its value: `N`, `N...` for one or more,
        `[N]` for one or none, and `N,...` for a text with commas. A flag without a value is True
        where it is given. The name of a word is that of its value in the function of the command.
      help: what it is for.
      type: makes the value of a text.
      any_text: the value may look like a setting `key=value` or like a flag, as in `--mesh data=4`.
      several: the flag may be given several times; its value is the list of all that were given.
      missing: for a flag that must be given, what the user is told where it is not; argparse has
        a sentence of its own for those with `required=True`.
      options: what else `argparse.ArgumentParser.add_argument` takes: `default`, `choices`, ...
    """

    def __init__(
        self,
        usage: str,
        help: str,
        type: Callable[[str], Any] | None = None,
        *,
        any_text: bool = False,
        several: bool = False,
        missing: str = "",
        **options: Any,
    ):
        self.name, _, self._value = usage.partition(" ")
        self._value = self._value or "|".join(options.get("choices", ()))
        self.any_text = any_text
        self.missing = missing
        if several:
            help += "; may be given several times"
            options |= {"action": "append", "default": []}
        self.options = {"help": help} | ({"type": type} if type else {}) | options
        if not self._value:
            self.options.setdefault("action", "store_true")
        elif "nargs" in options:
            self.options["metavar"] = self._value
        elif self._value.endswith("...") and not self._value.endswith(",..."):
            self.options |= {"nargs": "+", "metavar": self._value.removesuffix("...")}
        elif self._value.startswith("["):
            self.options |= {"nargs": "?", "metavar": self._value[1:-1]}
        elif self.options.get("action") != "store_const":
            self.options["metavar"] = self._value

    def but(self, name: str = "", **changes: Any) -> Flag:
        """The same flag with some of its declaration changed: `LAYOUT.but(default="data")`."""
        found = copy(self)
        found.name = name or self.name
        found.missing = changes.pop("missing", self.missing)
        found.options = self.options | changes
        return found

    @property
    def attribute(self) -> str:
        """The name of its value in the function of the command: `warm_start` for `--warm-start`."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def required_usage(self) -> str:
        """How the usage line shows it where it must be there: `--steps N`, `RUN...`."""
        words = (self.name, self._value) if self.name.startswith("-") else (self._value,)
        return " ".join(filter(None, words))

    @property
    def usage(self) -> str:
        """How the usage line shows it: `[--steps N]`, `RUN...`."""
        text = self.required_usage
        if self.name.startswith("-") and not (self.missing or self.options.get("required")):
            text = f"[{text}]"
        return f"{text}..." if self.options.get("action") == "append" else text


@dataclass(frozen=True)
class Group:
    """Flags that stand together in the help, under a title and a sentence about them.

    Those of a group without a title exclude each other: a command line has at most one of them.
    """

    flags: tuple[Flag, ...]
    title: str = ""
    description: str = ""

    @property
    def usage(self) -> str:
        between = " " if self.title else " | "
        return f"[{between.join(flag.required_usage for flag in self.flags)}]"


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
    flags: tuple[Flag | Group, ...] = ()
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
