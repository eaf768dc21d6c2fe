"""Writes one checkpoint by orbax while the run goes on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from meshdsl.extras import extra
from meshdsl.train.checkpoints.saved_arrays import CHUNK

with extra("train"):
    import orbax.checkpoint as ocp


def _is_no_error_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname or record.levelno < logging.ERROR


def _is_no_write_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.getMessage()


# Orbax logs an error with its stack in each of its threads, and asyncio logs those of writes that
# orbax did not wait for, because another one failed before. `Writer.wait` raises the first.
logging.getLogger("absl").addFilter(_is_no_error_of_orbax)
logging.getLogger("asyncio").addFilter(_is_no_write_of_orbax)


def _ignore_late_callbacks() -> None:
    """Keep writes that end after another one failed from printing a stack each.

    Orbax has closed the event loop by then, and tensorstore reports that as an exception that
    nobody catches.
    """
    before = sys.unraisablehook
    if getattr(before, "ignores_late_callbacks", False):
        return

    def report(unraisable: Any) -> None:
        late = str(unraisable.exc_value) == "Event loop is closed"
        if not (late and unraisable.exc_type is RuntimeError):
            before(unraisable)

    report.ignores_late_callbacks = True
    sys.unraisablehook = report


class _Handler(ocp.PyTreeCheckpointHandler):
    """Writes arrays as orbax does; then calls `seal`, before the folder gets its final name."""

    def __init__(self):
        # Not compressed: the bits of parameters are almost random and hardly shrink.
        super().__init__(use_ocdbt=True, use_zarr3=False, use_compression=False)
        self.seal: Callable[[Path], None] = lambda folder: None

    def finalize(self, directory: Any) -> None:
        """Orbax calls this on process 0, in the background, when all processes have written."""
        super().finalize(directory)
        self.seal(Path(directory))


@ocp.args.register_with_handler(_Handler, for_save=True, for_restore=True)
@dataclass
class _Arrays(ocp.args.PyTreeSave):
    """Tells orbax that what is saved goes to `_Handler`."""


class Writer:
    """Writes checkpoints, one at a time."""

    def __init__(self):
        _ignore_late_callbacks()
        self._handler = _Handler()
        self._orbax = ocp.AsyncCheckpointer(self._handler)

    def start(
        self, folder: Path, arrays: dict[str, jax.Array], seal: Callable[[Path], None]
    ) -> None:
        """Begin to write a checkpoint; returns when the arrays are copied and may be overwritten.

        Args:
          folder: the name that the checkpoint has when it is complete.
          seal: called on process 0 when all arrays are written, with the folder in which they lie
            then. What it adds is part of the checkpoint.
        """
        self._handler.seal = seal
        how = {name: ocp.SaveArgs(chunk_byte_size=CHUNK) for name in arrays}
        self._orbax.save(folder.absolute(), args=_Arrays(arrays, save_args=how))

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is complete; raises what went wrong with it."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        """Wait as `wait` does, and end orbax's threads."""
        self._orbax.close()
