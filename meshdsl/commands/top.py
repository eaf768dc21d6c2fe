"""`meshdsl top`: how runs stand, in the terminal or as a page, while they go on or afterwards."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from meshdsl.commands.run_view import view_of
from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.extras import extra
from meshdsl.hosts.signals import REASONS, heard
from meshdsl.tools.run_page import run_page
from meshdsl.train.watch.curves import run_names
from meshdsl.train.watch.standing import RunReader
from meshdsl.train.watch.standing_text import standing_lines

_EVERY = 1.0  # seconds from one picture in the terminal to the next
_REST = 4.0  # times what a picture took, at least: runs of many steps take a while
_WIDTH = 100  # columns where there is no terminal


def watch_runs(arguments: argparse.Namespace) -> int:
    """Show how runs stand: once, again and again until Ctrl-C, or as a page.

    Raises:
      MeshDSLError: there is no such run, flags contradict each other, or the page cannot be
        written.
    """
    if arguments.every and not arguments.page:
        raise MeshDSLError("--every: says how often a page is written; say --page FILE too")
    folders = list(dict.fromkeys(arguments.runs))
    names = run_names(folders)
    readers = [RunReader(name, folder) for name, folder in zip(names, folders, strict=True)]
    if arguments.page:
        return _write_page(readers, arguments.page, arguments.every)
    if arguments.once or not sys.stdout.isatty():
        print("\n".join(_lines(readers, _WIDTH)))
        return 0
    return _show(readers)


def _lines(readers: Sequence[RunReader], width: int) -> list[str]:
    now, found = time.time(), []
    for reader in readers:
        found += [*([""] if found else []), *standing_lines(reader.standing(now), width)]
    return found


def _show(readers: Sequence[RunReader]) -> int:
    """Draw anew each second, until Ctrl-C."""
    with extra("train"):
        from rich.live import Live
        from rich.text import Text
    over = threading.Event()
    with heard(*REASONS, by=_ends(over)), Live(screen=True, auto_refresh=False) as live:
        while not over.is_set():
            began = time.monotonic()
            lines = _lines(readers, live.console.width)
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            over.wait(max(_EVERY, _REST * (time.monotonic() - began)))
    return 0


def _write_page(readers: Sequence[RunReader], path: Path, every: float | None) -> int:
    """Write the page, and again every so many seconds until Ctrl-C."""
    over = threading.Event()
    with heard(*REASONS, by=_ends(over)):
        while True:
            now = time.time()
            text = run_page([view_of(reader.standing(now)) for reader in readers], now, every)
            part = path.with_name(path.name + ".part")
            with system_errors_say(f"--page {path}"):
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            if not every or over.wait(every):
                print(f"wrote {path}", file=sys.stderr)
                return 0


def _ends(over: threading.Event) -> Callable[[int], bool]:
    """Takes a signal, which ends what goes on until `over`."""

    def take(number: int) -> bool:
        again = over.is_set()
        over.set()
        return not again

    return take
