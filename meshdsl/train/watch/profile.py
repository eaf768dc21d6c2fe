"""A trace of a few steps, to look at in Perfetto or TensorBoard."""

from __future__ import annotations

import re
from pathlib import Path

import jax

from meshdsl.errors import MeshDSLError


def steps_to_trace(text: str, steps: int) -> range:
    """The steps that the setting `log.profile` names, such as `10:15`; none where it is empty.

    Args:
      steps: how many the run has.

    Raises:
      MeshDSLError: the text is no range of steps of the run.
    """
    if not text:
        return range(0)
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found:
        raise MeshDSLError(
            f"log.profile={text}: expected the first and the last step of the trace, as 10:15"
        )
    first, last = int(found[1]), int(found[2])
    if not 1 <= first <= last:
        raise MeshDSLError(
            f"log.profile={text}: expected the first and the last step, counted from 1, "
            "the first not after the last"
        )
    if last > steps:
        raise MeshDSLError(f"log.profile={text}: the run has {steps} steps")
    return range(first, last + 1)


class Profile:
    """Writes the trace of some steps, on the devices of the process that makes this object.

    Args:
      folder: to write to; JAX makes folders of its own in it.
    """

    def __init__(self, steps: range, folder: Path):
        self.steps, self._folder = steps, folder
        self._is_tracing = False
        self._annotation: jax.profiler.StepTraceAnnotation | None = None  # of the step that runs

    def begin(self, step: int) -> None:
        """Call this when `step` is about to be started."""
        self._end_step()
        if step not in self.steps:
            return
        if not self._is_tracing:
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=_options()
            )
            self._is_tracing = True
        self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=step)
        self._annotation.__enter__()

    def close(self) -> None:
        """End the trace, if one was begun, and write it."""
        self._end_step()
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()

    def _end_step(self) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None


def _options() -> jax.profiler.ProfileOptions:
    options = jax.profiler.ProfileOptions()
    # An event for every Python call would slow the host and fill the trace.
    options.python_tracer_level = 0
    return options
