"""Everything that is told about a run while it runs.

The loop hands over what a step measures, which the devices may still be computing, and gets back
the metrics of the step before. So the devices are never waited for. Every process makes the same
metrics, because every process makes decisions by them; process 0 writes and shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
from meshdsl.train.watch.exporters import TensorBoard, WandB, log_in
from meshdsl.train.watch.ledger import Ledger, MeasuredSteps
from meshdsl.train.watch.metrics_file import MetricsFile, StepMetrics, explained_write_errors
from meshdsl.train.watch.profile import Profile, steps_to_trace
from meshdsl.train.watch.screen import Show, progress
from meshdsl.train.watch.step_timer import TRAINING, StepTimer
from meshdsl.train.watch.units import SPEED, bits_per_byte

if TYPE_CHECKING:
    from rich.console import Console

_BLOCK = 1024  # learning rates that are computed at once
_Output = MetricsFile | TensorBoard | WandB


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


class Watch:
    """Writes and shows the metrics of a run's steps; a context manager.

        with Watch(...) as watch:
            for number in range(1, steps + 1):
                with watch.spent("input"):
                    batch = next(batches)
                state, measured = step(state, batch)
                previous = watch.step(number, measured)

    Args:
      folder: of the run; it exists.
      log: where else to write metrics, and what to trace. `check` has accepted it.
      done: how many steps are done already; metrics of later steps on disk are dropped.
      steps: how many the whole run has.
      startup: what the time went into until now. It is told with the first step.
      ledger: of the run, where one is wanted; then `log` asks for no trace.

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
    ):
        self._facts, self._console, self._startup = facts, console, startup
        self._learning_rate = _rates(facts.learning_rate)
        self._learning_rate(done + 1)  # compiled now
        self._measurable = [device for device in jax.local_devices() if device.memory_stats()]
        self._next = done + 1
        self._running: tuple[int, Mapping[str, jax.Array]] | None = None  # the newest step
        self._newest: Mapping[str, jax.Array] = {}  # what it measures, also when it has ended
        self._unwritten: StepMetrics | None = None  # of a step that has ended; `note` may add to it
        self._outputs: list[_Output] = []
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

        add(MetricsFile(folder.metrics, done))
        if log.tensorboard:
            add(TensorBoard(folder.path / "tensorboard", done))
        if log.wandb:
            add(WandB(log.wandb, folder.path, folder.config))
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

        Before a checkpoint begins, the metrics of steps that have ended are written. So a run that
        is resumed from it lacks none.

        Args:
          what: `input`, with which a step begins; `checkpoint`; or any other word.
        """
        if what == "checkpoint":
            self._write()
        elif what == "input" and self._profile and self._next >= self._profile.steps[0]:
            with self._timer.spent("profile"):
                self._profile.begin(self._next)
        return self._timer.spent(what)

    def step(self, number: int, measured: Mapping[str, jax.Array]) -> StepMetrics | None:
        """Take what a step measures, which the devices may still be computing.

        Args:
          number: of the step, counted from 1.

        Returns:
          The metrics of the step before it; None if `settle` has returned those already.
        """
        for value in measured.values():
            value.copy_to_host_async()
        previous = self.settle()
        self._write()
        self._running, self._newest = (number, measured), measured
        self._next = number + 1
        return previous

    def _wait(self) -> None:
        """Wait until the newest step has ended on all devices, without taking its metrics."""
        jax.block_until_ready(self._newest)

    def settle(self) -> StepMetrics | None:
        """Wait for the newest step to end.

        Returns:
          Its metrics; None if they were returned before.
        """
        if self._running is None:
            return None
        self._write()
        step, measured = self._running
        self._running = None
        values = {name: float(value) for name, value in measured.items()}
        self._unwritten = self._metrics(step, values)
        if self._startup:
            self._startup.done("first_step")
            self._unwritten |= self._startup.values()
            self._console.print(self._startup.line())
            self._startup = None
        self._show(self._unwritten)
        if self._profile and step >= self._profile.steps[-1]:
            with self._timer.spent("profile"):
                self._profile.close()
            self._profile = None
        return self._unwritten

    def note(self, step: int, values: StepMetrics) -> None:
        """Add `values` to the metrics of `step`, which must be the newest one."""
        if self._running is not None:
            self.settle()
        assert self._unwritten is not None and self._unwritten["step"] == step, step
        self._unwritten.update(values)

    def rewind(self, done: int) -> None:
        """Drop the metrics of steps after `done`: the run went back there and goes on."""
        self._running = self._unwritten = None
        self._next = done + 1
        for output in self._outputs:
            output.rewind(done)
        self._timer.lap()  # the time of going back belongs to no step

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

    def _write(self) -> None:
        if self._unwritten is not None:
            metrics, self._unwritten = self._unwritten, None
            for output in self._outputs:
                output.write(metrics)

    def _metrics(self, step: int, values: dict[str, float]) -> StepMetrics:
        """All metrics of a step that has just ended, from the values that it measured."""
        facts, times = self._facts, self._timer.lap()
        training_seconds = sum(times.get(f"{what}_seconds", 0.0) for what in TRAINING)
        metrics = {
            "step": step,
            "loss": values.pop("loss"),
            f"{facts.unit}s": facts.before + step * facts.units,
        }
        if "cross_entropy" in values:
            values["cross_entropy"] /= values.get("trained") or 1.0
            if facts.bytes_per_token:
                metrics["bits_per_byte"] = bits_per_byte(
                    values["cross_entropy"], facts.bytes_per_token
                )
        speed = facts.units / training_seconds
        metrics |= {
            **values,
            "learning_rate": self._learning_rate(step),
            f"{facts.unit}s{SPEED}": speed,
            f"{facts.unit}s{SPEED}_per_device": speed / facts.devices,
        }
        if facts.peak_flops and facts.flops:
            peak = training_seconds * facts.peak_flops * facts.devices
            metrics |= {"mfu_causal": facts.flops[0] / peak, "mfu_full": facts.flops[1] / peak}
        return metrics | times | self._memory_in_use()

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
