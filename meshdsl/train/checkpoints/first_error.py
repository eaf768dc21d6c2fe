"""The first complaint among processes that each read their part of a checkpoint. What process 0 finds out for all goes by `hosts.first_does`."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


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
    return bytes(
        multihost_utils.broadcast_one_to_all(
            np.frombuffer(own.ljust(size), np.uint8), is_source=mine
        )
    ).decode()
