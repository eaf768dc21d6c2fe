"""The processes of this host for the next round of an elastic run, which are started ahead.

To import what they need takes seconds, and more where many processes begin at once. So they have
done that before they are needed, and wait; see `hosts.standby`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress

from meshdsl.commands.processes import Started, start_process


class Standbys:
    """Processes that wait, one for each of `environments`.

    Args:
      words, environments: as for `launch`.
    """

    def __init__(self, words: Sequence[str], environments: Sequence[dict[str, str]]):
        self._words, self._environments = words, environments
        self._waiting: dict[int, Started] = {}

    def start(self) -> None:
        """Start those that are missing, because they were taken or have died."""
        for number in range(len(self._environments)):
            self._start(number)

    def _start(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting and waiting.process.poll() is None:
            return
        if waiting:
            waiting.close()
        self._waiting[number] = start_process(self._words, self._environments[number], waits=True)

    def take(self, number: int, environment: dict[str, str], shows: bool) -> Started:
        """Let a process begin.

        Args:
          number: which one.
          environment: what else its environment says.
          shows: whether it prints where this process does.
        """
        self._start(number)
        taken = self._waiting.pop(number)
        told = json.dumps({"environment": environment, "shows": shows})
        with suppress(BrokenPipeError):  # it has just died, which its exit code says
            os.write(taken.hold, f"{told}\n".encode())
        return taken

    def close(self) -> None:
        """End those that wait."""
        for each in self._waiting.values():
            each.close()
