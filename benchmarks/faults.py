"""How long a run is away after a fault, and what is lost: the run of `tests/train/test_chaos.py`.

    python -m benchmarks.faults --count 24 --layout workers

Two processes train under `meshdsl launch --restarts`, with a checkpoint after each step, and drawn
faults meet them. For each kind of fault a row says how often it was tried, how many seconds went by
until two new checkpoints were there (a step takes a small part of a second), and how many losses
differ from those of a run that was left alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.train.common import losses
from tests.train.test_chaos import Run, drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=24, help="how many faults")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--layout", default="fsdp", help="a shipped one, or `workers`")
    arguments = parser.parse_args()
    schedule = drawn(arguments.count, arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
        steps = 8 * len(schedule)
        alone = Run(folder / "alone", str(text), steps, arguments.layout)
        assert alone.launcher.wait() == 0, alone.printed.read_text()
        run = Run(folder / "run", str(text), steps, arguments.layout)
        run.comes_further()
        took: dict[str, list[float]] = defaultdict(list)
        for fault in schedule:
            assert run.launcher.poll() is None, "it came to its end before the last fault"
            began = time.monotonic()
            run.meet(fault)
            took[fault.rpartition(" ")[0]].append(time.monotonic() - began)
        assert run.launcher.wait() == 0, run.printed.read_text()
        pairs = zip(losses(run.folder), losses(alone.folder), strict=True)
        differ = sum(one != other for one, other in pairs)
        restarts = run.printed.read_text().count("; restart ")
    print("| fault | tried | seconds until it goes on: median, longest |")
    print("| --- | ---: | ---: |")
    for kind, seconds in sorted(took.items()):
        print(f"| {kind} | {len(seconds)} | {median(seconds):.1f}, {max(seconds):.1f} |")
    print(
        f"\n{restarts} restarts; of {steps} losses {differ} differ from those of a run left alone"
    )


if __name__ == "__main__":
    main()
