"""The checkpoints of a run: saved while it runs, kept by rule, and restored from the newest good one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import folders, manifest, tree_leaves
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.newest import Found, newest_good, newest_record
from meshdsl.train.checkpoints.save_schedule import Clock
from meshdsl.train.checkpoints.writer import Writer
from meshdsl.train.config import Checkpoint


class Checkpoints:
    """The checkpoints in a folder. All processes of a run call the methods, in the same order; the folder is shared by them.

    Args:
      folder: made when the first checkpoint is written.
      settings: when to write, and what to keep.
      report: called with a line on each damaged checkpoint that is passed over.
    """

    def __init__(self, folder: Path, settings: Checkpoint, report: Callable[[str], Any] = print):
        self.folder = folder
        self._settings = settings
        self._report = report
        self._clock = Clock(settings)
        self._writer: Writer | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._finishing: tuple[int, Future] | None = None  # the step that is being written
        self._said: set[str] = set()  # lines that were reported
        self._damaged: set[int] = (
            set()
        )  # steps that were passed over; they are set aside when something is written

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint by its name, good or damaged; or None."""
        self._settle()
        return max(hosts.first_does(lambda: folders.steps(self.folder)), default=None)

    @property
    def kept(self) -> int:
        """How many of the checkpoints here will be removed as newer ones come: at most `keep`, without damaged ones and those kept for good.

        So `keep + 1 - kept` more have to fit on the disk. This process alone looks, and reads nothing but names.
        """
        every = self._settings.keep_every
        whole = set(folders.steps(self.folder)) - self._damaged
        return min(self._settings.keep, sum(not (every and step % every == 0) for step in whole))

    def check(self, state: Any) -> int | None:
        """Look at the newest checkpoint whose files are all there; arrays are not read.

        Returns:
          Its step, which may be older than `latest`; None where there is no checkpoint.

        Raises:
          MeshDSLError: it is not of a state like `state`, naming the first difference; or there are only damaged ones.
        """
        self._settle()
        found = newest_record(self.folder)
        if found is None:
            return None
        self._pass_over(found)
        self._refuse_other(found.record, state)
        return found.step

    def due(self, step: int) -> bool:
        """Whether to save after `step`. Every process asks after every step.

        Raises:
          MeshDSLError: the checkpoint before could not be written.
        """
        if self._finishing and self._finishing[1].done():
            self._settle()
        return self._clock.due(step)

    def save(self, step: int, state: Any, data: Any) -> None:
        """Begin to write a checkpoint; returns when the arrays are copied, so that the next step may overwrite them.

        Args:
          data: the state of the data, as JSON holds it, the same on all processes.

        Raises:
          MeshDSLError: this checkpoint, or the one before, could not be written.
        """
        self._settle()
        self._writer = self._writer or Writer()
        arrays, described = tree_leaves.arrays(state), tree_leaves.described(state)
        numbers = digests(
            arrays
        )  # computed behind the step, and looked at when all else is written

        def seal(folder: Path) -> None:
            found = map(int, np.asarray(numbers))
            manifest.write(folder, step, described, dict(zip(order, found, strict=True)), data)

        order = list(arrays)
        try:
            if jax.process_index() == 0:
                self._make_room()
            self._writer.start(self.folder / str(step), arrays, seal)
        except (OSError, ValueError, RuntimeError) as error:
            raise self._unwritten(step, error) from error
        self._finishing = step, self._background.submit(self._finish, self._writer)

    def restore(self, like: Any) -> tuple[Any, Any]:
        """The newest good state, in the shardings of `like`, and the state of the data that was saved with it.

        Args:
          like: a state of `ShapeDtypeStruct`s with shardings, or of arrays.

        Raises:
          MeshDSLError: there is no good checkpoint, or it is of another model or optimizer.
        """
        self._settle()

        def wanted(found: dict[str, Any]) -> dict[str, Any]:
            self._refuse_other(found, like)
            return tree_leaves.arrays(like)

        found = newest_good(self.folder, wanted)
        self._pass_over(found)
        return tree_leaves.with_arrays(like, found.values), found.record["data"]

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
          MeshDSLError: it could not be.
        """
        self._settle()
        if self._writer:
            with suppress(
                OSError, ValueError, RuntimeError
            ):  # what could not be written was said before; orbax says it again
                self._writer.close()
            self._writer = None
        self._background.shutdown()

    def _pass_over(self, found: Found) -> None:
        for line in found.lines():
            if line not in self._said:  # `check` sees most of what `restore` sees again
                self._report(line)
        self._said.update(found.lines())
        self._damaged |= set(found.damaged)

    def _refuse_other(self, found: dict[str, Any], state: Any) -> None:
        if not found["whole_state"]:
            raise MeshDSLError(
                f"{self.folder.parent} holds parameters only; a new run begins with them by warm_start={self.folder.parent}"
            )
        difference = tree_leaves.first_difference(found["state"], tree_leaves.described(state))
        if difference:
            raise MeshDSLError(
                f"{self.folder.parent} holds a checkpoint of another model or optimizer: {difference}"
            )

    def _make_room(self) -> None:
        """What stands in the way of the next checkpoint goes: leftovers of killed processes, and the names of damaged ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folders.sweep(self.folder)
        folders.set_aside(self.folder, self._damaged)
        self._damaged.clear()

    def _finish(self, writer: Writer) -> None:
        """In a thread of its own: waits until the checkpoint is whole, and then removes those that need not be kept any more."""
        writer.wait()
        if jax.process_index() == 0:
            folders.remove(
                self.folder,
                folders.surplus(
                    folders.steps(self.folder), self._settings.keep, self._settings.keep_every
                ),
            )

    def _settle(self) -> None:
        """The writer is ours again: what it was writing is whole."""
        if self._finishing:
            (step, finishing), self._finishing = self._finishing, None
            try:
                finishing.result()
            except (OSError, ValueError, RuntimeError) as error:
                raise self._unwritten(step, error) from error

    def _unwritten(self, step: int, error: Exception) -> MeshDSLError:
        whole = max(set(folders.steps(self.folder)) - self._damaged, default=None)
        there = (
            "there is none before it"
            if whole is None
            else f"the newest whole one, of step {whole}, is still there"
        )
        return MeshDSLError(
            f"{self.folder}: the checkpoint of step {step} could not be written: {manifest.reason(error)}; {there}"
        )
