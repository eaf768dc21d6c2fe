"""Steps on the screen: a progress bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshdsl.extras import extra
from meshdsl.figures import clock_words
from meshdsl.train.watch.metrics_file import StepMetrics
from meshdsl.train.watch.units import SPEED

if TYPE_CHECKING:
    from rich.console import Console

Show = Callable[[StepMetrics], None]


@contextmanager
def progress(console: Console, done: int, steps: int, every: int) -> Iterator[Show]:
    """A context manager that gives a function to show the metrics of a step.

    Of a step that has ended and whose loss is not known yet only a progress bar shows anything.

    Args:
      done: how many steps are done already.
      steps: of the whole run.
      every: on no terminal, how many steps there are from one line to the next.
    """
    if not console.is_terminal:
        yield _lines(console, steps, every)
        return
    with extra("train"):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
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

        def show(metrics: StepMetrics) -> None:
            loss = {"loss": metrics["loss"]} if "loss" in metrics else {}
            bar.update(task, completed=metrics["step"], speed=_speed(metrics), **loss)

        yield show


def _lines(console: Console, steps: int, every: int) -> Show:
    seconds = count = 0  # of the steps that were shown or passed over

    def show(metrics: StepMetrics) -> None:
        nonlocal seconds, count
        if "loss" not in metrics:
            return
        seconds, count = seconds + metrics["seconds"], count + 1
        step = metrics["step"]
        if step % every and step not in (1, steps):
            return
        left = math.ceil((steps - step) * seconds / count)
        bits = f"{metrics['bits_per_byte']:.3f} bits/byte  " if "bits_per_byte" in metrics else ""
        skipped = "  skipped" if metrics.get("skipped") else ""
        line = (
            f"step {step}/{steps}  loss {metrics['loss']:.4f}  {bits}{_speed(metrics)}{skipped}"
            f"  {clock_words(left)} left"
        )
        console.print(line, highlight=False, soft_wrap=True)

    return show


def _speed(metrics: StepMetrics) -> str:
    mfu = f"  MFU {metrics['mfu_causal']:.1%}" if "mfu_causal" in metrics else ""
    units, speed = next(
        (key.removesuffix(SPEED), value) for key, value in metrics.items() if key.endswith(SPEED)
    )
    return f"{speed:,.0f} {units}/s{mfu}"
