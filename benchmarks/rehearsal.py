"""How far a rehearsal is from what faults leave of a real run, for several drawn traces.

    python -m benchmarks.rehearsal --traces 5 --mtbf 90s --steps 300

For each trace a short run that nothing disturbs is measured first; by that, and by the trace, the
goodput of a longer run is predicted. Then this run meets the trace: two processes of
`meshdsl launch --restarts`, of which SIGKILL meets one at each time of the trace. The load is the
mean number of programs that want a core, over the last minute, before the short run and at the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from meshdsl.rehearsal.disturbed import disturbed
from meshdsl.rehearsal.faults import Faults, Trace
from meshdsl.rehearsal.measured import measured_run
from meshdsl.rehearsal.run import Option
from meshdsl.rehearsal.simulate import simulate
from meshdsl.rehearsal.words import parse_seconds

from .measure import show

_PROCESSES = 2
_EVERY = 10
_RUN = (
    *("train", "--layout", "fsdp", "model.d_model=64", "model.layers=2", "model.heads=4"),
    *("model.d_ff=256", "model.length=64", "batch=16", "validation.batches=1"),
    *("sample.tokens=0", "proof=off", f"checkpoint.every={_EVERY}"),
)
_COLUMNS = (
    *("trace", "load", "step, s", "save, s", "restart, s", "kills", "seconds: predicted"),
    *("measured", "goodput: predicted", "measured", "off by"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--mtbf", default="90s", help="mean time between faults")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    arguments = parser.parse_args()
    faults = Faults(mtbf=parse_seconds("--mtbf ", arguments.mtbf))
    # Programs are small: to compile them well takes longer than they run.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    rows = [_COLUMNS]
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
        words = [*_RUN, "--data", str(text)]
        for seed in range(arguments.seed, arguments.seed + arguments.traces):
            folder, before = Path(name) / str(seed), os.getloadavg()[0]
            folder.mkdir()
            short = folder / "short"
            run = measured_run(words, _PROCESSES, short, arguments.steps, _EVERY)
            trace = Trace(faults, _PROCESSES, seed)
            on_paper = simulate(run, Option((_EVERY,)), trace)
            whole = [*words, f"steps={arguments.steps}"]
            real = disturbed(whole, _PROCESSES, folder / "run", trace)
            rows.append(
                (
                    str(seed),
                    f"{before:.1f} to {os.getloadavg()[0]:.1f}",
                    f"{run.work(1):.2f}",
                    f"{run.handover:.2f} (first {run.handover + run.new:.2f})",
                    f"{run.restarting:.1f}",
                    f"{on_paper.faults}, {real.faults}",
                    f"{on_paper.seconds:.0f}",
                    f"{real.seconds:.0f}",
                    f"{on_paper.goodput:.1%}",
                    f"{real.goodput:.1%}",
                    f"{on_paper.goodput / real.goodput - 1:+.1%}",
                )
            )
            print(*rows[-1], f"{run}", sep="; ", flush=True)
    show(rows)


if __name__ == "__main__":
    main()
