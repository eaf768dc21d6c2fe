"""What training loses to all that is not its step: input, metrics, the watchdog, checkpoints.

    python -m benchmarks.loop_overhead --rounds 6 --steps 20 --every 10

The loop is that of `meshdsl train`. In each round it takes turns with a bare loop over the same
compiled step and one batch that is on the devices already, so that both see the same machine. A
checkpoint is written after every `--every` steps; the last one, which no step follows, is not
counted. The CPU time is that of the whole process: on a machine where others work too it says more
than the clock.

Then the loop runs around a step that does nothing. What is left is all that the host does for a
step; devices that compute meanwhile hide most of it.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import jax
from rich.console import Console

import meshdsl as md
from meshdsl.commands.lookup import pick_devices
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.config import Checkpoint, Config
from meshdsl.train.data import open_data
from meshdsl.train.data.device_batches import rows_here
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import Stopping
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.step import State
from meshdsl.train.stored_layout import find_layout
from meshdsl.train.training_loop import TrainingLoop
from meshdsl.train.watch import read_metrics

_KINDS = ("input_seconds", "checkpoint_seconds", "step_seconds")
# ms of one step: `seconds` in all, `cpu` of all threads of this process, and the metrics of _KINDS
Taken = dict[str, float]


class Counted(TrainingLoop):
    """A run that takes the time where it would validate: after its last step."""

    def validate(self, state: State, done: int) -> dict[str, float]:
        self.ended = time.process_time()
        return {}


class Loops:
    """A compiled step, its state, and the two loops over it."""

    def __init__(self, config: Config):
        layout = find_layout(config.layout)
        self.config, self.job = (
            config,
            Job(config, layout, md.make_mesh(layout, pick_devices(layout, config.devices))),
        )
        self.corpus = open_data(config)
        self.batches = self.corpus.train(rows_here(self.job.batch["tokens"]))
        self.batch = self.job.place(next(self.batches))
        self.step, self.state = self.job.lowered.compile(), self.job.step.init(jax.random.key(0))
        self.state, self.measured = self.step(self.state, self.batch)

    def bare(self) -> Taken:
        """Runs the steps of a round on one batch, without anything else."""
        start, used = time.perf_counter(), time.process_time()
        for _ in range(self.config.steps):
            before = self.measured
            self.state, self.measured = self.step(self.state, self.batch)
            # On virtual CPU devices many steps in flight wait for each other's threads, for ever.
            jax.block_until_ready(before)
        jax.block_until_ready(self.measured)
        return {
            "seconds": 1e3 * (time.perf_counter() - start) / self.config.steps,
            "cpu": 1e3 * (time.process_time() - used) / self.config.steps,
        }

    def whole(self, step: Callable, every: int) -> Taken:
        """Runs a round as `meshdsl train` does, with a checkpoint after `every` steps."""
        began: list[float] = []

        def counted(state, batch):
            began.append(time.process_time())
            return step(state, batch)

        with tempfile.TemporaryDirectory() as path:
            folder = RunFolder(Path(path))
            with closing(
                Checkpoints(folder.checkpoints, Checkpoint(every=every, keep=1), report=print)
            ) as checkpoints:
                run = Counted(
                    self.job,
                    self.corpus,
                    Console(file=io.StringIO()),
                    folder,
                    checkpoints,
                    self.batches,
                    {},
                )
                self.state, done, _ = run.train_steps(counted, self.state, 0, Stopping())
            records = list(read_metrics(folder.metrics))
        kinds = {
            kind: 1e3 * sum(record.get(kind, 0.0) for record in records) / done
            for kind in ("seconds", *_KINDS)
        }
        return {**kinds, "cpu": 1e3 * (run.ended - began[0]) / done}

    def idle(self) -> Taken:
        """Runs a round as `meshdsl train` does, with a step that does nothing."""
        return self.whole(lambda state, _: (state, self.measured), 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="data")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument(
        "--every", type=int, default=10, help="steps from one checkpoint to the next; 0: none"
    )
    parser.add_argument("settings", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    loops = Loops(
        override(Config(layout=arguments.layout, steps=arguments.steps), arguments.settings)
    )
    rounds: list[dict[str, Taken]] = []
    for number in range(arguments.rounds + 1):  # the first one does not count
        order = ("bare", "whole", "idle") if number % 2 else ("whole", "bare", "idle")
        taken = {
            name: loops.whole(loops.step, arguments.every)
            if name == "whole"
            else getattr(loops, name)()
            for name in order
        }
        rounds += [taken] if number else []
        print(
            ", ".join(
                f"{name} {taken[name]['seconds']:.2f} ms" for name in ("bare", "whole", "idle")
            ),
            flush=True,
        )
    loops.batches.close()
    report(rounds)


def report(rounds: list[dict[str, Taken]]) -> None:
    print(f"\nmedians of {len(rounds)} rounds, ms of a step")
    for name, words in (
        ("bare", "bare loop"),
        ("whole", "`meshdsl train`"),
        ("idle", "... around a step that does nothing"),
    ):
        middle = {
            kind: statistics.median(each[name][kind] for each in rounds) for kind in rounds[0][name]
        }
        parts = "".join(
            f", {kind.removesuffix('_seconds')} {middle[kind]:.3f}"
            for kind in _KINDS
            if kind in middle
        )
        print(f"{words:36} {middle['seconds']:9.3f}; of the CPU {middle['cpu']:.3f}{parts}")
    for kind, words in (("seconds", "time"), ("cpu", "CPU time")):
        ratio = statistics.median(each["whole"][kind] / each["bare"][kind] for each in rounds)
        print(f"`meshdsl train` / bare loop within a round, {words}: {ratio:.4f}")


if __name__ == "__main__":
    main()
