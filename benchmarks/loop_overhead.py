"""What training loses to all that is not its step: input, metrics, the watchdog, checkpoints.

    python -m benchmarks.loop_overhead --rounds 6 --steps 20 --every 10

The loop is that of `meshdsl train`. In each round it takes turns with a bare loop over the same
compiled step and one batch that is on the devices already, so that both see the same machine. A
checkpoint is written after every `--every` steps; the last one, which no step follows, is not
counted. The CPU time is that of the whole process: on a machine where others work too it says more
than the clock.

Then the loop runs around a step that does nothing, without checkpoints and with them. What is left
is all that the host does for a step; devices that compute meanwhile hide most of it. Of it the CPU
time of the main thread is what a step could wait for: it is compared with a step of 0.25 s. With
`--host` only these loops run, which a busy machine disturbs least.
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
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import Stopping
from meshdsl.train.job import Job
from meshdsl.train.phases import phases_of
from meshdsl.train.prepared import Prepared
from meshdsl.train.settings import override
from meshdsl.train.startup import Startup
from meshdsl.train.step import State
from meshdsl.train.stored_layout import find_layout
from meshdsl.train.training_loop import TrainingLoop
from meshdsl.train.watch import read_metrics

_KINDS = ("input_seconds", "checkpoint_seconds", "step_seconds")
STEP = 250.0  # ms of the step that what the host does is compared with
# ms of one step: `seconds` in all, `cpu` of all threads of this process, `thread` of the main one,
# and the metrics of _KINDS
Taken = dict[str, float]


class Counted(TrainingLoop):
    """A run that takes the time where it would validate: after its last step."""

    def validate(self, state: State, done: int) -> dict[str, float]:
        self.ended = time.process_time(), time.thread_time()
        return {}


class Loops:
    """A compiled step, its state, and the two loops over it."""

    def __init__(self, config: Config):
        layout = find_layout(config.layout)
        self.config, self.job = (
            config,
            Job(config, layout, md.make_mesh(layout, pick_devices(layout, config.devices))),
        )
        (phase,) = phases_of(config)
        self.prepared = Prepared(phase, self.job, (), print)
        with closing(self.prepared.batches()) as batches:
            self.batch = self.job.place(next(batches))
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
        began: list[tuple[float, float]] = []

        def counted(state, batch):
            began.append((time.process_time(), time.thread_time()))
            return step(state, batch)

        with tempfile.TemporaryDirectory() as path:
            folder = RunFolder(Path(path))
            with closing(Checkpoints(folder.checkpoints, every=every, keep=1)) as checkpoints:
                of = {1: self.prepared}, self.prepared, Console(file=io.StringIO())
                with closing(Counted(*of, folder, checkpoints, Startup())) as run:
                    self.state, done, _ = run.train_steps(counted, self.state, 0, Stopping())
            records = list(read_metrics(folder.metrics))
        kinds = {
            kind: 1e3 * sum(record.get(kind, 0.0) for record in records) / done
            for kind in ("seconds", *_KINDS)
        }
        cpu, thread = (
            1e3 * (after - before) / done for after, before in zip(run.ended, began[0], strict=True)
        )
        return {**kinds, "cpu": cpu, "thread": thread}

    def idle(self, every: int = 0) -> Taken:
        """Runs a round as `meshdsl train` does, with a step that does nothing."""
        return self.whole(lambda state, _: (state, self.measured), every)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="data")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument(
        "--every", type=int, default=10, help="steps from one checkpoint to the next; 0: none"
    )
    parser.add_argument(
        "--host", action="store_true", help="only the loops around a step that does nothing"
    )
    parser.add_argument("settings", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    loops = Loops(
        override(Config(layout=arguments.layout, steps=arguments.steps), arguments.settings)
    )
    run: dict[str, Callable[[], Taken]] = {
        "bare": loops.bare,
        "whole": lambda: loops.whole(loops.step, arguments.every),
        "idle": loops.idle,
        "saving": lambda: loops.idle(arguments.every),
    }
    names = ["idle"] if arguments.host else ["bare", "whole", "idle"]
    names += ["saving"] if arguments.every else []
    rounds: list[dict[str, Taken]] = []
    for number in range(arguments.rounds + 1):  # the first one does not count
        order = names if number % 2 or arguments.host else ["whole", "bare", *names[2:]]
        taken = {name: run[name]() for name in order}
        rounds += [taken] if number else []
        print(", ".join(f"{name} {taken[name]['seconds']:.2f} ms" for name in names), flush=True)
    report(rounds, arguments.every)


def report(rounds: list[dict[str, Taken]], every: int) -> None:
    print(f"\nmedians of {len(rounds)} rounds, ms of a step")
    for name, words in (
        ("bare", "bare loop"),
        ("whole", "`meshdsl train`"),
        ("idle", "... around a step that does nothing"),
        ("saving", f"... that saves every {every} steps"),
    ):
        if name not in rounds[0]:
            continue
        middle = {
            kind: statistics.median(each[name][kind] for each in rounds) for kind in rounds[0][name]
        }
        parts = "".join(
            f", {kind.removesuffix('_seconds')} {middle[kind]:.3f}"
            for kind in _KINDS
            if kind in middle
        )
        if "thread" in middle:
            share = middle["thread"] / STEP
            parts += f"; main thread {middle['thread']:.3f}, {share:.2%} of a step of {STEP:.0f}"
        print(f"{words:36} {middle['seconds']:9.3f}; of the CPU {middle['cpu']:.3f}{parts}")
    if "bare" not in rounds[0]:
        return
    for kind, words in (("seconds", "time"), ("cpu", "CPU time")):
        ratio = statistics.median(each["whole"][kind] / each["bare"][kind] for each in rounds)
        print(f"`meshdsl train` / bare loop within a round, {words}: {ratio:.4f}")


if __name__ == "__main__":
    main()
