"""Everything that is told about a run while it runs.

The loop hands over what a step measures, which the devices may still be computing, and gets back
the metrics of the step before. So the devices are never waited for. Every process makes the same
metrics, because every process makes decisions by them; process 0 writes and shows them. Workers
that train apart (`local.workers`) know the metrics of all of them only now and then: those of the
steps in between come together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from meshdsl import hosts
from meshdsl.extras import check_extra
from meshdsl.train.config import Log
from meshdsl.train.folder import RunFolder
from meshdsl.train.startup import Startup
from meshdsl.train.watch.events import Events, lost
from meshdsl.train.watch.exporters import MLflow, TensorBoard, WandB, ask_mlflow, log_in
from meshdsl.train.watch.ledger import Ledger, MeasuredSteps
from meshdsl.train.watch.metrics_file import MetricsFile, StepMetrics, explained_write_errors
from meshdsl.train.watch.pace import Pace
from meshdsl.train.watch.profile import Profile, steps_to_trace
from meshdsl.train.watch.screen import Show, progress
from meshdsl.train.watch.step_timer import BESIDE, TRAINING, StepTimer, parts
from meshdsl.train.watch.units import SPEED, bits_per_byte

if TYPE_CHECKING:
    from rich.console import Console

_BLOCK = 1024  # learning rates that are computed at once
Measured = Mapping[str, jax.Array]  # by a step, under the names of metrics
_Output = MetricsFile | TensorBoard | WandB | MLflow


@dataclass(frozen=True)
class Facts:
    """What is the same in every step of a run.

    Attributes:
      unit: what speed is counted in: `token`, `image`, `pair` or `example`.
      units: how many of these a step trains on, on all devices together.
      flops: FLOPs of the model in one step, with causal attention counted half and in full; see
        `md.Family.step_flops`. None where no peak is known.
      peak_flops: FLOP/s of one device, dense in bfloat16; None where that is unknown, as on a CPU.
      devices: how many the mesh has, on all processes together.
      learning_rate: the schedule, from the number of a step, counted from 0, to its rate.
      bytes_per_token: of the text that is trained on; None where that is unknown.
      before: by how much the units of earlier steps are more than `units` for each step; not 0
        where batches had another size.
    """

    unit: str
    units: int
    flops: tuple[float, float] | None
    peak_flops: float | None
    devices: int
    learning_rate: Callable[[Any], Any]
    bytes_per_token: float | None = None
    before: int = 0


def check(log: Log, steps: int) -> None:
    """Check that a run can be watched as `log` asks.

    Args:
      steps: how many the run has.

    Raises:
      MeshDSLError: a setting does not fit the run, or needs something that is not installed.
    """
    steps_to_trace(log.profile, steps)
    if log.tensorboard:
        check_extra("tensorboard", "log.tensorboard")
    if log.wandb:
        log_in(log.wandb)
    if log.mlflow:
        check_extra("mlflow", "log.mlflow")
        hosts.first_does(lambda: ask_mlflow(log.mlflow))


class Watch:
    """Writes and shows the metrics of a run's steps; a context manager.

        with Watch(...) as watch:
            for number in range(1, steps + 1):
                with watch.spent("input"):
                    batch = next(batches)
                state, measured = step(state, batch)
                known = watch.step(number, measured)

    Args:
      folder: of the run; it exists.
      log: where else to write metrics, and what to trace. `check` has accepted it.
      done: how many steps are done already; metrics of later steps on disk are dropped.
      steps: how many the whole run has.
      startup: what the time went into until now. It is told with the first step.
      ledger: of the run, where one is wanted; then `log` asks for no trace.
      told: called with what some steps measure, gives for each the same as arrays without dims that
        every process has.
      events: where what happens to the run is written.

    Raises:
      MeshDSLError: the folder cannot be written, or Weights & Biases refuses the run. Methods that
        write may raise this too.
    """

    def __init__(
        self,
        facts: Facts,
        folder: RunFolder,
        log: Log,
        console: Console,
        done: int,
        steps: int,
        startup: Startup | None = None,
        ledger: Ledger | None = None,
        told: Callable[[list[Measured]], Sequence[Measured]] = list,
        events: Events | None = None,
    ):
        self._facts, self._console, self._startup = facts, console, startup
        self._learning_rate = _rates(facts.learning_rate)
        self._learning_rate(done + 1)  # compiled now
        self._measurable = [device for device in jax.local_devices() if device.memory_stats()]
        self._next = done + 1
        self.ended = False  # whether a step has ended since the start, or since the run went back
        self._tell = told
        self._running: int | None = None  # the number of the newest step, until it has ended
        self._newest: Measured = {}  # what it measures, also when it has ended
        self._untold: list[Measured] = []  # what is measured that other processes do not know
        self._told: list[Measured] = []  # what they do, of the steps before those
        self._unknown: list[StepMetrics] = []  # the rest of the metrics of steps that have ended
        self._unwritten: list[StepMetrics] = []  # `note` may add to the last of them
        self._outputs: list[_Output] = []
        self._file: MetricsFile | None = None
        self._events = events or Events()
        self._pace = Pace(console.print, self._events)
        self._waited = 0.0  # seconds of this lap in which the host waited for the devices
        self._profile: Profile | MeasuredSteps | None = None
        self._ledger = ledger
        self._stack = ExitStack()
        self._show: Show = lambda metrics: None
        with ExitStack() as stack:
            open_outputs = explained_write_errors(folder.path)(self._open_outputs)
            hosts.first_does(lambda: open_outputs(stack, folder, log, console, done, steps))
            self._stack = stack.pop_all()
        self._timer = StepTimer()

    def _open_outputs(
        self, stack: ExitStack, folder: RunFolder, log: Log, console: Console, done: int, steps: int
    ) -> None:
        """On process 0: open everything that is written to; `stack` will close it."""

        def add(output: _Output) -> None:
            stack.callback(explained_write_errors(folder.path)(output.close))
            self._outputs.append(output)

        self._file = MetricsFile(folder.metrics, done)
        add(self._file)
        if self._file.dropped:
            self._events.write("lost", done, **lost(self._file.dropped))
        if log.tensorboard:
            add(TensorBoard(folder.path / "tensorboard", done))
        if log.wandb:
            add(WandB(log.wandb, folder.path, folder.config))
        if log.mlflow:
            add(MLflow(log.mlflow, folder.path, folder.config))
        self._show = stack.enter_context(progress(console, done, steps, log.every))
        traced = steps_to_trace(log.profile, steps)
        if traced and done < traced[-1]:
            self._profile = Profile(traced, folder.path / "profile")
        elif self._ledger:
            how = self._ledger, done, steps, folder.path, console
            self._profile = MeasuredSteps(*how, wait=self._wait)
        if self._profile:
            stack.callback(self._profile.close)

    def spent(self, what: str) -> AbstractContextManager[None]:
        """A context manager: the time inside it counts as `what`.

        Before a checkpoint or a copy begins, the metrics of steps that have ended are written. So
        a run that is resumed from it lacks none.

        Args:
          what: `input`, with which a step begins; `checkpoint`; `copy`; or any other word.
        """
        if what in ("checkpoint", "copy"):
            self._write()
        if what == "checkpoint":
            return self._saving()
        if what == "input" and self._profile and self._next >= self._profile.steps[0]:
            with self._timer.spent("profile"):
                self._profile.begin(self._next)
        return self._timer.spent(what)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        began = time.perf_counter()
        with self._timer.spent("checkpoint"):
            yield
        self._events.write("checkpoint", self._next - 1, seconds=time.perf_counter() - began)

    def step(self, number: int, measured: Measured, tell: bool = True) -> list[StepMetrics]:
        """Take what a step measures, which the devices may still be computing.

        The step before it is waited for.

        Args:
          number: of the step, counted from 1.
          tell: whether all processes are told. If not, the metrics of this step come with those of
            the next one that they are told of.

        Returns:
          The metrics of the step before, and of those whose metrics come with it.
        """
        known = self._known()
        self._write()
        self._running, self._newest, self._next = number, measured, number + 1
        self._untold.append(measured)
        if tell:
            self._begin_to_tell()
        return known

    def _begin_to_tell(self) -> None:
        if self._untold:
            told, self._untold = self._tell(self._untold), []
            for value in (value for measured in told for value in measured.values()):
                value.copy_to_host_async()
            self._told += told

    def _wait(self) -> None:
        """Wait until the newest step has ended on all devices, without taking its metrics."""
        jax.block_until_ready(self._newest)

    def settle(self) -> list[StepMetrics]:
        """Wait for the newest step to end.

        Returns:
          Its metrics, and all others that were not returned before.
        """
        self._begin_to_tell()
        return self._known()

    def _known(self) -> list[StepMetrics]:
        """The metrics of steps that have been told, after the newest step has ended."""
        if self._running is not None:
            step, self._running = self._running, None
            began = time.perf_counter()
            self._wait()
            self._waited += time.perf_counter() - began
            self.ended = True
            self._unknown.append(self._at_end(step))
        known = []
        for measured in self._told:
            values = {name: float(value) for name, value in measured.items()}
            known.append(self._metrics(values, self._unknown.pop(0)))
            if known[-1].get("skipped"):
                self._events.write("skipped", known[-1]["step"])
        self._told = []
        self._unwritten += known
        for metrics in [*known, *self._unknown[-1:]]:
            self._show(metrics)
        return known

    def go_on(self, facts: Facts, told: Callable[[list[Measured]], Sequence[Measured]]) -> None:
        """From the next step on other facts hold, and `told` is asked; the steps so far are told.

        Args:
          facts, told: as for a new watch.
        """
        self.settle()
        self._facts, self._tell = facts, told
        self._learning_rate = _rates(facts.learning_rate)
        self._learning_rate(self._next)  # compiled now

    def note(self, step: int, values: StepMetrics) -> None:
        """Add `values` to the metrics of `step`, which must be the newest one."""
        self.settle()
        assert self._unwritten and self._unwritten[-1]["step"] == step, step
        self._unwritten[-1].update(values)

    def rewind(self, done: int) -> None:
        """Drop the metrics of steps after `done`: the run went back there and goes on."""
        self._running, self.ended = None, False
        gone, last = [*self._unwritten, *self._unknown], self._next - 1
        for of_steps in (self._untold, self._told, self._unknown, self._unwritten):
            of_steps.clear()
        self._next = done + 1
        for output in self._outputs:
            output.rewind(done)
        if self._file is not None:
            gone = [*self._file.dropped, *gone]
        gone.append({"step": last, **self._lap()})  # the time of going back belongs to no step
        self._events.write("rollback", done, **lost(gone) | {"steps": last - done})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            # With an error the newest step may be what failed: to wait for it would fail again.
            if error is None:
                self.settle()
            self._write()
            last = parts(self._lap())
            spent = {f"{what}_seconds": last[what] for what in last if what in BESIDE}
            self._events.at_end(self._next - 1 - (self._running is not None), spent)

    def _write(self) -> None:
        for metrics in self._unwritten:
            for output in self._outputs:
                output.write(metrics)
        self._unwritten = []

    def _at_end(self, step: int) -> StepMetrics:
        """What is known of a step that has just ended, without what it measured."""
        facts, times = self._facts, self._lap()
        training_seconds = sum(times.get(f"{what}_seconds", 0.0) for what in TRAINING)
        speed = facts.units / training_seconds
        metrics = {
            "step": step,
            "time": round(time.time(), 3),
            f"{facts.unit}s": facts.before + step * facts.units,
            "learning_rate": self._learning_rate(step),
            f"{facts.unit}s{SPEED}": speed,
            f"{facts.unit}s{SPEED}_per_device": speed / facts.devices,
        }
        if facts.peak_flops and facts.flops:
            peak = training_seconds * facts.peak_flops * facts.devices
            metrics |= {"mfu_causal": facts.flops[0] / peak, "mfu_full": facts.flops[1] / peak}
        metrics |= times | self._memory_in_use()
        if self._startup:
            self._startup.done("first_step")
            metrics |= self._startup.values()
            self._events.write("first_step", step, **self._startup.values())
            self._console.print(self._startup.line())
            self._startup = None
        else:
            metrics |= self._pace.step(step, training_seconds, times["wait_seconds"])
        if self._profile and step >= self._profile.steps[-1]:
            with self._timer.spent("profile"):
                self._profile.close()
            self._profile = None
        return metrics

    def _lap(self) -> dict[str, float]:
        """End a lap, as `StepTimer.lap`, with what the host waited for the devices in it."""
        times, waited = self._timer.lap(), self._waited
        self._waited = 0.0
        return times | {"wait_seconds": waited}

    def _metrics(self, measured: dict[str, float], at_end: StepMetrics) -> StepMetrics:
        """All metrics of a step, of what it measured and what is known since it has ended."""
        if "cross_entropy" in measured:
            measured["cross_entropy"] /= measured.get("trained") or 1.0
            if per_token := self._facts.bytes_per_token:
                measured["bits_per_byte"] = bits_per_byte(measured["cross_entropy"], per_token)
        return {"step": at_end["step"], "loss": measured["loss"], **measured, **at_end}

    def _memory_in_use(self) -> StepMetrics:
        """The memory in use on the fullest device of this process; empty where it is unknown."""
        if not self._measurable:
            return {}
        stats = [device.memory_stats() for device in self._measurable]
        keys = {"memory_bytes": "bytes_in_use", "memory_peak_bytes": "peak_bytes_in_use"}
        return {name: max(each.get(key, 0) for each in stats) for name, key in keys.items()}


def _rates(schedule: Callable[[Any], Any]) -> Callable[[int], float]:
    """The learning rate of a step, counted from 1, without waiting for the devices.

    A schedule is a JAX function. Called for one step on an accelerator it would wait behind the
    step that is running there. So rates are computed on the CPU of the host, _BLOCK steps at once.
    """
    compute = jax.jit(lambda first: jax.vmap(schedule)(first + np.arange(_BLOCK)))

    @lru_cache(1)
    def block(number: int) -> np.ndarray:
        try:
            where = jax.default_device(jax.local_devices(backend="cpu")[0])
        except RuntimeError:  # JAX_PLATFORMS leaves out the CPU
            where = nullcontext()
        with where:
            return np.asarray(compute(number * _BLOCK))

    return lambda step: float(block((step - 1) // _BLOCK)[(step - 1) % _BLOCK])
