"""A trace of a few steps, for Perfetto and TensorBoard."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import jax

from meshdsl.errors import MeshDSLError


@dataclass(frozen=True)
class Traced:
    """The steps from `first` to `last`, both included."""

    first: int
    last: int


def traced(text: str, steps: int) -> Traced | None:
    """What `10:15` says for a run of so many `steps`; None for nothing.

    Raises:
      MeshDSLError: it is no range of steps of the run.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found:
        raise MeshDSLError(
            f"log.profile={text}: expected the first and the last step of the trace, as 10:15"
        )
    first, last = int(found[1]), int(found[2])
    if not 1 <= first <= last:
        raise MeshDSLError(
            f"log.profile={text}: expected the first and the last step, counted from 1, the first not after the last"
        )
    if last > steps:
        raise MeshDSLError(f"log.profile={text}: the run has {steps} steps")
    return Traced(first, last)


class Profile:
    """Writes the trace of the steps in `what`. Of several processes the one that makes this object writes, of its own devices."""

    def __init__(self, what: Traced, folder: Path):
        self.what, self._folder = what, folder
        self._running = False
        self._step: jax.profiler.StepTraceAnnotation | None = None

    def begin(self, step: int) -> None:
        """`step` is about to be started."""
        self._leave()
        if step < self.what.first or step > self.what.last:
            return
        if not self._running:
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=_options()
            )
            self._running = True
        self._step = jax.profiler.StepTraceAnnotation("train", step_num=step)
        self._step.__enter__()

    def close(self) -> None:
        """Write what there is."""
        self._leave()
        if self._running:
            self._running = False
            jax.profiler.stop_trace()

    def _leave(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def _options() -> jax.profiler.ProfileOptions:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = (
        0  # an event for every Python call would slow the host, and fill the trace
    )
    return options
