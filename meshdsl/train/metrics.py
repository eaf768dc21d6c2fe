"""What a step measured: as one JSON object per step in the run's folder, and as one line for people."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Record = dict[str, Any]


def bits_per_byte(loss: float) -> float:
    """A loss in nats per token as bits per byte, where a token is a byte."""
    return loss / math.log(2)


class Meter:
    """Records of steps from what they measured, one step late, so that the devices are never waited for.

    Args:
      tokens: how many a step trains on.
      learning_rates: of every step of the run.
    """

    def __init__(self, tokens: int, learning_rates: np.ndarray):
        self._tokens, self._rates = tokens, learning_rates
        self._waiting: tuple[int, dict[str, jax.Array]] | None = None
        self.start()

    def start(self) -> None:
        """Count time from here; whatever was done since the last record belongs to no step."""
        self._since = time.perf_counter()

    def add(self, step: int, measured: dict[str, jax.Array]) -> Record | None:
        """Take what `step` (counted from 1) measures, which may still be running; the record of the step before it."""
        before = self.settle()
        self._waiting = step, measured
        return before

    def settle(self) -> Record | None:
        """Wait for the step that was added last, and return its record; None if that was done already."""
        if self._waiting is None:
            return None
        step, measured = self._waiting
        self._waiting = None
        values = {name: float(value) for name, value in jax.device_get(measured).items()}
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return {
            "step": step,
            "loss": values.pop("loss"),
            "bits_per_byte": bits_per_byte(values["cross_entropy"]),
            "tokens_per_second": self._tokens / seconds,
            "seconds": seconds,
            "learning_rate": float(self._rates[step - 1]),
            **values,
        }


class MetricsFile:
    """`metrics.jsonl`: one object per step, in order, whatever was interrupted and resumed.

    Args:
      steps: how many steps are done; records of later ones, left by a run that was killed, are dropped.
    """

    def __init__(self, path: Path, steps: int):
        kept = [line for line in read_lines(path) if json.loads(line)["step"] <= steps] if steps else []
        path.write_text("".join(kept))
        self._file = path.open("a", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def read_lines(path: Path) -> list[str]:
    """The whole lines of a metrics file; the last may be half written, and is left out then."""
    if not path.is_file():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


Show = Callable[[Record], None]


@contextmanager
def progress(console: Console, done: int, steps: int, log_every: int) -> Iterator[Show]:
    """A function that shows a step's record: in a progress bar on a terminal, else as a line per `log_every` steps."""
    if not console.is_terminal:
        yield _lines(console, steps, log_every)
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[tokens_per_second]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("train", total=steps, completed=done, loss=math.nan, tokens_per_second=0.0)
        yield lambda record: bar.update(
            task, completed=record["step"], loss=record["loss"], tokens_per_second=record["tokens_per_second"]
        )


def _lines(console: Console, steps: int, log_every: int) -> Show:
    spent = taken = 0

    def show(record: Record) -> None:
        nonlocal spent, taken
        spent, taken = spent + record["seconds"], taken + 1
        step = record["step"]
        if step % log_every and step not in (1, steps):
            return
        left = math.ceil((steps - step) * spent / taken)
        console.print(
            f"step {step}/{steps}  loss {record['loss']:.4f}  {record['bits_per_byte']:.3f} bits/byte  "
            f"{record['tokens_per_second']:,.0f} tokens/s  {left // 60}:{left % 60:02d} left",
            highlight=False,
            soft_wrap=True,
        )

    return show
