"""One checkpoint, written by orbax while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from meshdsl.train.checkpoints.saved_arrays import CHUNK


class _Handler(ocp.PyTreeCheckpointHandler):
    """Writes arrays as orbax does, and then, before the folder gets its name, what `seal` adds to it."""

    def __init__(self):
        super().__init__(
            use_ocdbt=True, use_zarr3=False, use_compression=False
        )  # random bits hardly shrink
        self.seal: Callable[[Path], None] = lambda folder: None

    def finalize(self, directory: Any) -> None:
        """Runs on process 0, in the background, once the arrays of all processes are written."""
        super().finalize(directory)
        self.seal(Path(directory))


@ocp.args.register_with_handler(_Handler, for_save=True, for_restore=True)
@dataclass
class _Arrays(ocp.args.PyTreeSave):
    """The arrays by name."""


class Writer:
    """Writes one checkpoint at a time."""

    def __init__(self):
        self._handler = _Handler()
        self._orbax = ocp.AsyncCheckpointer(self._handler)

    def start(
        self, folder: Path, arrays: dict[str, jax.Array], seal: Callable[[Path], None]
    ) -> None:
        """Begin to write a checkpoint that will be `folder`; returns when the arrays are copied, so that a step may overwrite them.

        Args:
          seal: called with the folder when the arrays lie in it, on process 0.
        """
        self._handler.seal = seal
        how = {name: ocp.SaveArgs(chunk_byte_size=CHUNK) for name in arrays}
        self._orbax.save(folder.absolute(), args=_Arrays(arrays, save_args=how))

    def wait(self) -> None:
        """Until what was begun is whole; raises what went wrong."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        self._orbax.close()
