"""What is done about steps whose loss or gradient is NaN or infinite (`guard.nonfinite`)."""

from __future__ import annotations

import collections
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Guard
from meshdsl.train.watch import StepMetrics

# So many batches are remembered: the metrics of a step come one step late, while the batch after
# the next one is placed on the devices.
_REMEMBERED = 3


class NonfiniteGuard:
    """Judges the metrics of each step: the run goes on, rolls back, or is stopped by an error.

    All processes see the same losses, so they judge alike; each saves its own rows of a batch that
    was no good. What is counted against `guard.patience` is counted from the start of the
    processes: a resumed run begins at 0.

    Args:
      folder: of the run. A batch that was no good is saved there, as `nonfinite-STEP.npz`; with
        several processes as `nonfinite-STEP-process-I.npz`.
      late: how many steps later than by itself the metrics of a step may come.
      dynamic: whether the loss scale is dynamic. Then steps are skipped while the scale is searched
        for, in a run in which nothing is wrong, and their batches are not saved.
    """

    def __init__(self, guard: Guard, folder: Path, dynamic: bool = False, late: int = 0):
        self._guard, self._folder, self._dynamic = guard, folder, dynamic
        self._batches: collections.deque[tuple[int, Mapping[str, np.ndarray]]] = collections.deque(
            maxlen=_REMEMBERED + late
        )
        self._in_a_row = self._rollbacks = self._saved = 0

    def keep(self, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Remember this process's rows of the batch of `step` until the step has been judged."""
        self._batches.append((step, batch))

    def judge(self, of_steps: Iterable[StepMetrics]) -> str:
        """`go`, or `rollback` where the state is of no use any more.

        A step that was `skipped` by the compiled step left the state as it was. With a dynamic loss
        scale that is how float16 finds its scale.

        Args:
          of_steps: the metrics of steps, one after the other; those after one that asks for a
            roll-back are not looked at.

        Raises:
          MeshDSLError: the run must stop; the text says how it can go on.
        """
        verdicts = map(self._verdict, of_steps)
        return next((verdict for verdict in verdicts if verdict != "go"), "go")

    def _verdict(self, metrics: StepMetrics) -> str:
        skipped = bool(metrics.get("skipped"))
        finite = math.isfinite(metrics["loss"]) and math.isfinite(metrics["gradient_norm"])
        if finite and not skipped:
            self._in_a_row = 0
            return "go"
        patience = self._guard.patience
        self._in_a_row += 1
        self._rollbacks += not skipped
        if skipped and self._in_a_row < patience:
            if not self._dynamic:
                self._save(metrics["step"])
            return "go"
        if not skipped and self._guard.nonfinite == "rollback" and self._rollbacks <= patience:
            self._save(metrics["step"])
            return "rollback"
        raise MeshDSLError(self._reason(metrics, skipped))

    def _reason(self, metrics: StepMetrics, skipped: bool) -> str:
        """The message of the error that stops the run."""
        policy, patience = self._guard.nonfinite, f"guard.patience={self._guard.patience}"
        after = ""
        if skipped:
            after = f", the last of {self._in_a_row} steps in a row that were skipped ({patience})"
        elif policy == "rollback":
            times = self._guard.patience
            after = f", and the run was rolled back {times} times before ({patience})"
        saved = self._save(metrics["step"])
        batch = f"; its batch is in {saved}" if saved else ""
        ways = []
        if policy == "stop" and not skipped:
            ways += ["guard.nonfinite=skip", "guard.nonfinite=rollback"]
        if after:
            ways += ["guard.patience larger"]
        return (
            f"step {metrics['step']}: loss {metrics['loss']:.6g}, "
            f"gradient norm {metrics['gradient_norm']:.6g}{after}{batch}; "
            "to go on from the newest checkpoint: "
            f"meshdsl train --resume --out {self._folder}, "
            f"with {', '.join(ways)} or a lower optimizer.learning_rate"
        )

    def _save(self, step: int) -> Path | None:
        """Save the batch of `step`, and return its file.

        None where the batch is not remembered any more, where more batches than the patience have
        been saved, which is enough to learn from, or where the file cannot be written.
        """
        batch = next((batch for number, batch in self._batches if number == step), None)
        if batch is None or self._saved > self._guard.patience:
            return None
        self._saved += 1
        process = f"-process-{hosts.index()}" if hosts.count() > 1 else ""
        path, number = self._folder / f"nonfinite-{step}{process}.npz", 1
        while path.exists():  # after a roll-back the same step may fail with another batch
            number += 1
            path = self._folder / f"nonfinite-{step}{process}-{number}.npz"
        arrays: dict[str, Any] = dict(batch)
        try:
            np.savez(path, **arrays)
        except OSError as error:  # the reason to stop is worth more than the file
            print(f"{path}: cannot be written: {error.strerror}", file=sys.stderr)
            return None
        return path
