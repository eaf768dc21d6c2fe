"""The folder of a run: its `config.toml`, `metrics.jsonl`, `checkpoints/` and what else it writes.

One folder has one run, and the processes of one command work on it at a time: a lock keeps others
out.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from meshdsl import user_code
from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.figures import byte_words
from meshdsl.layout import Layout
from meshdsl.parsing import parse_json
from meshdsl.train import settings
from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl.train.config import Config
from meshdsl.train.phases import Relayout, phase_after, phases_of
from meshdsl.versions import changes, versions

_LOCK, _PART, _PROOF = "lock", "config.part", "proof"
_COMPILED, _EVENTS, _HOSTS = "compiled", "events.jsonl", "hosts"
# What a run that never began may have left in its folder, besides what is proved of it.
_LEFTOVERS = (_LOCK, _PART, _COMPILED, _EVENTS, _HOSTS)
_RELAYOUT = re.compile(r"relayout-(\d+)\.toml")
_SHARED = 60.0  # seconds in which a shared file system shows to all what one has written


@dataclass(frozen=True)
class RunFolder:
    """The folder at `path`, which need not exist yet, and the files that a run keeps there."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / _EVENTS

    def certificate(self, phase: int = 1) -> Path:
        """What is proved of the step of a phase."""
        return self.path / (f"{_PROOF}-{phase}.json" if phase > 1 else f"{_PROOF}.json")

    @property
    def relayout(self) -> Path:
        """Where a user writes what a run is to change while it goes on."""
        return self.path / "relayout.toml"

    @property
    def refused_relayout(self) -> Path:
        """The same after the run has refused it, with the reason in its first line."""
        return self.path / "relayout-refused.toml"

    def relaid(self, step: int) -> Path:
        """Where that is kept when it is what the run changed after a step."""
        return self.path / f"relayout-{step}.toml"

    def relayouts(self) -> list[Relayout]:
        """What the run has changed while it went on, in the order of steps.

        Raises:
          MeshDSLError: a file of these cannot be read.
        """
        found = []
        for path in self.path.iterdir():
            if named := _RELAYOUT.fullmatch(path.name):
                with system_errors_say(path):
                    text = path.read_text("utf-8", errors="replace")
                found.append((int(named[1]), settings.parsed(text, path)))
        return sorted(found, key=lambda each: each[0])

    @property
    def compiled(self) -> Path:
        return self.path / _COMPILED

    @property
    def hosts(self) -> Path:
        """Where the hosts of an elastic run meet."""
        return self.path / _HOSTS

    @property
    def copies(self) -> Path:
        """What says which copies in the memory of these hosts the run may go on from."""
        return self.hosts / "copies.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def unused(cls, layout: Layout) -> RunFolder:
        """A folder in `runs/` that does not exist yet, named by the time and by the layout."""
        name = Path(layout.name.removeprefix("layout ")).stem
        base = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        paths = (Path("runs", each) for each in (base, *(f"{base}-{i}" for i in range(2, 100))))
        return cls(next(path for path in paths if not path.exists()))

    def stored_config(self, instead: Mapping[str, str] | None = None) -> Config:
        """The configuration of the run in this folder.

        Args:
          instead: as for `settings.read`.

        Raises:
          MeshDSLError: there is no run here.
        """
        if not self.config.is_file():
            raise MeshDSLError(f"there is no run in {self.path}")
        return settings.read(self.config, Config(), instead)

    def config_at(self, step: int | None) -> Config:
        """The settings that the parameters after a step were trained with: those of its phase.

        Args:
          step: of a checkpoint; None: the newest.

        Raises:
          MeshDSLError: there is no run here.
        """
        phases = phases_of(self.stored_config(), self.relayouts())
        newest = max(saved_steps(self.checkpoints), default=phases[-1].until)
        return phase_after(phases, (newest if step is None else step) - 1).config

    def refuse_used(self) -> None:
        """Raise a MeshDSLError if there is anything in the folder already."""
        if self.path.is_file():
            raise MeshDSLError(f"--out {self.path}: is a file")
        if self.config.exists():
            raise MeshDSLError(
                f"--out {self.path}: holds a run; "
                "go on with it by --resume, or choose another folder"
            )
        if self.path.exists() and not all(map(_is_leftover, self.path.iterdir())):
            raise MeshDSLError(f"--out {self.path}: is not empty; choose another folder")

    def write_config(self, config: Config, remark: str = "") -> None:
        """Make the folder, and write the configuration into it, completely or not at all.

        Args:
          remark: lines that are put above it, as a comment.

        Raises:
          MeshDSLError: it cannot be written.
        """
        text = settings.to_toml(_with_absolute_paths(config))
        above = "".join(f"# {line}\n" for line in remark.splitlines())
        self.write(self.config, above + text)

    def write(self, path: Path, text: str) -> None:
        """Make the folder, and write a file into it, completely or not at all.

        Raises:
          MeshDSLError: it cannot be written.
        """
        with system_errors_say(f"--out {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.replace(path)

    def note_versions(self) -> list[str]:
        """Write the versions of what computes into the folder, which exists.

        Returns: what differs from those that the run was started or gone on with before.
        """
        path, now = self.path / "versions.json", versions()
        try:
            before = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None
        with system_errors_say(f"--out {self.path}"):
            path.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
        return changes(before, now) if isinstance(before, dict) else []

    @contextmanager
    def locked(self) -> Iterator[str]:
        """A context in which no other command can lock the folder, which is made if need be.

        The system releases the lock when the process ends, however it ends.

        Yields:
          A random token, which stands in the folder while it is locked; see `wait_for_token`.

        Raises:
          MeshDSLError: another process has locked the folder, or it cannot be written.
        """
        with system_errors_say(f"--out {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MeshDSLError(
                    f"--out {self.path}: another process is running this run; "
                    "wait for it, or choose another folder"
                ) from None
            except OSError:
                pass  # the file system has no locks
            token = secrets.token_hex(8)
            with system_errors_say(f"--out {self.path}"):
                lock.truncate(0)
                lock.write(token)
                lock.flush()
            yield token

    def in_use(self) -> bool:
        """Whether a command works on the folder, as far as its file system tells."""
        try:
            with (self.path / _LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def wait_for_token(self, wanted: str) -> str:
        """The token in the folder as this process sees it: `wanted`, as soon as it is seen.

        If it is not seen within a minute, the result is what stands there instead, or `absent`.
        Processes that compare the results find out whether they share one folder.
        """
        until = time.monotonic() + _SHARED
        while True:
            try:
                found = (self.path / _LOCK).read_text(encoding="utf-8")
            except OSError:
                found = "absent"
            if found == wanted or time.monotonic() > until:
                return found
            time.sleep(0.5)


def _is_leftover(path: Path) -> bool:
    """Whether a run that never began may have left this in its folder."""
    return path.name in _LEFTOVERS or path.name.startswith(_PROOF)


def _with_absolute_paths(config: Config) -> Config:
    """`config` as it is kept with the run: with paths that are right from any working directory."""
    data = config.data
    sources = {
        name: replace(
            source,
            paths=tuple(map(_absolute, source.paths)),
            dataset=user_code.absolute(source.dataset),
            validation=tuple(map(_absolute, source.validation)),
        )
        for name, source in data.sources.items()
    }
    tokenizer = data.tokenizer if data.tokenizer == "bytes" else _absolute(data.tokenizer)
    data = replace(data, sources=sources, tokenizer=tokenizer, cache=_absolute(data.cache))
    groups = {
        name: replace(group, name=user_code.absolute(group.name))
        for name, group in config.optimizer.groups.items()
    }
    optimizer = replace(
        config.optimizer, name=user_code.absolute(config.optimizer.name), groups=groups
    )
    start = _absolute(config.warm_start)
    return replace(config, data=data, optimizer=optimizer, warm_start=start)


def _absolute(path: str) -> str:
    """`path` from the root; "" stays "", which stands for no path, and so does s3://bucket."""
    if "://" in path:
        return path
    return str(Path(path).absolute()) if path else ""


def check_folder(path: Path, needed_bytes: int) -> None:
    """Raise a MeshDSLError if no file can be made in a folder, or so many bytes have no room there.

    The folder need not exist: what counts is the nearest folder above it that does.
    """
    at = path
    while not at.exists() and at != at.parent:
        at = at.parent
    with system_errors_say(f"{path}: cannot be written: {at}"):
        with tempfile.TemporaryFile(dir=at):
            pass
        free = shutil.disk_usage(at).free
    if needed_bytes > free:
        raise MeshDSLError(
            f"{path}: the checkpoints that are kept there need {byte_words(needed_bytes)}, "
            f"and {byte_words(free)} are free; set less checkpoint.keep, or choose another folder"
        )
