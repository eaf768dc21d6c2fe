"""How far a rehearsal is from what faults leave of a real run, for several drawn traces.

    python -m benchmarks.rehearsal --traces 5 --mtbf 90s --steps 300

For each trace a short run that nothing disturbs is measured first; by that, and by the trace, the
goodput of a longer run is predicted. Then this run meets the trace: `meshdsl launch --restarts`
with two virtual devices, where SIGKILL meets a process at each time of the trace. A last short run
follows, so that each trace has one before it and one after it: the second prediction is by the mean
of the two. The load is how many programs wanted a core, over a minute, before and after a trace.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path

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
    *("predicted by the run before", "off by", "by those before and after", "off by"),
)


def mean_of(one: Run, other: Run) -> Run:
    """A run whose times are the means of those of two."""
    parts = {
        f.name: (getattr(one.restart, f.name) + getattr(other.restart, f.name)) / 2
        for f in fields(Restart)
    }
    times = {
        name: (getattr(one, name) + getattr(other, name)) / 2
        for name in ("handover", "write", "restore", "new")
    }
    step = Stretch(one.steps, (one.work(1) + other.work(1)) / 2)
    return replace(one, stretches=(step,), restart=Restart(**parts), **times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--mtbf", default="90s", help="mean time between faults")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    faults = Faults(mtbf=parse_seconds("--mtbf ", arguments.mtbf))
    # Programs are small: to compile them well takes longer than they run.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)

        def launched(folder: str) -> Launched:
            words = [*_RUN, "--data", str(text), f"steps={arguments.steps}"]
            devices = _DEVICES // arguments.processes
            return Launched(words, arguments.processes, devices, RunFolder(Path(name) / folder))

        def short(number: int) -> Run:
            run = measured_run(launched(f"short {number}"), arguments.steps, _EVERY)
            print(run, os.getloadavg()[0], flush=True)
            return run

        measured, shorts, loads = [], [short(0)], [os.getloadavg()[0]]
        seeds = range(arguments.seed, arguments.seed + arguments.traces)
        for seed in seeds:
            trace = Trace(faults, 1, seed)
            run = launched(f"run {seed}")
            measured.append(disturbed(run, arguments.steps, trace))
            print(measured[-1], flush=True)
            shorts.append(short(seed + 1))
            loads.append(os.getloadavg()[0])
    rows = [_COLUMNS]
    for i, (seed, real) in enumerate(zip(seeds, measured, strict=True)):
        between = mean_of(shorts[i], shorts[i + 1])
        first, second = (
            simulate(run, Option((_EVERY,)), Trace(faults, 1, seed)) for run in (shorts[i], between)
        )
        rows.append(
            (
                str(seed),
                f"{loads[i]:.1f}, {loads[i + 1]:.1f}",
                f"{shorts[i].work(1):.2f}, {shorts[i + 1].work(1):.2f}",
                f"{shorts[i].new:.2f}, {shorts[i + 1].new:.2f}",
                f"{shorts[i].restarting:.1f}, {shorts[i + 1].restarting:.1f}",
                str(real.faults),
                f"{real.goodput:.1%}",
                f"{first.goodput:.1%}",
                f"{first.goodput / real.goodput - 1:+.1%}",
                f"{second.goodput:.1%}",
                f"{second.goodput / real.goodput - 1:+.1%}",
            )
        )
    show(rows)


if __name__ == "__main__":
    main()
