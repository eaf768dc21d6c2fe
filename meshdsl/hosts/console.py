"""`console`: where a run prints to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshdsl.extras import extra
from meshdsl.hosts import store

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """The console that a run prints to: stdout in process 0, and nowhere in the others.

    Raises:
      MeshDSLError: rich is not installed.
    """
    with extra("train"):
        from rich.console import Console

    class RunConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, and leave the other processes alone

    return RunConsole(
        highlight=False, soft_wrap=True, markup=False, emoji=False, quiet=not store.first()
    )
