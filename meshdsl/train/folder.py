"""The folder of a run: `config.toml`, `metrics.jsonl`, `checkpoints/` and what else it writes. One run has one folder, and one process group at a time."""

from __future__ import annotations

import fcntl
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.train import settings
from meshdsl.train.config import Config

_LOCK, _PART = "lock", "config.part"
_LEFT = (_LOCK, _PART)  # by a run that never began
_SHARED = 60.0  # seconds in which a shared file system shows to all what one has written


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
            raise MeshDSLError(f"there is no run in {self.path}")
        return settings.read(self.config, Config())

    def refuse_used(self) -> None:
        """Raise a MeshDSLError if there is anything in the folder already."""
        if self.path.is_file():
            raise MeshDSLError(f"--out {self.path}: is a file")
        if self.config.exists():
            raise MeshDSLError(
                f"--out {self.path}: holds a run; go on with it by --resume, or choose another folder"
            )
        if self.path.exists() and any(path.name not in _LEFT for path in self.path.iterdir()):
            raise MeshDSLError(f"--out {self.path}: is not empty; choose another folder")

    def begin(self, config: Config) -> None:
        """Make the folder, and write the configuration into it, whole or not at all."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self.path / _PART
            part.write_text(settings.to_toml(_with_whole_paths(config)), encoding="utf-8")
            part.replace(self.config)
        except OSError as error:
            raise MeshDSLError(f"--out {self.path}: {error.strerror}") from None

    @contextmanager
    def held(self) -> Iterator[str]:
        """Keeps every other run out of the folder. The system lets go of it when the process ends, however it ends.

        Yields:
          What stands in the folder as long, for `token`.

        Raises:
          MeshDSLError: another run holds it, or nothing can be written here.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a")
        except OSError as error:
            raise MeshDSLError(f"--out {self.path}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MeshDSLError(
                    f"--out {self.path}: another process is running this run; wait for it, or choose another folder"
                ) from None
            except OSError:
                pass  # a file system without locks
            token = secrets.token_hex(8)
            try:
                lock.truncate(0)
                lock.write(token)
                lock.flush()
            except OSError as error:
                raise MeshDSLError(f"--out {self.path}: {error.strerror}") from None
            yield token

    def token(self, wanted: str) -> str:
        """What stands in the folder as this process sees it: `wanted`, as soon as it is seen, or something else after a minute."""
        until = time.monotonic() + _SHARED
        while True:
            try:
                found = (self.path / _LOCK).read_text(encoding="utf-8")
            except OSError:
                found = "absent"
            if found == wanted or time.monotonic() > until:
                return found
            time.sleep(0.5)


def _with_whole_paths(config: Config) -> Config:
    """`config` as it is kept with the run: its paths hold from any folder."""
    whole = lambda path: str(Path(path).absolute()) if path else ""  # noqa: E731
    sources = {
        name: replace(
            each, paths=tuple(map(whole, each.paths)), validation=tuple(map(whole, each.validation))
        )
        for name, each in config.data.sources.items()
    }
    tokenizer = (
        config.data.tokenizer if config.data.tokenizer == "bytes" else whole(config.data.tokenizer)
    )
    data = replace(
        config.data, sources=sources, tokenizer=tokenizer, cache=whole(config.data.cache)
    )
    return replace(config, data=data, warm_start=whole(config.warm_start))
