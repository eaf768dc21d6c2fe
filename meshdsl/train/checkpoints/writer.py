"""Writes one checkpoint by orbax while the run goes on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from meshdsl.extras import extra
from meshdsl.train.checkpoints.saved_arrays import CHUNK


def _is_no_error_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname or record.levelno < logging.ERROR


def _is_no_write_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.getMessage()


def _quieten() -> None:
    """Let nothing of orbax be logged as an error: `Writer.wait` raises the first one.

    Orbax logs an error with its stack in each of its threads, and asyncio logs those of writes that
    orbax did not wait for, because another one failed before. This is called after the import of
    orbax, since absl makes a logger of its own when it is imported, if there is none yet.
    """
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


class Writer:
    """Writes checkpoints, one at a time."""

    def __init__(self):
        with extra("train"):
            import orbax.checkpoint as ocp

        _quieten()
        _ignore_late_callbacks()
        self._ocp = ocp
        # Not compressed: the bits of parameters are almost random and hardly shrink.
        handler = ocp.PyTreeCheckpointHandler(
            use_ocdbt=True, use_zarr3=False, use_compression=False
        )
        finalize = handler.finalize

        def finalize_and_seal(directory: Any) -> None:
            """Orbax calls this on process 0, in the background, when all processes have written.

            The folder gets its final name afterwards.
            """
            finalize(directory)
            self._seal(Path(directory))

        handler.finalize = finalize_and_seal
        self._seal: Callable[[Path], None] = lambda folder: None
        self._orbax = ocp.AsyncCheckpointer(handler)

    def start(
        self, folder: Path, arrays: dict[str, jax.Array], seal: Callable[[Path], None]
    ) -> None:
        """Begin to write a checkpoint; returns when the arrays are copied and may be overwritten.

        Args:
          folder: the name that the checkpoint has when it is complete.
          seal: called on process 0 when all arrays are written, with the folder in which they lie
            then. What it adds is part of the checkpoint.
        """
        self._seal = seal
        how = {name: self._ocp.SaveArgs(chunk_byte_size=CHUNK) for name in arrays}
        self._orbax.save(folder.absolute(), args=self._ocp.args.PyTreeSave(arrays, save_args=how))

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is complete; raises what went wrong with it."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        """Wait as `wait` does, and end orbax's threads."""
        self._orbax.close()
