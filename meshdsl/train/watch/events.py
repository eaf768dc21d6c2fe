"""`events.jsonl`: what happened to a run, a line of JSON each, in the order in which it happened.

The file is only ever appended to, a whole line at a time, by process 0. Unlike lines of metrics no
line is dropped when a run goes back. A kill may leave half a line, which readers pass over.

    {"time": 1764320000.0, "event": "start", "step": 0, "steps": 100, "written": 1764320004.5, ...}
    {"time": 1764320012.3, "event": "first_step", "step": 1, "startup_seconds": 12.3, ...}
    {"time": 1764320020.1, "event": "checkpoint", "step": 50, "seconds": 0.2}
    {"time": 1764320031.2, "event": "end", "step": 100, "reason": "finished"}
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from meshdsl.errors import MeshDSLError
from meshdsl.parsing import parse_json
from meshdsl.train.startup import Startup
from meshdsl.train.watch.metrics_file import (
    StepMetrics,
    explained_write_errors,
    is_finite,
    last_line,
)
from meshdsl.train.watch.step_timer import TRAINING, parts

Event = dict[str, Any]

_LINE = re.compile(rb"\{.*\}\n")
_LATEST = 1e11  # seconds since 1970: a clock that says more cannot be right
_TEXT = 300  # characters of an error that are kept


class Events:
    """Writes the events of one start of a run; a context manager, which writes how it ends.

    Nothing is written before `started` is called.

    Args:
      path: of the file; None: nothing is written, as in all processes but the first.

    Raises:
      MeshDSLError: the file cannot be written. Every method may raise this.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._file: TextIO | None = None
        self._last: Event = {}  # what the event of the end says beside the reason

    def started(
        self, startup: Startup, step: int, steps: int, metrics: Path, **values: Any
    ) -> None:
        """Open the file, and write that the run was started when this process began.

        Args:
          step: after which it goes on.
          steps: of the whole run.
          metrics: the metrics file as the earlier start left it: its last line is a sign of life.
          values: what else the event says.
        """
        if self._path is None:
            return
        with explained_write_errors(self._path):
            torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
            self._file = self._path.open("a", buffering=1, encoding="utf-8")
            if torn:  # the earlier start was killed in the middle of a line
                self._file.write("\n")
        if before := last_line(metrics):
            values["seen"] = before.get("time")
        self._last["step"] = step
        self.write("start", step, startup.began, steps=steps, written=time.time(), **values)

    def write(
        self, event: str, step: int | None = None, at: float | None = None, **values: Any
    ) -> None:
        """Append an event.

        Args:
          event: what happened, in a word.
          step: the newest step that was done then.
          at: when it happened, in seconds since 1970; now by default.
          values: what else the line says.
        """
        if self._file is not None and self._path is not None:
            found = {"time": round(time.time() if at is None else at, 3), "event": event}
            values = {key: _rounded(value) for key, value in values.items()}
            line = found | ({} if step is None else {"step": step}) | values
            with explained_write_errors(self._path):
                self._file.write(json.dumps(line) + "\n")

    def at_end(self, step: int, spent: dict[str, float]) -> None:
        """Note for the event of the end the last step, and the seconds of what came after it."""
        self._last = {"step": step, **spent}

    def end(self, reason: str, checkpoint_seconds: float = 0.0) -> None:
        """Append that the run ends here.

        Args:
          reason: `finished`, `preempted`, `interrupted`, or the class of an error.
          checkpoint_seconds: that went by until the last checkpoint was on disk.
        """
        if waited := checkpoint_seconds + self._last.get("checkpoint_seconds", 0.0):
            self._last["checkpoint_seconds"] = waited
        self.write("end", reason=reason, **self._last)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is None or self._path is None:
            return
        if error is None:
            with explained_write_errors(self._path):
                self._file.close()
            return
        with suppress(MeshDSLError, OSError):  # what ended the run is told, and not what follows
            self._last["error"] = " ".join(str(error).split())[:_TEXT]
            self.end(type(error).__name__)
            self._file.close()


def _rounded(value: Any) -> Any:
    """Seconds, to a thousandth."""
    return round(value, 3) if isinstance(value, float) else value


def read_events(path: Path) -> list[Event]:
    """The events of a run in their order; none where there is no such file.

    Lines that are damaged are passed over, and so are those without a time that can be.
    """
    if not path.is_file():
        return []
    found = []
    with path.open("rb") as file:
        for line in file:
            if not _LINE.fullmatch(line):
                continue
            try:
                event = parse_json(line)
            except ValueError:
                continue
            at = event.get("time")
            if is_finite(at) and 0 <= at < _LATEST and isinstance(event.get("event"), str):
                found.append(event)
    return found


def lost(lines: Iterable[StepMetrics]) -> Event:
    """What an event says of steps whose metrics are dropped: they are trained again.

    Returns:
      `steps`: how many; `last`: the number of the last one; `seconds`: that they took; and the
      seconds of what was done between them, by its name.
    """
    lines = list(lines)
    sums: dict[str, float] = {}
    for line in lines:
        for what, seconds in parts(line).items():
            name = "seconds" if what in TRAINING else f"{what}_seconds"
            sums[name] = sums.get(name, 0.0) + seconds
    return {
        "steps": len(lines),
        "last": max((line["step"] for line in lines), default=0),
        **sums,
    }
