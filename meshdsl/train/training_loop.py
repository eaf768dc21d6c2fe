"""The training loop: steps, validation, checkpoints and roll-backs, until the run ends.

The loop keeps the devices busy: while a step runs, the host reads the next batch, and what the step
before it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from meshdsl import hosts
from meshdsl.hosts.signals import EXIT_CODES
from meshdsl.machine import chip_of
from meshdsl.program.program import Program
from meshdsl.train.adapters import merged
from meshdsl.train.ahead import Ahead, in_turn
from meshdsl.train.certified import certified
from meshdsl.train.checkpoints import Checkpoints, warm_start
from meshdsl.train.data import task_of
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import RELAYOUT, Stopping, stopping
from meshdsl.train.job import Job
from meshdsl.train.nonfinite import NonfiniteGuard
from meshdsl.train.optimizer import make_schedule
from meshdsl.train.plan import Plan
from meshdsl.train.prepared import Prepared
from meshdsl.train.published import other_settings
from meshdsl.train.reading import Reading
from meshdsl.train.relayout import Relayouts
from meshdsl.train.repeated import Repeated
from meshdsl.train.sample import generates, sample_text
from meshdsl.train.startup import Startup
from meshdsl.train.step import State
from meshdsl.train.timetable import Timetable
from meshdsl.train.watch import Facts, Watch
from meshdsl.train.watch.events import Events
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
      plan: what the run trains, phase by phase.
      now: the phase whose steps are taken at present.
      console: prints in process 0 only.
      startup: measures the time until the first step is done.
      loaded: the compiled step, where it was read from a file.
      ledger: makes the ledger of a compiled step, where the run is to measure some.
      events: where what happens to the run is written.
      reading: the batches to train on.
    """

    plan: Plan
    now: Prepared
    console: Console
    folder: RunFolder
    checkpoints: Checkpoints
    startup: Startup
    loaded: Callable | None = None
    ledger: Callable[[Callable], Ledger] | None = None
    events: Events = field(default_factory=Events)
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        self.reading = Reading(self.plan.phases, self.now)
        self._ahead = Ahead()
        self._proofs = ExitStack()

    def close(self) -> None:
        """End what reads, compiles and proves beside the loop."""
        self._proofs.close()
        self.reading.close()
        self._ahead.close()

    def prove(self, program: Callable[[], Program]) -> None:
        """Begin to prove the step of the phase, as the setting `proof` asks for it.

        Where no step may run that is not proved, those of later phases are proved at once too.

        Args:
          program: gives the record of the step of the phase.

        Raises:
          MeshDSLError: a step has to be proved, and is not.
        """
        self._prove(self.now, program)
        for number, phase in self.plan.phases.items():
            if self.job.config.proof == "require" and number > self.now.phase.number:
                self._prove(phase, phase.job.program)

    def _prove(self, phase: Prepared, program: Callable[[], Program]) -> None:
        path = self.folder.certificate(phase.phase.number)
        proof = certified(phase.job, program, path, self.console.print)
        self._proofs.enter_context(proof)

    @property
    def job(self) -> Job:
        return self.now.job

    @property
    def last(self) -> int:
        """The number of the last step of the run."""
        return self.job.config.steps

    def initial_state(self, done: int) -> tuple[State, int]:
        """The state that training starts from, and how many steps led to it.

        Args:
          done: the step of the newest checkpoint; 0 where there is none, for the first state. Where
            that checkpoint is damaged, an older one is restored, and fewer steps led to it.
        """
        if not self.loaded:
            self._ahead.begin(self.job)
        if not done:
            if self.folder.metrics.exists():
                self.console.print(
                    f"no checkpoint in {self.folder.checkpoints}: the run begins again"
                )
            return self.first_state(), 0
        state, done, position = self._restored()
        self.reading.go_on(position)
        self.console.print(f"resumed after step {done}")
        return state, done

    def _restored(self) -> tuple[State, int, Any]:
        """The state of the newest checkpoint, its step, and where the run was in its data."""
        state, done, position = self.checkpoints.restore(self.job.state)
        if self.job.local and self.checkpoints.forgot:
            state = self.job.local.rejoined(state)
            self.console.print("all workers begin again from the outer parameters")
        return self._in_phase_after(done, state), done, position

    def _in_phase_after(self, done: int, state: State) -> State:
        """`state`, split as the layout says of the phase of the step after `done` steps.

        Where that is another phase than now, the run goes over to it: to its job and its data.
        """
        phase = self.plan.after(done)
        if phase is self.now:
            return state
        state = self._ahead.moved(state, self.job, phase.job)
        self.now = phase
        self.reading.enter(phase)
        if self.job.config.proof == "tell":
            self._prove(phase, phase.job.program)
        return state

    def first_state(self) -> State:
        """The state before any step: drawn from the seed, or with parameters of a warm start."""
        config = self.job.config
        key = jax.random.key(config.seed)
        state = in_turn(self.job, self.job.step.lower_init(key).compile)()(key)
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
            start = time.perf_counter()
            self.checkpoints.close()  # so what is said to be saved is on disk
            self.events.end(ending or "finished", time.perf_counter() - start)
        # A signal that came in the last step. This process got it, others perhaps did not.
        if done == self.last and stop.wish:
            text = f"meshdsl: {stop.wish} after step {done}, the last one, which is saved"
            code = hosts.report_and_end(text, EXIT_CODES[stop.wish])
            return Ended(self.job, state, stop.wish, code)
        if ending:
            again = f"meshdsl train --resume --out {self.folder.path}"
            when = f"after step {done}, which is saved" if done else "before a first step was saved"
            self.console.print(f"{ending} {when}; to go on: {again}")
            return Ended(self.job, state, ending, EXIT_CODES[ending])
        tokenizer = self.now.data.tokenizer
        if self.job.config.sample.tokens and tokenizer and generates(self.job.config):
            shown = self.job.step.averaged(state) if self._averages else state
            model = merged(shown.params, shown.adapters)
            text = sample_text(self.job, model, tokenizer)
            self.console.print(f"\nsample:\n{text}\n")
        self.console.print(f"saved in {self.folder.path}")
        return Ended(self.job, state)

    def _compiled(self) -> Callable:
        step, seconds = self._ahead.compiled(self.job)
        self.console.print(f"compiled in {seconds:.1f} s")
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
        config, untold = self.job.config, Timetable(self.job).untold
        dynamic = config.precision.loss_scale == "dynamic"
        guard = NonfiniteGuard(config.guard, self.folder.path, dynamic, untold)
        relayouts = Relayouts(self.folder, self.plan, self._ahead, stop, lambda: self.now)
        with (
            self._watch(step, done) as watch,
            Watchdog(config.guard.timeout, self.folder.path) as dog,
            closing(relayouts),
        ):
            while True:
                how = step, stop, watch, dog, guard, relayouts
                state, done, ending = self._steps_of_phase(state, done, *how)
                if ending or done == self.last:
                    return state, done, ending
                start = time.perf_counter()
                with watch.spent("phase"):
                    state = self._in_phase_after(done, state)
                    step = self._compiled_or_saved(state, done)
                    watch.go_on(self.facts(done), self.job.step.told)
                dog.beat(done)
                pause = time.perf_counter() - start
                self.console.print(f"{self.now.phase.words} (after a pause of {pause:.1f} s)")
                now = self.now.phase
                changes = ", ".join(now.changes)
                self.events.write("phase", done, phase=now.number, changes=changes, seconds=pause)

    def _compiled_or_saved(self, state: State, done: int) -> Callable:
        """The step of a phase that begins; if it cannot be compiled, no step so far is lost."""
        try:
            return self._compiled()
        except Exception:
            if self.checkpoints.latest != done:
                self.checkpoints.save(done, state, self.reading.position)
            raise

    def _steps_of_phase(
        self,
        state: State,
        done: int,
        step: Callable,
        stop: Stopping,
        watch: Watch,
        dog: Watchdog,
        guard: NonfiniteGuard,
        relayouts: Relayouts,
    ) -> tuple[State, int, str | None]:
        """As `train_steps`, of the steps of this phase alone."""
        config, job, until = self.job.config, self.job, self.now.phase.until
        timetable, ending = Timetable(job), None
        repeated = Repeated(job, self.folder.path) if config.guard.repeat else None
        if until < self.last:
            following = self.plan.phases[self.now.phase.number + 1]
            self._ahead.begin_phase(job, following.job, self._said_of(following))
        while done < until and not ending:
            with watch.spent("input"):
                arrays = next(self.reading)
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
            ending = stop.reason_to_stop(done) if done < self.last else None
            if ending == RELAYOUT:
                ending = None
                if done < until:  # otherwise it is for the next phase
                    until = relayouts.change(self.now, done, self._prove)
            validate = done == self.last or _due(done, config.validation.every)
            save = ending or done == self.last or self.checkpoints.due(done)
            copy = not (ending or done == self.last) and self.checkpoints.copy_due(done)
            verdict = guard.judge(metrics)
            if verdict == "go" and (validate or save or copy or done == until):
                # The metrics of this very step, so that what is saved is known to be finite, and
                # steps of one phase are told before the next one begins.
                verdict = guard.judge(watch.settle())
            if verdict == "rollback":
                del state  # first, because there may be no room for two
                state, done = self.roll_back()
                watch.rewind(done)
                dog.beat(done)
                if self.job is not job:
                    break
                continue
            if validate:
                with watch.spent("validation"):
                    watch.note(done, self.validate(state, done))
            if save:
                with watch.spent("checkpoint"):
                    self.checkpoints.save(done, state, self.reading.position)
            if copy:
                with watch.spent("copy"):
                    self.checkpoints.copy(done, state, self.reading.position)
            if validate or save or copy:
                dog.beat(done)
        return state, done, ending

    def _said_of(self, phase: Prepared) -> Callable[[Exception], None]:
        """Prints that the step of a later phase cannot be compiled, as soon as that is known."""
        which = f"the step of phase {phase.phase.number} cannot be compiled"
        return lambda error: self.console.print(f"{which}: {str(error).splitlines()[0]}")

    def _watch(self, step: Callable, done: int) -> Watch:
        config = self.job.config
        return Watch(
            *(self.facts(done), self.folder, config.log, self.console, done, self.last),
            startup=self.startup,
            ledger=self.ledger(step) if self.ledger else None,
            told=self.job.step.told,
            events=self.events,
        )

    def roll_back(self) -> tuple[State, int]:
        """The state of the newest checkpoint, or the first state, and the steps that led to it.

        The data go on where they are, past the batch that was no good (Chowdhery et al., 2022,
        "PaLM", section 5.1).
        """
        if self.checkpoints.latest is None:
            state, done = self._in_phase_after(0, self.first_state()), 0
        else:
            state, done, _ = self._restored()
        self.console.print(
            f"rolled back to step {done}; the data go on after the batch that was no good"
        )
        return state, done

    def facts(self, done: int) -> Facts:
        """What the metrics of a step are computed from, besides what it measures."""
        config, mesh, task = self.job.config, self.job.mesh, task_of(self.job.config)
        units = config.batch * self.reading.units_per_row
        chip = chip_of(mesh.devices.flat[0])
        return Facts(
            unit=task.unit,
            units=units,
            flops=self.job.step_flops if chip else None,
            peak_flops=chip.flops if chip else None,
            devices=mesh.size,
            learning_rate=make_schedule(
                config.schedule, config.optimizer.learning_rate, config.steps
            ),
            before=self.reading.units - done * units,
            bytes_per_token=self.now.data.train_bytes_per_token,
        )

    def validate(self, state: State, done: int) -> dict[str, float]:
        """Measure the model on held-out data and print it; returns metrics to add to the step's.

        With one dataset these are `validation_loss` and so on, with several `validation/NAME/loss`.
        """
        task, values = task_of(self.job.config), {}
        if self._averages:
            state = self.job.step.averaged(state)
        found = self.now.evaluator.measure(state.params, self.now.held_out, state.adapters)
        for name, measured in found.items():
            measured |= task.derived(measured, self.now.data, name)
            which = f" on {name}" if len(found) > 1 else ""
            self.console.print(f"step {done}: {task.words(measured, which)}")
            prefix = f"validation/{name}/" if len(found) > 1 else "validation_"
            values |= {prefix + key: value for key, value in measured.items()}
        return values

    @property
    def _averages(self) -> bool:
        """Whether the run keeps an average of what it trains."""
        return bool(self.job.config.optimizer.average)


def _due(step: int, every: int) -> bool:
    """Whether `step` is one of those that come every so many steps; 0: none is."""
    return bool(every) and step % every == 0
