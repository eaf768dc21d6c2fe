"""The first error among processes that each read their share of a checkpoint.

What process 0 alone finds out goes to the others by `hosts.first_does` instead.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def first_error(text: str) -> str:
    """The text of the first process that has one; empty if all are. Every process calls this."""
    if jax.process_count() == 1:
        return text
    has_text = multihost_utils.process_allgather(np.int32(bool(text)))
    if not np.any(has_text):
        return ""
    speaker = int(np.argmax(has_text))
    is_speaker = jax.process_index() == speaker
    sent = text.encode() if is_speaker else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(sent)), is_source=is_speaker))
    padded = np.frombuffer(sent.ljust(size), np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(padded, is_source=is_speaker)).decode()
