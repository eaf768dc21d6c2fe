"""The folder of a run: `config.toml`, `metrics.jsonl` and `checkpoints/`. A run never overwrites another."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.train import config as configuration
from meshdsl.train.config import Config


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def unused(cls, root: Path, name: str) -> RunFolder:
        """A folder in `root` that does not exist yet, named by the time and `name`."""
        base = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        names = [base, *(f"{base}-{i}" for i in range(2, 100))]
        return cls(next(root / each for each in names if not (root / each).exists()))

    def stored_config(self) -> Config:
        """The configuration of the run in this folder.

        Raises:
          MeshDSLError: there is no run here.
        """
        if not self.config.is_file():
            raise MeshDSLError(f"--resume: there is no run in {self.path}")
        return configuration.read(self.config)

    def refuse_used(self) -> None:
        """Raise a MeshDSLError if there is anything in the folder already."""
        if self.path.is_file():
            raise MeshDSLError(f"--out {self.path}: is a file")
        if self.config.exists():
            raise MeshDSLError(f"--out {self.path}: holds a run; go on with it by --resume, or choose another folder")
        if self.path.exists() and any(self.path.iterdir()):
            raise MeshDSLError(f"--out {self.path}: is not empty; choose another folder")

    def begin(self, config: Config) -> None:
        """Make the folder, and write the configuration into it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            configuration.write(config, self.config)
        except OSError as error:
            raise MeshDSLError(f"--out {self.path}: {error.strerror}") from None
