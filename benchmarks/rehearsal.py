"""How far a rehearsal is from what faults leave of a real run, for several drawn traces.

    python -m benchmarks.rehearsal --traces 5 --mtbf 80s --steps 300

A run meets a trace: `meshdsl launch --restarts` with two virtual devices, where SIGKILL meets the
process at each time of the trace. Its goodput is predicted twice, by what steps, saves and restarts
take in short runs that nothing disturbs: by the one that has ended before the trace begins, and by
the mean of those that run beside it, one after the other, which have the same machine at the same
time. The first says what a prediction is worth on a machine whose load changes, the second what the
model is. The load is how many programs wanted a core, over a minute, before and after a trace.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from statistics import fmean

from meshdsl.rehearsal.disturbed import disturbed
from meshdsl.rehearsal.faults import Faults, Trace
from meshdsl.rehearsal.launched import Launched
from meshdsl.rehearsal.measured import measured_run
from meshdsl.rehearsal.run import Option, Restart, Run, Stretch
from meshdsl.rehearsal.simulate import simulate
from meshdsl.rehearsal.words import parse_seconds
from meshdsl.train.folder import RunFolder

from .measure import show

_DEVICES, _EVERY = 2, 10
_RUN = (
    *("train", "--layout", "fsdp", "model.d_model=64", "model.layers=2", "model.heads=4"),
    *("model.d_ff=256", "model.length=64", "batch=16", "validation.batches=1"),
    *("sample.tokens=0", "proof=off", f"checkpoint.every={_EVERY}"),
)
_COLUMNS = (
    *("trace", "load", "step, s", "first save, s", "restart, s", "kills", "goodput measured"),
    *("by the run before", "off by", "by the runs beside", "off by"),
)


def mean_of(runs: Sequence[Run]) -> Run:
    """A run whose times are the means of those of several."""

    def mean(time: Callable[[Run], float]) -> float:
        return fmean(map(time, runs))

    names = [field.name for field in fields(Restart)]
    parts = {name: mean(lambda run, name=name: getattr(run.restart, name)) for name in names}
    names = ["handover", "write", "restore", "new"]
    times = {name: mean(lambda run, name=name: getattr(run, name)) for name in names}
    step = Stretch(runs[0].steps, mean(lambda run: run.work(1)))
    return replace(runs[0], stretches=(step,), restart=Restart(**parts), **times)


class Beside:
    """Calls a function again and again in a thread, within a `with`; `found` has what it gave."""

    def __init__(self, call: Callable[[], Run]):
        self.found: list[Run] = []
        self._call, self._ends = call, threading.Event()
        self._thread = threading.Thread(target=self._again)

    def _again(self) -> None:
        while not self._ends.is_set():
            self.found.append(self._call())

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--mtbf", default="80s", help="mean time between faults")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    arguments = parser.parse_args()
    faults = Faults(mtbf=parse_seconds("--mtbf ", arguments.mtbf))
    # Programs are small: to compile them well takes longer than they run.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    rows, number = [_COLUMNS], count()
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)

        def launched() -> Launched:
            words = [*_RUN, "--data", str(text), f"steps={arguments.steps}"]
            return Launched(words, 1, _DEVICES, RunFolder(Path(name) / f"run {next(number)}"))

        def short() -> Run:
            return measured_run(launched(), arguments.steps, _EVERY)

        before = short()
        for seed in range(arguments.seed, arguments.seed + arguments.traces):
            trace, load = Trace(faults, 1, seed), os.getloadavg()[0]
            with Beside(short) as beside:
                real = disturbed(launched(), arguments.steps, trace)
            known = [before, mean_of(beside.found)]
            on_paper = [simulate(run, Option((_EVERY,)), trace).goodput for run in known]
            rows.append(
                (
                    str(seed),
                    f"{load:.0f}, {os.getloadavg()[0]:.0f}",
                    ", ".join(f"{run.work(1):.2f}" for run in known),
                    ", ".join(f"{run.new:.1f}" for run in known),
                    ", ".join(f"{run.restarting:.1f}" for run in known),
                    str(real.faults),
                    f"{real.goodput:.1%}",
                    *(text for found in on_paper for text in _against(found, real.goodput)),
                )
            )
            print(*rows[-1], f"{len(beside.found)} beside", *known, real, sep="; ", flush=True)
            before = beside.found[-1]
    show(rows)


def _against(found: float, measured: float) -> tuple[str, str]:
    return f"{found:.1%}", f"{found / measured - 1:+.1%}"


if __name__ == "__main__":
    main()
