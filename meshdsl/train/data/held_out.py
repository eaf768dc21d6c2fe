"""Which rows of a dataset are held out for validation, where it brings none of its own.

A row is held out by a hash, so that adding rows moves none to the other side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def divided(hashes: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows that are trained on, and of those that are held out.

    Where all of them hash to one side, as a single one does, the end is held out instead.

    Args:
      hashes: uint64, one for each row.
      fraction: about which part is held out.
    """
    numbers = np.arange(len(hashes))
    if not fraction:
        return numbers, numbers[:0]
    held_out = hashes < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
    if held_out.all() or not held_out.any():
        held_out = numbers >= len(hashes) - int(len(hashes) * fraction)
    return numbers[~held_out], numbers[held_out]


def hash_of(content: Iterable[bytes]) -> int:
    """A hash of 64 bits of some blocks of bytes."""
    digest = hashlib.sha256()
    for block in content:
        digest.update(block)
    return int.from_bytes(digest.digest()[:8], "big")


def hashes_of_numbers(count: int) -> np.ndarray:
    """A hash of 64 bits of each number below `count` (splitmix64; Steele et al., 2014)."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
