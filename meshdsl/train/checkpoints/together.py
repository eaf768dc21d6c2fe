"""What processes tell each other about checkpoints. Every process calls these, in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def from_first(make: Callable[[], Any]) -> Any:
    """What `make` gives on process 0, on all processes: one of them looks into a shared folder, and all see the same.

    Args:
      make: gives what JSON holds.
    """
    if jax.process_count() == 1:
        return make()
    text = json.dumps(make()).encode() if jax.process_index() == 0 else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    return json.loads(bytes(multihost_utils.broadcast_one_to_all(np.frombuffer(text.ljust(size), np.uint8))))


def first_of(text: str) -> str:
    """The text of the first process that has one; empty where none has."""
    if jax.process_count() == 1:
        return text
    speaking = multihost_utils.process_allgather(np.int32(bool(text)))
    if not np.any(speaking):
        return ""
    chosen = int(np.argmax(speaking))
    mine = jax.process_index() == chosen
    own = text.encode() if mine else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(own)), is_source=mine))
    return bytes(multihost_utils.broadcast_one_to_all(np.frombuffer(own.ljust(size), np.uint8), is_source=mine)).decode()
