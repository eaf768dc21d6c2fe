"""How long a run of changing hosts is away when hosts are lost or come, and what is lost.

    python -m benchmarks.elastic --count 30

Four hosts on this machine, each a `meshdsl launch --elastic` with a process of one CPU device,
train the run of `tests/train/test_elastic_runs.py`, with a checkpoint after each step. Drawn losses
and returns of one or two hosts meet it. A row says how many seconds went by until a new step was
saved (where a host comes, the run goes on until that has started), and how many losses differ by
more than rounding from those of a run that was left alone.

    python -m benchmarks.elastic --memory --count 8

The same with copies in the memory of the hosts every three steps, and no checkpoint but where a
host comes. Then a row says how many seconds went by until a new step was trained, and a line how
many steps were trained again after each loss.

    python -m benchmarks.elastic --rows --count 30

A model whose loss is the mean of numbers of the rows of a step, all different, so that the losses
say whether each step had its rows, and whether a row was read twice or left out.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np

from meshdsl.train.folder import RunFolder
from meshdsl.train.watch.events import read_events
from tests.train.common import losses, train
from tests.train.ids import numbered
from tests.train.test_elastic_runs import IDS, IDS_DATA, IN_MEMORY, SETTINGS, Fleet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=30, help="how many losses and returns")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--pause", type=float, default=2.0, help="at most, between two, seconds")
    parser.add_argument("--memory", action="store_true", help="copies instead of checkpoints")
    parser.add_argument("--rows", action="store_true", help="losses say which rows a step had")
    arguments = parser.parse_args()
    draw, steps = random.Random(arguments.seed), int(8 + 8 * arguments.pause) * arguments.count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
        data, settings = (IDS_DATA, IDS) if arguments.rows else (str(text), SETTINGS)
        words = ["--data", data, "--layout", "fsdp", "--devices", "4", *settings]
        code, alone = train(folder / "alone", *words, "checkpoint.every=0", f"steps={steps}")
        assert code == 0
        again: list[int] = []
        took: dict[str, list[float]] = defaultdict(list)
        settings = [*settings, *IN_MEMORY] if arguments.memory else settings
        with closing(Fleet(folder / "run", data, steps, settings=settings)) as fleet:
            for number in range(4):
                fleet.add(number)
            fleet.comes_to(2)
            for _ in range(arguments.count):
                time.sleep(arguments.pause * draw.random())
                before = fleet.newest
                what, seconds = fleet.meet(draw)
                took[what].append(seconds)
                print(f"{what} {seconds:.1f} s, step {fleet.newest}", flush=True)
                if what == "lost":
                    found = re.findall(r"resumed after step (\d+)|the run begins again", fleet.text)
                    again.append(before - int(found[-1] or 0))
            codes = fleet.wait()
            assert set(codes.values()) == {0}, fleet.text
        found = losses(folder / "run")
        events = read_events(RunFolder(folder / "run").events)
    if arguments.rows:
        numbers = [row["number"] for row in numbered("train")]
        epochs = 24 * np.sum(found) / np.sum(numbers, dtype=float)
        print(
            f"the numbers of {24 * steps / len(numbers):g} epochs of rows are those of {epochs:.7f}"
        )
    near = np.isclose(found, alone, rtol=1e-5, atol=0.0)
    print("| hosts | times | seconds until a new step is saved: median, longest |")
    print("| --- | ---: | ---: |")
    for what, seconds in sorted(took.items()):
        print(f"| {what} | {len(seconds)} | {median(seconds):.1f}, {max(seconds):.1f} |")
    starts = [each for each in events if each["event"] == "first_step"]
    parts = [key for key in starts[-1] if key.startswith("startup_")]
    each = [
        f"{part.removeprefix('startup_').removesuffix('_seconds')} "
        f"{median(start[part] for start in starts if part in start):.1f}"
        for part in parts
        if part != "startup_seconds"
    ]
    print("\nseconds of a start, medians: " + ", ".join(each))
    print(f"\nsteps that were trained again after a loss: {again}")
    off = f"{np.sum(~near)} of {steps} losses differ by more than 1e-5"
    print(f"\n{off}; load of the machine at the end: {os.getloadavg()[1]:.1f}")


if __name__ == "__main__":
    main()
