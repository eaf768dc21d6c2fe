"""Text as batches of bytes: which files, which of them are held out, and in which order windows of them are read.

Bytes are the tokens. The files of each part are joined, with a separator between them, into one array that is cut
into windows of `length` tokens, each with its next token as target. A batch is a function of (files, seed, step) and
of nothing else: layouts and numbers of devices never change what a step reads.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grain
import numpy as np

from meshdsl.errors import MeshDSLError

SEPARATOR = 0  # between documents; text does not contain it
_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}  # in the library's folder, but not of it


@dataclass(frozen=True)
class Text:
    """The two parts of a text, each a uint8 array [tokens], and the number of files in each."""

    train: np.ndarray
    validation: np.ndarray
    files: tuple[int, int]


def find_files(paths: Sequence[str]) -> list[Path]:
    """The files to read, in an order that does not depend on the machine.

    Args:
      paths: files and folders; empty means the `.py` files of the running interpreter's standard library.

    Raises:
      MeshDSLError: a path does not exist.
    """
    roots = [Path(path) for path in paths] or [Path(sysconfig.get_paths()["stdlib"])]
    pattern = "*" if paths else "*.py"
    found: dict[Path, Path] = {}  # by the resolved path, so a file that is named twice is read once
    for root in roots:
        if not root.exists():
            raise MeshDSLError(f"data: no file or folder `{root}`")
        inside = [root] if root.is_file() else sorted(p for p in root.rglob(pattern) if _wanted(p, root))
        found |= {path.resolve(): path for path in inside}
    return list(found.values())


def _wanted(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return path.is_file() and not any(part.startswith(".") or part in _INSTALLED for part in parts)


def is_held_out(document: bytes, part: float) -> bool:
    """Whether a file is for validation: by the hash of its bytes, so that copies of a file are on the same side."""
    return int.from_bytes(hashlib.sha256(document).digest()[:8], "big") < part * 2**64


def read_text(paths: Sequence[str], validation: float) -> Text:
    """The bytes of `paths`, of which about `validation` of the files are held out.

    Where all files hash to one side, as a single file does, the end of the text is held out instead.

    Raises:
      MeshDSLError: a path does not exist or cannot be read, or there is nothing in them.
    """
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in find_files(paths):
        try:
            document = path.read_bytes()
        except OSError as error:
            raise MeshDSLError(f"data: `{path}` cannot be read: {error.strerror}") from None
        if document:
            parts[is_held_out(document, validation)].append(document)
    if not any(parts):
        raise MeshDSLError(f"data: nothing to read in {', '.join(f'`{p}`' for p in paths) or 'the standard library'}")
    train, held_out = (np.frombuffer(bytes([SEPARATOR]).join(part), np.uint8) for part in parts)
    if not all(parts):
        whole = train if len(train) else held_out
        cut = len(whole) - int(len(whole) * validation)
        train, held_out = whole[:cut], whole[cut:]
    return Text(train, held_out, (len(parts[0]), len(parts[1])))


class Windows(grain.sources.RandomAccessDataSource):
    """Windows of `length` + 1 tokens that share one token with the next, so every token is a target once."""

    def __init__(self, tokens: np.ndarray, length: int):
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.length)

    def __getitem__(self, index: int) -> np.ndarray:
        start = index * self.length
        return self.tokens[start : start + self.length + 1]

    def __repr__(self) -> str:
        return f"Windows({len(self)} of {self.length})"


def _pair(windows: np.ndarray) -> dict[str, np.ndarray]:
    windows = windows.astype(np.int32)
    return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}


def train_batches(tokens: np.ndarray, length: int, batch: int, seed: int) -> grain.DatasetIterator:
    """An endless iterator of {"tokens", "targets"}, each int32 [batch, length], reshuffled every epoch.

    It resumes exactly: `iterator.set_state(state)` with a state that `get_state()` gave.

    Raises:
      MeshDSLError: the text is shorter than one batch.
    """
    source = _source(tokens, length, batch, "the training text")
    dataset = grain.MapDataset.source(source).shuffle(seed=seed).repeat().batch(batch).map(_pair)
    # One thread is plenty to cut windows, and it leaves the processor to the step.
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))


def validation_batches(tokens: np.ndarray, length: int, batch: int, batches: int) -> list[dict[str, np.ndarray]]:
    """At most `batches` batches, spread evenly over the text: the same ones whenever they are asked for.

    Raises:
      MeshDSLError: the text is shorter than one batch.
    """
    source = _source(tokens, length, batch, "the validation text")
    count = min(batches, len(source) // batch)
    chosen = np.linspace(0, len(source) - 1, count * batch).astype(int)
    return [_pair(np.stack([source[i] for i in rows])) for rows in chosen.reshape(count, batch)]


def _source(tokens: np.ndarray, length: int, batch: int, what: str) -> Windows:
    source = Windows(tokens, length)
    if len(source) < batch:
        raise MeshDSLError(
            f"data: {what} has {len(tokens)} bytes, less than one batch={batch} of length={length} "
            f"({batch * length + 1} bytes); give more data, or set a smaller batch or model.length"
        )
    return source
