"""Steps on the screen: a progress bar on a terminal, else a line now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from meshdsl.train.watch.metrics_file import Record

Show = Callable[[Record], None]


@contextmanager
def progress(console: Console, done: int, steps: int, every: int) -> Iterator[Show]:
    """A function that shows the record of a step: in a progress bar on a terminal, else as a line per `every` steps."""
    if not console.is_terminal:
        yield _lines(console, steps, every)
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("train", total=steps, completed=done, loss=math.nan, speed="")
        yield lambda record: bar.update(
            task, completed=record["step"], loss=record["loss"], speed=_speed(record)
        )


def _lines(console: Console, steps: int, every: int) -> Show:
    spent = taken = 0

    def show(record: Record) -> None:
        nonlocal spent, taken
        spent, taken = spent + record["seconds"], taken + 1
        step = record["step"]
        if step % every and step not in (1, steps):
            return
        left = math.ceil((steps - step) * spent / taken)
        bits = f"{record['bits_per_byte']:.3f} bits/byte  " if "bits_per_byte" in record else ""
        skipped = "  skipped" if record.get("skipped") else ""
        line = f"step {step}/{steps}  loss {record['loss']:.4f}  {bits}{_speed(record)}{skipped}  {_duration(left)} left"
        console.print(line, highlight=False, soft_wrap=True)

    return show


def _speed(record: Record) -> str:
    mfu = f"  MFU {record['mfu_causal']:.1%}" if "mfu_causal" in record else ""
    return f"{record['tokens_per_second']:,.0f} tokens/s{mfu}"


def _duration(seconds: int) -> str:
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
