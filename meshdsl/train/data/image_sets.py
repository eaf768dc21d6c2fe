"""Images of a dataset by number, wherever they are stored; and those of a user's function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.held_out import hashes_of_numbers
from meshdsl.train.data.python_dataset import PythonRows

_SAMPLES = 16  # images whose content is part of the digest of a dataset


class Images(Protocol):
    """Images of a dataset, with their labels.

    Attributes:
      labels: of all images: names of classes, or whole numbers. None where they are not known
        before an image is read, or not wanted.
      hashes: uint64 of each image, by which it is held out.
    """

    labels: np.ndarray | None
    hashes: np.ndarray

    def __len__(self) -> int: ...

    def read(self, number: int) -> tuple[np.ndarray, Any]:
        """An image as it is stored; and its label, where `labels` does not have it."""
        ...

    def place(self, number: int) -> str:
        """Where an image is, for errors."""
        ...

    def digest(self) -> str:
        """A hash that is another one for other images, from a sample of their content."""
        ...


def sample_digest(count: int, listing: Iterator[str], labels: Any, content: Callable) -> str:
    """A hash of what there is, of all labels, and of the content of a sample of the images."""
    found = hashlib.sha256(str(count).encode())
    for line in listing:
        found.update(line.encode())
    if labels is not None:
        found.update(f"{labels.dtype}".encode() + labels.tobytes())
    for number in np.unique(np.linspace(0, max(0, count - 1), min(count, _SAMPLES)).astype(int)):
        found.update(content(int(number)))
    return found.hexdigest()[:12]


class FunctionImages:
    """Images that a function of the user's gives, as dicts of arrays.

    Args:
      field: the key of the image.
      label: the key of its label; None where it is not wanted.
    """

    labels: np.ndarray | None = None

    def __init__(self, examples: PythonRows, field: str, label: str | None):
        self._examples, self._keys = examples, [field, *([] if label is None else [label])]
        self.hashes = hashes_of_numbers(len(examples))

    def __len__(self) -> int:
        return len(self._examples)

    def read(self, number: int) -> tuple[np.ndarray, Any]:
        example = self._examples[number]
        for key in self._keys:
            if key not in example:
                has = ", ".join(f"`{each}`" for each in example) or "nothing"
                raise MeshDSLError(f"{self.place(number)} has {has} and no `{key}`")
        image, *label = (example[key] for key in self._keys)
        return np.asarray(image), label[0] if label else None

    def place(self, number: int) -> str:
        return f"{self._examples.what}: example {number:,}"

    def digest(self) -> str:
        return self._examples.digest()
