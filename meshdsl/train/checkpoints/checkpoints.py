"""The checkpoints of a tree: saved while a program runs, pruned, read from the newest good one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from meshdsl import hosts
from meshdsl.errors import MeshDSLError, whole_number
from meshdsl.layout import Layout
from meshdsl.train.checkpoints import folders, manifest, tree_leaves
from meshdsl.train.checkpoints.copies import Copies, Copy
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.manifest import Manifest
from meshdsl.train.checkpoints.newest import (
    GoodCheckpoint,
    OnDisk,
    newest_complete,
    read_newest_good,
)
from meshdsl.train.checkpoints.places import as_before, as_wanted, on_devices, zeros_as
from meshdsl.train.checkpoints.save_schedule import SaveSchedule
from meshdsl.train.checkpoints.writer import Writer

_WRITE_ERRORS = (OSError, ValueError, RuntimeError)  # that orbax and tensorstore raise


class Restored(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      state: the tree, with arrays.
      step: after which it was saved.
      data: what was saved with it.
    """

    state: Any
    step: int
    data: Any


class Checkpoints:
    """The checkpoints in a folder: of any pytree of Tensors, arrays and numbers.

    They are written while the program goes on, and checked before they are used. In a run of
    several processes all of them call the methods, in the same order, and see one folder.

        with Checkpoints("runs/vit", every=100, keep=2) as checkpoints:
            if checkpoints.latest is not None:
                state, step, data = checkpoints.restore(state)
            for step in range(step + 1, steps + 1):
                state = train_step(state)
                if checkpoints.due(step):
                    checkpoints.save(step, state)

    Args:
      folder: made when the first checkpoint is written.
      every: steps between two checkpoints, for `due`; 0: none by steps.
      minutes: minutes between two checkpoints, for `due`; 0: none by time.
      keep: how many of the newest are kept.
      keep_every: checkpoints of steps that this number divides are kept for good; 0: none are.
      forgets: the name of a part of the state that may be lost. Where a checkpoint has none of it,
        or one of other dims, it begins with zeros, and `forgot` is true from then on.
      report: called with a line on each damaged checkpoint that is passed over, and on what is
        forgotten.
      copies: those that are also made in the memory of hosts.

    Raises:
      MeshDSLError: one of the numbers is not legal.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 0,
        minutes: float = 0.0,
        keep: int = 2,
        keep_every: int = 0,
        forgets: str = "",
        report: Callable[[str], Any] = print,
        copies: Copies | None = None,
    ):
        self.folder = Path(folder)
        self._keep = whole_number("Checkpoints: `keep`", keep, 1)
        self._keep_every = whole_number("Checkpoints: `keep_every`", keep_every, 0)
        self._report, self._forgets, self.forgot = report, forgets, False
        self._copies = copies
        self._schedule = SaveSchedule(whole_number("Checkpoints: `every`", every, 0), minutes)
        self._writer: Writer | None = None
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._being_written: tuple[int, Future] | None = None  # the step, and when it is complete
        self._reported: set[str] = set()
        self._damaged: set[int] = set()  # steps that the next save sets aside

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint, good or damaged, or copy; None without one."""
        self._finish_writing()
        steps = hosts.first_does(lambda: folders.saved_steps(self.folder))
        copy = self._copy()
        return max([*steps, *([copy.step] if copy else [])], default=None)

    @property
    def kept(self) -> int:
        """How many checkpoints here will be removed as newer ones come: at most `keep`.

        Damaged ones and those that are kept for good do not count. So the disk needs room for
        `keep + 1 - kept` more. Each process may ask this alone: only names are read.
        """
        every = self._keep_every
        good = set(folders.saved_steps(self.folder)) - self._damaged
        return min(self._keep, sum(not (every and step % every == 0) for step in good))

    def check(self, state: Any) -> int | None:
        """Look at the newest checkpoint or copy of which all is there; arrays are not read.

        Returns:
          Its step, which may be older than `latest`; None where there is no checkpoint.

        Raises:
          MeshDSLError: all checkpoints are damaged; or this one is of another model or optimizer
            than `state`, with the first difference.
        """
        self._finish_writing()
        newest = newest_complete(self.folder, self._copy())
        self._go_on(newest)
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

    def copy_due(self, step: int) -> bool:
        """Whether to make a copy in the memory of hosts after `step`."""
        return self._copies is not None and self._copies.due(step)

    def copy(self, step: int, state: Any, data: Any = None) -> None:
        """Begin to make a copy in the memory of hosts, where `copy_due` says so.

        It returns when the arrays are copied and may be overwritten.

        Args:
          step, state, data: as for `save`.
        """
        assert self._copies
        state = on_devices(state)
        arrays, leaves = tree_leaves.named_arrays(state), tree_leaves.describe(state)
        self._copies.keep(step, leaves, arrays, data)

    def save(self, step: int, state: Any, data: Any = None) -> None:
        """Begin to write a checkpoint; returns when its arrays are copied and may be overwritten.

        Args:
          step: its name; at least 0, and above those that were saved.
          state: any pytree of Tensors, arrays and numbers.
          data: anything that JSON can hold, the same on all processes: where the run is in its
            data, say.

        Raises:
          MeshDSLError: this checkpoint, or the previous one, could not be written; a leaf is
            nothing that a checkpoint holds.
        """
        self._finish_writing()
        step = whole_number("save: `step`", step, 0)
        state = on_devices(state)
        arrays, leaves = tree_leaves.named_arrays(state), tree_leaves.describe(state)
        stored = {name: array for name, array in arrays.items() if array.size}
        if not stored:
            raise MeshDSLError("save: there is no array in the state; `data` holds what is none")
        self._writer = self._writer or Writer()
        names = list(arrays)
        # Computed after the step that is running; read when all arrays are written.
        computed = digests(arrays)

        def seal(folder: Path) -> None:
            values = map(int, np.asarray(computed))
            found = dict(zip(names, values, strict=True))
            manifest.write(folder, manifest.made(step, leaves, found, data))

        try:
            if jax.process_index() == 0:
                self._prepare_folder()
            self._writer.start(self.folder / str(step), stored, seal)
        except _WRITE_ERRORS as error:
            raise self._not_written(step, error) from error
        self._being_written = step, self._background.submit(self._complete, self._writer)

    def restore(
        self, like: Any, layout: Layout | None = None, mesh: Mesh | None = None
    ) -> Restored:
        """Read the newest good checkpoint or copy; damaged ones are passed over, and reported.

        Args:
          like: a tree of arrays or of `ShapeDtypeStruct`s, with the names, dims and dtypes of what
            was saved. The arrays are read into its shardings, whatever those were in which they
            were saved. What has none is read whole onto each device of the mesh of the others.
          layout: read Tensors as this layout splits them, instead of as those of `like` are split.
          mesh: of the layout; by default `make_mesh(layout)`.

        Returns:
          The state, the step and the data: `state, step, data = checkpoints.restore(like)`.

        Raises:
          MeshDSLError: there is no good checkpoint, or it does not fit `like`: the error names the
            first leaf that differs, and says what it is there and here.
        """
        self._finish_writing()
        target = as_wanted(like, layout, mesh)

        every = tree_leaves.named_arrays(target)

        def wanted(content: Manifest) -> dict[str, Any]:
            self._refuse_other(content, target)
            lost = self._lost(content, target)
            return {name: array for name, array in every.items() if name not in lost}

        newest = read_newest_good(self.folder, wanted, copy=self._copy())
        self._pass_over_damaged(newest)
        self._go_on(newest)
        numbers = tree_leaves.numbers_in(newest.manifest["state"])
        lost = self._lost(newest.manifest, target)
        if lost:
            where = f"in the {newest.kept.words}"
            self._report(f"`{self._forgets}` is other {where}; it begins again")
        self.forgot = bool(lost)
        if isinstance(newest.kept, Copy):
            self._report(f"the run goes on from the {newest.kept.words}")
        zeros = {name: zeros_as(every[name]) for name in lost & every.keys()}
        state = tree_leaves.with_arrays(target, newest.arrays | numbers | zeros)
        return Restored(as_before(like, state), newest.step, newest.manifest["data"])

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
          MeshDSLError: the last checkpoint could not be written.
        """
        self._finish_writing()
        if self._copies:
            self._copies.close()
        if self._writer:
            # What could not be written was reported before; orbax raises it again.
            with suppress(*_WRITE_ERRORS):
                self._writer.close()
            self._writer = None
        self._background.shutdown()

    def _copy(self) -> Copy | None:
        return self._copies.newest() if self._copies else None

    def _go_on(self, newest: GoodCheckpoint | None) -> None:
        """Note from which copy the run goes on, if it is one."""
        if self._copies:
            kept = newest.kept if newest else None
            self._copies.go_on(kept if isinstance(kept, Copy) else None)

    def _pass_over_damaged(self, newest: GoodCheckpoint) -> None:
        for line in newest.warnings():
            if line not in self._reported:  # `check` sees most of what `restore` sees again
                self._report(line)
        self._reported.update(newest.warnings())
        self._damaged |= {each.step for each in newest.damaged if isinstance(each, OnDisk)}

    def _refuse_other(self, content: Manifest, state: Any) -> None:
        """Raise a MeshDSLError unless the checkpoint with this manifest is one of such a state."""
        run = self.folder.parent if self.folder.name == "checkpoints" else self.folder
        if not content["whole_state"]:
            raise MeshDSLError(
                f"{run} holds parameters only; a new run begins with them by warm_start={run}"
            )
        lost = self._lost(content, state)
        sides = [
            {name: leaf for name, leaf in side.items() if name not in lost}
            for side in (content["state"], tree_leaves.describe(state))
        ]
        difference = tree_leaves.first_difference(*sides)
        if difference:
            raise MeshDSLError(
                f"{run} holds a checkpoint of another model or optimizer: {difference}"
            )

    def _lost(self, content: Manifest, state: Any) -> set[str]:
        """The names, there and here, of what is forgotten; none where both sides have it alike.

        None either where both have it, but not the same leaves: then it is of something else.
        """
        if not self._forgets:
            return set()
        there, here = (
            {name: leaf for name, leaf in side.items() if name.startswith(f"{self._forgets}.")}
            for side in (content["state"], tree_leaves.describe(state))
        )
        if there and here and there.keys() != here.keys():
            return set()
        return {*there, *here} if tree_leaves.first_difference(there, here) else set()

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
            steps = folders.saved_steps(self.folder)
            folders.remove(self.folder, folders.surplus(steps, self._keep, self._keep_every))

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
