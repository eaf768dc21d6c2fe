"""Everything that is said about a run while it runs.

The loop hands over what a step measures, which may still be running; the record of the step before comes back, so the devices
are never waited for. Every process makes the same records, because every process decides by them; process 0 writes and shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

import jax
from rich.console import Console

from meshdsl import hosts
from meshdsl.train.config import Log
from meshdsl.train.folder import RunFolder
from meshdsl.train.watch.exporters import TensorBoard, WandB, extra, log_in
from meshdsl.train.watch.learning_rates import Facts, Rates
from meshdsl.train.watch.metrics_file import MetricsFile, Record, writing
from meshdsl.train.watch.profile import Profile, traced
from meshdsl.train.watch.screen import Show, progress
from meshdsl.train.watch.step_timer import TRAINING, Clock
from meshdsl.train.watch.units import bits_per_byte


def check(log: Log, steps: int) -> None:
    """Raise a MeshDSLError if `log` asks for what a run of so many `steps` cannot give, or for what is not installed."""
    traced(log.profile, steps)
    if log.tensorboard:
        extra("tensorboardX", "tensorboard", "log.tensorboard")
    if log.wandb:
        log_in(log.wandb)


class Watch:
    """The records of a run's steps: on disk, on the screen, and where else `log` says. A context manager.

    Args:
      folder: of the run; it exists.
      done: steps that are done already; what is on disk of later ones is dropped.
      steps: of the whole run.

    Raises:
      MeshDSLError: the folder cannot be written, later too; Weights & Biases refuses the run. What `check` finds should have been found before.
    """

    def __init__(
        self, facts: Facts, folder: RunFolder, log: Log, console: Console, done: int, steps: int
    ):
        self._facts = facts
        self._rate = Rates(facts.learning_rate, done + 1)
        self._memory = [device for device in jax.local_devices() if device.memory_stats()]
        self._next = done + 1
        self._waiting: tuple[int, Mapping[str, jax.Array]] | None = None
        self._open: Record | None = None  # whose step is done, and which can still be noted on
        self._outputs: list[MetricsFile | TensorBoard | WandB] = []
        self._profile: Profile | None = None
        self._stack = ExitStack()
        self._show: Show = lambda record: None
        with ExitStack() as stack:
            hosts.first_does(
                writing(folder.path)(lambda: self._start(stack, folder, log, console, done, steps))
            )
            self._stack = stack.pop_all()
        self._clock = Clock()

    def _start(
        self, stack: ExitStack, folder: RunFolder, log: Log, console: Console, done: int, steps: int
    ) -> None:
        def output(made):
            stack.callback(writing(folder.path)(made.close))
            self._outputs.append(made)

        output(MetricsFile(folder.metrics, done))
        if log.tensorboard:
            output(TensorBoard(folder.path / "tensorboard", done))
        if log.wandb:
            output(WandB(log.wandb, folder.path, folder.config))
        self._show = stack.enter_context(progress(console, done, steps, log.every))
        what = traced(log.profile, steps)
        if what and done < what.last:
            self._profile = Profile(what, folder.path / "profile")
            stack.callback(self._profile.close)

    def spent(self, what: str) -> AbstractContextManager[None]:
        """A context; the time in it counts as `input`, with which a step begins, `checkpoint`, `validation` or what else it is called.

        A record whose step is settled is on disk before a checkpoint begins, so a run that is resumed from it lacks none.
        """
        if what == "checkpoint":
            self._write()
        elif what == "input" and self._profile and self._next >= self._profile.what.first:
            with self._clock.spent("profile"):
                self._profile.begin(self._next)
        return self._clock.spent(what)

    def step(self, number: int, measured: Mapping[str, jax.Array]) -> Record | None:
        """Take what step `number` (counted from 1) measures, which may still be running.

        Returns:
          The record of the step before it; None if `settle` gave that already.
        """
        for value in measured.values():
            value.copy_to_host_async()
        before = self.settle()
        self._write()
        self._waiting = number, measured
        self._next = number + 1
        return before

    def settle(self) -> Record | None:
        """Wait for the step that was taken last, and return its record; None if that was done already."""
        if self._waiting is None:
            return None
        self._write()
        step, measured = self._waiting
        self._waiting = None
        self._open = self._record(
            step, {name: float(value) for name, value in jax.device_get(dict(measured)).items()}
        )
        self._show(self._open)
        if self._profile and step >= self._profile.what.last:
            with self._clock.spent("profile"):
                self._profile.close()
            self._profile = None
        return self._open

    def note(self, step: int, values: Record) -> None:
        """Make `values` part of the record of `step`, the newest one."""
        if self._waiting is not None:
            self.settle()
        assert self._open is not None and self._open["step"] == step, step
        self._open.update(values)

    def rewind(self, done: int) -> None:
        """The run goes on after step `done`, to which it went back; the records of later steps are dropped."""
        self._waiting = self._open = None
        self._next = done + 1
        for output in self._outputs:
            output.rewind(done)
        self._clock.lap()  # going back belongs to no step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            if (
                error is None
            ):  # otherwise the step may be what failed, and waiting for it would fail again
                self.settle()
            self._write()

    def _write(self) -> None:
        if self._open is not None:
            record, self._open = self._open, None
            for output in self._outputs:
                output.write(record)

    def _record(self, step: int, values: dict[str, float]) -> Record:
        facts, times = self._facts, self._clock.lap()
        training = sum(times.get(f"{what}_seconds", 0.0) for what in TRAINING)
        record = {
            "step": step,
            "loss": values.pop("loss"),
            "tokens": facts.before + step * facts.tokens,
        }
        if "cross_entropy" in values:
            values["cross_entropy"] /= values.get("trained") or 1.0
            if facts.bytes_per_token:
                record["bits_per_byte"] = bits_per_byte(
                    values["cross_entropy"], facts.bytes_per_token
                )
        speed = facts.tokens / training
        record |= {
            **values,
            "learning_rate": self._rate(step),
            "tokens_per_second": speed,
            "tokens_per_second_per_device": speed / facts.devices,
        }
        if facts.peak_flops:
            whole = training * facts.peak_flops * facts.devices
            record |= {"mfu_causal": facts.flops[0] / whole, "mfu_full": facts.flops[1] / whole}
        return record | times | self._memory_in_use()

    def _memory_in_use(self) -> Record:
        """Of the fullest device of this process."""
        if not self._memory:
            return {}
        stats = [device.memory_stats() for device in self._memory]
        named = {"memory_bytes": "bytes_in_use", "memory_peak_bytes": "peak_bytes_in_use"}
        return {name: max(each.get(key, 0) for each in stats) for name, key in named.items()}
