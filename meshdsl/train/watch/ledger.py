"""The ledger of a run: a few of its steps measured, and put beside the estimate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from meshdsl.errors import MeshDSLError
from meshdsl.machine import Target
from meshdsl.machine.target import figures_at_hand
from meshdsl.predict.explain import explain
from meshdsl.predict.explanation import Explanation
from meshdsl.predict.ledger.ledger import from_trace
from meshdsl.predict.ledger.report import LedgerReport
from meshdsl.predict.ledger.trace import check_profiler, start_trace
from meshdsl.program.program import Program
from meshdsl.train.config import Log

if TYPE_CHECKING:
    from rich.console import Console

_STEPS = 5  # that are measured, at most
_LEAST = 2  # steps that a run needs: the first one warms up
_ASKED = "--ledger"
WriteLedger = Callable[[LedgerReport, Path], str]


@dataclass(frozen=True)
class Ledger:
    """What the ledger of a run is made of, beside what is measured.

    Attributes:
      program: the record of the step.
      explanation: the estimate.
      text: gives that of the compiled step.
      write: writes a report into a folder, and returns its text.
    """

    program: Program
    explanation: Explanation
    text: Callable[[], str | None]
    write: WriteLedger


def check_ledger(log: Log) -> None:
    """Check that a run whose log is set so can have a ledger.

    Raises:
      MeshDSLError: it takes a trace of its own, or JAX can take none.
    """
    if log.profile:
        raise MeshDSLError(
            f"{_ASKED}: takes a trace itself, and log.profile={log.profile} asks for one too; "
            "leave one of them out"
        )
    check_profiler(_ASKED)


def figures_of(devices: list[Any], hardware: Path | None) -> Target | None:
    """The target that the devices are; None where there are no figures of them.

    Raises:
      MeshDSLError: a file with figures is given, which cannot be used, or has none of them.
    """
    target = figures_at_hand(devices, hardware)
    if target is None and hardware is not None:
        raise MeshDSLError(
            f"--hardware {hardware}: has no figures of these devices ({devices[0].device_kind})"
        )
    return target


def ledger_of(
    title: str, program: Program, target: Target | None, write: WriteLedger, step: Any
) -> Ledger:
    """What the ledger of a run is made of, beside what is measured.

    Args:
      title: what is measured, in words.
      program: the record of a step.
      target: of whose figures the estimate is made.
      write: as in `Ledger`.
      step: compiled.
    """
    explanation = explain(program, title=title, target=target)
    return Ledger(program, explanation, step.as_text, write)


def check_steps(done: int, steps: int) -> None:
    """Check that a run has steps to measure.

    Args:
      done: how many of its `steps` are done.

    Raises:
      MeshDSLError: it has not.
    """
    if steps - done < _LEAST:
        raise MeshDSLError(
            f"{_ASKED}: measures steps after the first, and the run has {steps - done} to go; "
            "set more --steps"
        )


class MeasuredSteps:
    """Takes a trace of some steps, and writes the ledger when they are done.

    It waits for the devices before the first of them and after the last, so that the trace has
    these steps whole. What the steps compute is the same as ever.

    Args:
      done: the steps that are done; those after the next one are measured.
      steps: how many the run has.
      folder: of the run.
      wait: waits for the step that runs.
    """

    def __init__(
        self,
        ledger: Ledger,
        done: int,
        steps: int,
        folder: Path,
        console: Console,
        wait: Callable[[], Any],
    ):
        self.steps = range(done + 2, min(done + 2 + _STEPS, steps + 1))
        self._ledger, self._folder, self._console, self._wait = ledger, folder, console, wait
        self._trace: tempfile.TemporaryDirectory | None = None
        self._ended = False

    def begin(self, step: int) -> None:
        """Call this when `step` is about to be started."""
        if self._trace is not None:
            if step not in self.steps:
                self.close()
        elif step == self.steps[0] and not self._ended:
            self._wait()
            self._trace = tempfile.TemporaryDirectory()
            try:
                start_trace(_ASKED, Path(self._trace.name))
            except MeshDSLError as error:
                self._give_up(error)

    def close(self) -> None:
        """End the trace, if one was begun, and write the ledger."""
        if self._trace is None:
            return
        with suppress(RuntimeError):  # of a step that failed; who takes its metrics hears of it
            self._wait()
        jax.profiler.stop_trace()
        one, folder = self._ledger, Path(self._trace.name)
        try:
            report = from_trace(_ASKED, folder, one.text(), one.program, one.explanation)
            text = one.write(report, self._folder)
            self._console.print(text, markup=False, highlight=False)
            self._console.print(f"the ledger is in {self._folder}: ledger.txt, .json and .html")
        except (MeshDSLError, OSError, RuntimeError) as error:
            self._give_up(error)
        self._clean_up()

    def _give_up(self, error: Exception) -> None:
        """Say why there is no ledger; the run goes on."""
        self._console.print(f"no ledger: {error}", markup=False, highlight=False)
        self._clean_up()

    def _clean_up(self) -> None:
        self._ended = True
        if self._trace is not None:
            self._trace.cleanup()
            self._trace = None
