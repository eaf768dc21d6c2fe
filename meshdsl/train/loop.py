"""The training run: from a configuration to a trained model in a folder.

Order matters here. Everything that can be refused (the data, the mesh, the layout against the model, the checkpoint in
the folder) is checked before the folder is touched. Then the loop keeps the devices busy: while a step runs, the host
reads what the step before it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import grain
import jax
import numpy as np
from rich.console import Console

import meshdsl as md
from meshdsl.train import data
from meshdsl.train.checkpoint import Checkpoints
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import interruption
from meshdsl.train.job import Arrays, Job
from meshdsl.train.metrics import Meter, MetricsFile, Record, bits_per_byte, progress
from meshdsl.train.optimizer import make_schedule, peak
from meshdsl.train.report import describe
from meshdsl.train.sample import sample_text
from meshdsl.train.step import State

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended


def train(
    config: Config, layout: md.Layout, devices: list[jax.Device], folder: RunFolder, *, resume: bool, executable: Path | None = None
) -> int:
    """Start the run in `folder`, or go on with it; returns the exit code.

    Args:
      executable: a file with the compiled step, which `meshdsl compile --save` wrote; without one the step is compiled.

    Raises:
      MeshDSLError: for data, layout, devices, model, folder or executable that cannot be used; nothing is written then.
    """
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=peak(config.optimizer)))
    if not resume:
        folder.refuse_used()
    text = data.read_text(config.data.paths, config.data.validation)
    batches = data.train_batches(text.train, config.model.length, config.batch, config.seed)
    job = Job(config, layout, md.make_mesh(layout, devices))
    loaded = job.load(executable) if executable else None
    held_out = data.validation_batches(text.validation, config.model.length, job.rows, config.validation.batches)
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    with closing(Checkpoints(folder.checkpoints, config.checkpoint.keep)) as checkpoints:
        checkpoints.check(job.state)
        done = checkpoints.latest or 0
        if done >= config.steps:
            raise md.MeshDSLError(f"{folder.path} is at step {done} of {config.steps}; set more --steps to go on")
        console.print(describe(layout, job.mesh, job.state, job.program().collectives))
        console.print(
            f"\ndata: {len(text.train):,} bytes of {text.files[0]:,} files; "
            f"{len(text.validation):,} bytes of {text.files[1]:,} files held out\n"
        )
        if executable:
            console.print(f"the compiled step is that of {executable}")
        folder.begin(config)
        if done:
            state, position = checkpoints.restore(job.state)
            batches.set_state(position)
            console.print(f"resumed after step {done}")
        else:
            state = job.step.init(jax.random.key(config.seed))
        return Run(job, console, folder, checkpoints, batches, held_out, loaded).to_the_end(state, done)


@dataclass
class Run:
    """A run that nothing stands in the way of any more."""

    job: Job
    console: Console
    folder: RunFolder
    checkpoints: Checkpoints
    batches: grain.DatasetIterator
    held_out: list[Arrays]
    loaded: Callable | None = None  # the compiled step

    def to_the_end(self, state: State, done: int) -> int:
        """Train from `state`, which `done` steps led to; returns the exit code."""
        step = self.loaded or self._compiled()
        with interruption() as interrupted:
            state, done = self.steps(step, state, done, interrupted)
        if done < self.job.config.steps:
            again = f"meshdsl train --resume --out {self.folder.path}"
            self.console.print(f"interrupted after step {done}, which is saved; to go on: {again}")
            return INTERRUPTED
        self.console.print(f"\nsample:\n{sample_text(self.job, state.params)}\n\nsaved in {self.folder.path}")
        return 0

    def _compiled(self) -> Callable:
        start = time.perf_counter()
        step = self.job.lowered.compile()
        self.console.print(f"compiled in {time.perf_counter() - start:.1f} s")
        return step

    def steps(self, step: Callable, state: State, done: int, interrupted: Event) -> tuple[State, int]:
        """Run the steps after `done`, but none after the one in which `interrupted` is set. The last one is saved."""
        config = self.job.config
        rates = jax.vmap(make_schedule(config.optimizer, config.steps))(np.arange(config.steps))
        with (
            MetricsFile(self.folder.metrics, done) as file,
            progress(self.console, done, config.steps, config.log_every) as show,
        ):
            meter = Meter(config.batch * config.model.length, np.asarray(rates))

            def note(record: Record | None) -> None:
                if record:
                    file.write(record)
                    show(record)

            for done in range(done + 1, config.steps + 1):
                state, measured = step(state, self.job.place(next(self.batches)))
                note(meter.add(done, measured))
                last = done == config.steps or interrupted.is_set()
                validate = done == config.steps or _due(done, config.validation.every)
                save = last or _due(done, config.checkpoint.every)
                if validate or save:
                    record = meter.settle()
                    note(record | self.validate(state, done) if validate else record)
                    if save:
                        self.checkpoints.save(done, state, self.batches.get_state())
                    meter.start()
                if last:
                    break
        return state, done

    def validate(self, state: State, done: int) -> Record:
        """The loss on the held-out text, printed and as a part of the step's record."""
        loss = self.job.evaluate(state.params, self.held_out)
        bits = bits_per_byte(loss)
        self.console.print(f"step {done}: validation loss {loss:.4f} nats/token, {bits:.3f} bits/byte")
        return {"validation_loss": loss, "validation_bits_per_byte": bits}


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
