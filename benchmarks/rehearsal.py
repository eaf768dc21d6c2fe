"""How far a rehearsal is from what faults leave of a real run, for several drawn traces.

    python -m benchmarks.rehearsal --traces 5 --mtbf 60s --steps 200

For each trace a short run that nothing disturbs is measured first; by what steps, saves and
restarts take there, and by the trace, the goodput of a longer run is predicted. Then this run meets
the trace: `meshdsl launch --restarts` with two virtual devices, where SIGKILL meets the process at
each time of the trace. The load is how many programs wanted a core, over a minute, before the short
run, between the two and at the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from meshdsl.rehearsal.disturbed import disturbed
from meshdsl.rehearsal.faults import Faults, Trace
from meshdsl.rehearsal.launched import Launched
from meshdsl.rehearsal.measured import measured_run
from meshdsl.rehearsal.run import Option
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
    *("trace", "load", "step, s", "first save, s", "restart, s", "kills: predicted", "met"),
    *("seconds: predicted", "measured", "goodput: predicted", "measured", "off by"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--mtbf", default="60s", help="mean time between faults")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    arguments = parser.parse_args()
    faults = Faults(mtbf=parse_seconds("--mtbf ", arguments.mtbf))
    # Programs are small: to compile them well takes longer than they run.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    rows = [_COLUMNS]
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
        words = [*_RUN, "--data", str(text), f"steps={arguments.steps}"]

        def launched(folder: str) -> Launched:
            return Launched(words, 1, _DEVICES, RunFolder(Path(name) / folder))

        for seed in range(arguments.seed, arguments.seed + arguments.traces):
            trace, loads = Trace(faults, 1, seed), [os.getloadavg()[0]]
            run = measured_run(launched(f"short {seed}"), arguments.steps, _EVERY)
            loads.append(os.getloadavg()[0])
            on_paper = simulate(run, Option((_EVERY,)), trace)
            real = disturbed(launched(f"run {seed}"), arguments.steps, trace)
            loads.append(os.getloadavg()[0])
            rows.append(
                (
                    str(seed),
                    ", ".join(f"{load:.0f}" for load in loads),
                    f"{run.work(1):.2f}",
                    f"{run.handover + run.new:.1f}",
                    f"{run.restarting:.1f}",
                    str(on_paper.faults),
                    str(real.faults),
                    f"{on_paper.seconds:.0f}",
                    f"{real.seconds:.0f}",
                    f"{on_paper.goodput:.1%}",
                    f"{real.goodput:.1%}",
                    f"{on_paper.goodput / real.goodput - 1:+.1%}",
                )
            )
            print(*rows[-1], sep="; ", flush=True)
    show(rows)


if __name__ == "__main__":
    main()
