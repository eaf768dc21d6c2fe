"""The training loop: steps, validation, checkpoints and roll-backs, until the run ends.

The loop keeps the devices busy: while a step runs, the host reads the next batch, and what the step
before it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words
from meshdsl.hosts.signals import EXIT_CODES
from meshdsl.machine import chip_of
from meshdsl.predict.compiler.out_of_memory import parse_oom
from meshdsl.train.adapters import merged
from meshdsl.train.auto_settings import settings_that_save_memory
from meshdsl.train.checkpoints import Checkpoints, warm_start
from meshdsl.train.data import Data, task_of
from meshdsl.train.data.batches import Batches
from meshdsl.train.evaluate import Evaluator
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import Stopping, stopping
from meshdsl.train.job import Arrays, Job
from meshdsl.train.nonfinite import NonfiniteGuard
from meshdsl.train.optimizer import make_schedule
from meshdsl.train.published import other_settings
from meshdsl.train.repeated import Repeated
from meshdsl.train.sample import generates, sample_text
from meshdsl.train.startup import Startup
from meshdsl.train.step import State
from meshdsl.train.timetable import Timetable
from meshdsl.train.watch import Facts, Watch
from meshdsl.train.watch.ledger import Ledger
from meshdsl.train.watchdog import Watchdog

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
      state: after its last step; None where that was already done, and the checkpoint has it.
      ending: what ended it before its time, or just after its last step: "preempted",
        "interrupted" or None.
      exit_code: of a program that does nothing but this run.
    """

    job: Job
    state: State | None = None
    ending: str | None = None
    exit_code: int = 0


@dataclass
class TrainingLoop:
    """A run that has been checked: what it trains, what it reads, and where it writes.

    Attributes:
      job: the model, its optimizer and its step, under the layout.
      data: where the batches come from.
      console: prints in process 0 only.
      batches: the batches to train on, of each the rows that this process reads.
      held_out: for each dataset the batches to validate on, in the same way.
      startup: measures the time until the first step is done.
      loaded: the compiled step, where it was read from a file.
      ledger: makes the ledger of a compiled step, where the run is to measure some.
    """

    job: Job
    data: Data
    console: Console
    folder: RunFolder
    checkpoints: Checkpoints
    batches: Batches
    held_out: Mapping[str, Sequence[Arrays]]
    startup: Startup
    loaded: Callable | None = None
    ledger: Callable[[Callable], Ledger] | None = None

    def initial_state(self, done: int) -> tuple[State, int]:
        """The state that training starts from, and how many steps led to it.

        Args:
          done: the step of the newest checkpoint; 0 where there is none, for the first state. Where
            that checkpoint is damaged, an older one is restored, and fewer steps led to it.
        """
        if not done:
            if self.folder.metrics.exists():
                self.console.print(
                    f"no checkpoint in {self.folder.checkpoints}: the run begins again"
                )
            return self.first_state(), 0
        state, position = self._restored()
        self.batches.set_state(position)
        done = int(state.step)
        self.console.print(f"resumed after step {done}")
        return state, done

    def _restored(self) -> tuple[State, Any]:
        """The state of the newest checkpoint, and where the run was in its data."""
        state, _, position = self.checkpoints.restore(self.job.state)
        if self.job.local and self.checkpoints.forgot:
            state = self.job.local.rejoined(state)
            self.console.print("all workers begin again from the outer parameters")
        return state, position

    def first_state(self) -> State:
        """The state before any step: drawn from the seed, or with parameters of a warm start."""
        config = self.job.config
        state = self.job.step.init(jax.random.key(config.seed))
        if config.warm_start:
            params, report = warm_start(Path(config.warm_start), state.params)
            self.console.print("\n".join([report, *other_settings(config)]))
            state = self.job.step.restarted(state.replace(params=params))
        return state

    def train_to_end(self, state: State, done: int) -> Ended:
        """Train from `state`, which `done` steps led to."""
        step = self.loaded or self._compiled()
        self.startup.done("compile")
        with stopping() as stop:
            state, done, ending = self.train_steps(step, state, done, stop)
            self.checkpoints.close()  # so what is said to be saved is on disk
        # A signal that came in the last step. This process got it, others perhaps did not.
        if done == self.job.config.steps and stop.wish:
            text = f"meshdsl: {stop.wish} after step {done}, the last one, which is saved"
            code = hosts.report_and_end(text, EXIT_CODES[stop.wish])
            return Ended(self.job, state, stop.wish, code)
        if ending:
            again = f"meshdsl train --resume --out {self.folder.path}"
            when = f"after step {done}, which is saved" if done else "before a first step was saved"
            self.console.print(f"{ending} {when}; to go on: {again}")
            return Ended(self.job, state, ending, EXIT_CODES[ending])
        tokenizer = self.data.tokenizer
        if self.job.config.sample.tokens and tokenizer and generates(self.job.config):
            shown = self.job.step.averaged(state) if self._averages else state
            model = merged(shown.params, shown.adapters)
            text = sample_text(self.job, model, tokenizer)
            self.console.print(f"\nsample:\n{text}\n")
        self.console.print(f"saved in {self.folder.path}")
        return Ended(self.job, state)

    def _compiled(self) -> Callable:
        start = time.perf_counter()
        try:
            step = self.job.lowered.compile()
        except Exception as error:  # JAX has no class of its own for what a compiler says
            if (verdict := parse_oom(str(error))) is None:
                raise
            job = self.job
            helpful = settings_that_save_memory(job.config, job.layout, dict(job.mesh.shape))
            raise MeshDSLError(
                f"the step does not fit: {byte_words(verdict.needed)} of the "
                f"{byte_words(verdict.available)} that a device has; what would help: "
                + "; ".join([*helpful, "more devices"])
            ) from None
        self.console.print(f"compiled in {time.perf_counter() - start:.1f} s")
        return step

    def train_steps(
        self, step: Callable, state: State, done: int, stop: Stopping
    ) -> tuple[State, int, str | None]:
        """Run the steps after `done`, until the last one or the one after which `stop` asks to end.

        The state after the last step that is run is saved.

        Args:
          step: called with a state and a batch, gives the next state and what it measured.

        Returns:
          The state, the steps that led to it, and what ended the run before its time: "preempted",
          "interrupted" or None.
        """
        config, job = self.job.config, self.job
        dynamic = config.precision.loss_scale == "dynamic"
        timetable = Timetable(job)
        guard = NonfiniteGuard(config.guard, self.folder.path, dynamic, timetable.untold)
        repeated = Repeated(job, self.folder.path) if config.guard.repeat else None
        ending = None
        with (
            self._watch(step, done) as watch,
            Watchdog(config.guard.timeout, self.folder.path) as dog,
        ):
            while done < config.steps and not ending:
                with watch.spent("input"):
                    arrays = next(self.batches)
                    batch = job.place(arrays)
                if repeated and _due(done + 1, config.guard.repeat):
                    with watch.spent("repeat"):
                        repeated.check(state, batch, done + 1)
                state, measured = timetable.step(step, state, batch, done + 1)
                done += 1
                guard.keep(done, arrays)
                metrics = watch.step(done, measured, tell=timetable.tells(done))
                if watch.ended:  # the step before; this one has only been begun
                    dog.beat(done)
                # After its last step a run is finished, whatever signal came.
                ending = stop.reason_to_stop(done) if done < config.steps else None
                last = bool(ending) or done == config.steps
                validate = done == config.steps or _due(done, config.validation.every)
                save = last or self.checkpoints.due(done)
                verdict = guard.judge(metrics)
                if verdict == "go" and (validate or save):
                    # The metrics of this very step, so that what is saved is known to be finite.
                    verdict = guard.judge(watch.settle())
                if verdict == "rollback":
                    del state  # first, because there may be no room for two
                    state, done = self.roll_back()
                    watch.rewind(done)
                    dog.beat(done)
                    continue
                if validate:
                    with watch.spent("validation"):
                        watch.note(done, self.validate(state, done))
                if save:
                    with watch.spent("checkpoint"):
                        self.checkpoints.save(done, state, self.batches.get_state())
                if validate or save:
                    dog.beat(done)
        return state, done, ending

    def _watch(self, step: Callable, done: int) -> Watch:
        config = self.job.config
        return Watch(
            *(self.facts(done), self.folder, config.log, self.console, done, config.steps),
            startup=self.startup,
            ledger=self.ledger(step) if self.ledger else None,
            told=self.job.step.told,
        )

    def roll_back(self) -> tuple[State, int]:
        """The state of the newest checkpoint, or the first state, and the steps that led to it.

        The data go on where they are, past the batch that was no good (Chowdhery et al., 2022,
        "PaLM", section 5.1).
        """
        if self.checkpoints.latest is None:
            state, done = self.first_state(), 0
        else:
            state, _ = self._restored()
            done = int(state.step)
        self.console.print(
            f"rolled back to step {done}; the data go on after the batch that was no good"
        )
        return state, done

    def facts(self, done: int) -> Facts:
        """What the metrics of a step are computed from, besides what it measures."""
        config, mesh, task = self.job.config, self.job.mesh, task_of(self.job.config)
        per_row = task.units_per_row(self.job.held_out)
        chip = chip_of(mesh.devices.flat[0])
        return Facts(
            unit=task.unit,
            units=config.batch * per_row,
            flops=self.job.step_flops if chip else None,
            peak_flops=chip.flops if chip else None,
            devices=mesh.size,
            learning_rate=make_schedule(
                config.schedule, config.optimizer.learning_rate, config.steps
            ),
            before=(self.batches.get_state()["rows"] - done * config.batch) * per_row,
            bytes_per_token=self.data.train_bytes_per_token,
        )

    def validate(self, state: State, done: int) -> dict[str, float]:
        """Measure the model on held-out data and print it; returns metrics to add to the step's.

        With one dataset these are `validation_loss` and so on, with several `validation/NAME/loss`.
        """
        task, values = task_of(self.job.config), {}
        if self._averages:
            state = self.job.step.averaged(state)
        found = self.evaluator.measure(state.params, self.held_out, state.adapters)
        for name, measured in found.items():
            measured |= task.derived(measured, self.data, name)
            which = f" on {name}" if len(found) > 1 else ""
            self.console.print(f"step {done}: {task.words(measured, which)}")
            prefix = f"validation/{name}/" if len(found) > 1 else "validation_"
            values |= {prefix + key: value for key, value in measured.items()}
        return values

    @property
    def _averages(self) -> bool:
        """Whether the run keeps an average of what it trains."""
        return bool(self.job.config.optimizer.average)

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.job)


def _due(step: int, every: int) -> bool:
    """Whether `step` is one of those that come every so many steps; 0: none is."""
    return bool(every) and step % every == 0
