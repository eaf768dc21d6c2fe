"""The checkpoints of a run: saved while it runs, pruned, restored from the newest good one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.later import imported
from meshdsl.train.checkpoints import folders, manifest, tree_leaves
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.manifest import Manifest
from meshdsl.train.checkpoints.newest import GoodCheckpoint, newest_complete, read_newest_good
from meshdsl.train.checkpoints.save_schedule import SaveSchedule
from meshdsl.train.config import Checkpoint

if TYPE_CHECKING:
    from meshdsl.train.checkpoints.writer import Writer

_WRITE_ERRORS = (OSError, ValueError, RuntimeError)  # that orbax and tensorstore raise


class Checkpoints:
    """The checkpoints in a folder that all processes of a run share.

    All processes call the methods, in the same order.

    Args:
      folder: made when the first checkpoint is written.
      settings: when to write, and what to keep.
      report: called with a line on each damaged checkpoint that is passed over.
    """

    def __init__(self, folder: Path, settings: Checkpoint, report: Callable[[str], Any] = print):
        self.folder = folder
        self._settings = settings
        self._report = report
        self._schedule = SaveSchedule(settings)
        self._writer: Writer | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._being_written: tuple[int, Future] | None = None  # the step, and when it is complete
        self._reported: set[str] = set()
        self._damaged: set[int] = set()  # steps that the next save sets aside

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint by its name, good or damaged; None without one."""
        self._finish_writing()
        return max(hosts.first_does(lambda: folders.saved_steps(self.folder)), default=None)

    @property
    def kept(self) -> int:
        """How many checkpoints here will be removed as newer ones come: at most `keep`.

        Damaged ones and those that are kept for good do not count. So the disk needs room for
        `keep + 1 - kept` more. Each process may ask this alone: only names are read.
        """
        every = self._settings.keep_every
        good = set(folders.saved_steps(self.folder)) - self._damaged
        return min(self._settings.keep, sum(not (every and step % every == 0) for step in good))

    def check(self, state: Any) -> int | None:
        """Look at the newest checkpoint whose files are all there; arrays are not read.

        Returns:
          Its step, which may be older than `latest`; None where there is no checkpoint.

        Raises:
          MeshDSLError: all checkpoints are damaged; or this one is of another model or optimizer
            than `state`, with the first difference.
        """
        self._finish_writing()
        newest = newest_complete(self.folder)
        if newest is None:
            return None
        self._pass_over_damaged(newest)
        self._refuse_other(newest.manifest, state)
        return newest.step

    def due(self, step: int) -> bool:
        """Whether to save after `step`. Every process asks after every step.

        Raises:
          MeshDSLError: the previous checkpoint could not be written.
        """
        if self._being_written and self._being_written[1].done():
            self._finish_writing()
        return self._schedule.due(step)

    def save(self, step: int, state: Any, data: Any) -> None:
        """Begin to write a checkpoint; returns when its arrays are copied and may be overwritten.

        Args:
          data: the state of the data, as JSON can hold it, the same on all processes.

        Raises:
          MeshDSLError: this checkpoint, or the previous one, could not be written.
        """
        self._finish_writing()
        new_writer: Callable[[], Writer] = imported("meshdsl.train.checkpoints.writer", "Writer")
        self._writer = self._writer or new_writer()
        arrays, leaves = tree_leaves.named_arrays(state), tree_leaves.describe(state)
        names = list(arrays)
        # Computed after the step that is running; read when all arrays are written.
        computed = digests(arrays)

        def seal(folder: Path) -> None:
            values = map(int, np.asarray(computed))
            manifest.write(folder, step, leaves, dict(zip(names, values, strict=True)), data)

        try:
            if jax.process_index() == 0:
                self._prepare_folder()
            self._writer.start(self.folder / str(step), arrays, seal)
        except _WRITE_ERRORS as error:
            raise self._not_written(step, error) from error
        self._being_written = step, self._background.submit(self._complete, self._writer)

    def restore(self, like: Any) -> tuple[Any, Any]:
        """Read the newest good checkpoint.

        Args:
          like: a state of arrays, or of `ShapeDtypeStruct`s with shardings.

        Returns:
          The state in the shardings of `like`, and the state of the data that was saved with it.

        Raises:
          MeshDSLError: there is no good checkpoint, or it is of another model or optimizer.
        """
        self._finish_writing()

        def wanted(content: Manifest) -> dict[str, Any]:
            self._refuse_other(content, like)
            return tree_leaves.named_arrays(like)

        newest = read_newest_good(self.folder, wanted)
        self._pass_over_damaged(newest)
        return tree_leaves.with_arrays(like, newest.arrays), newest.manifest["data"]

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
          MeshDSLError: the last checkpoint could not be written.
        """
        self._finish_writing()
        if self._writer:
            # What could not be written was reported before; orbax raises it again.
            with suppress(*_WRITE_ERRORS):
                self._writer.close()
            self._writer = None
        self._background.shutdown()

    def _pass_over_damaged(self, newest: GoodCheckpoint) -> None:
        for line in newest.warnings():
            if line not in self._reported:  # `check` sees most of what `restore` sees again
                self._report(line)
        self._reported.update(newest.warnings())
        self._damaged |= set(newest.damaged)

    def _refuse_other(self, content: Manifest, state: Any) -> None:
        """Raise a MeshDSLError unless the checkpoint with this manifest is one of such a state."""
        run = self.folder.parent
        if not content["whole_state"]:
            raise MeshDSLError(
                f"{run} holds parameters only; a new run begins with them by warm_start={run}"
            )
        difference = tree_leaves.first_difference(content["state"], tree_leaves.describe(state))
        if difference:
            raise MeshDSLError(
                f"{run} holds a checkpoint of another model or optimizer: {difference}"
            )

    def _prepare_folder(self) -> None:
        """Remove leftovers of killed processes, and free the names of damaged checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folders.remove_leftovers(self.folder)
        folders.set_aside(self.folder, self._damaged)
        self._damaged.clear()

    def _complete(self, writer: Writer) -> None:
        """Wait until the checkpoint is complete, then remove older ones. Runs in a thread."""
        writer.wait()
        if jax.process_index() == 0:
            keep, keep_every = self._settings.keep, self._settings.keep_every
            steps = folders.saved_steps(self.folder)
            folders.remove(self.folder, folders.surplus(steps, keep, keep_every))

    def _finish_writing(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        if self._being_written:
            (step, future), self._being_written = self._being_written, None
            try:
                future.result()
            except _WRITE_ERRORS as error:
                raise self._not_written(step, error) from error

    def _not_written(self, step: int, error: Exception) -> MeshDSLError:
        newest = max(set(folders.saved_steps(self.folder)) - self._damaged, default=None)
        there = (
            "there is none before it"
            if newest is None
            else f"the newest whole one, of step {newest}, is still there"
        )
        return MeshDSLError(
            f"{self.folder}: the checkpoint of step {step} could not be written: "
            f"{manifest.reason(error)}; {there}"
        )
