"""The key-value store that the processes of a program share, and which process this one is.

The store belongs to the coordination service that `jax.distributed.initialize` starts. JAX has no
public name for it; orbax reaches it the same way. JAX's public counts, `jax.process_count()` and
`jax.process_index()`, make the devices when they are first called. That would be too early here,
because it is not settled yet how many virtual devices there should be.

The functions from `put` on are for programs of several processes. They raise a RuntimeError where
the store is gone, because process 0 has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jax._src.distributed import global_state

# Milliseconds of one wait for a key. They are many, because each wait that ends without its key
# leaves some 35 kB behind in process 0.
_PATIENCE = 86_400_000

_NAMED = 8  # processes that a message names

_meeting = False


def count() -> int:
    """How many processes run this program."""
    return global_state.num_processes if joined() else 1


def index() -> int:
    """The number of this process, counted from 0."""
    return global_state.process_id if joined() else 0


def first() -> bool:
    """Whether this process speaks for all: it is the only one, or number 0."""
    return index() == 0


def in_words(processes: Iterable[int]) -> str:
    """The numbers of processes in words: `process 0`, or `processes 0, 1, 2 and 5 more`."""
    numbers = sorted(processes)
    more = f" and {len(numbers) - _NAMED} more" if numbers[_NAMED:] else ""
    return f"process{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_NAMED]))}{more}"


def joined() -> bool:
    """Whether this process has met the others. A program of one process never does."""
    return global_state.client is not None and not _meeting


@contextmanager
def meeting() -> Iterator[None]:
    """A context in which the processes find each other; until its end, this one counts as alone.

    JAX ends the process by SIGABRT where the store is used before all have come.
    """
    global _meeting
    _meeting = True
    try:
        yield
    finally:
        _meeting = False


def put(key: str, value: str) -> bool:
    """Set `key` to `value` unless it is set already; returns whether this call set it."""
    try:
        _client().key_value_set(_path(key), value)
    except RuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
        return False
    return True


def put_again(key: str, value: str) -> None:
    """Set `key` to `value`, whatever it was."""
    _client().key_value_set(_path(key), value, allow_overwrite=True)


def look(key: str) -> str:
    """The value of `key`, or empty where it has none."""
    try:
        return _client().key_value_try_get(_path(key))
    except RuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return ""


def wait_for(key: str) -> str:
    """The value of `key`, as soon as it has one.

    A thread that still waits in here when Python ends crashes Python, so somebody must set the key
    before that.
    """
    while True:
        try:
            return _client().blocking_key_value_get(_path(key), _PATIENCE)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def values_below(key: str) -> dict[str, str]:
    """The values of all keys below `key`, by the last part of their keys."""
    return {
        path.rsplit("/", 1)[1]: value for path, value in _client().key_value_dir_get(_path(key))
    }


def wait_for_all(key: str, seconds: float) -> None:
    """Wait until all processes have called this with the same `key`.

    Raises:
      RuntimeError: they have not, in so many seconds.
    """
    _client().wait_at_barrier(_path(key), int(1000 * seconds))


def _client() -> Any:
    return global_state.client


def _path(key: str) -> str:
    return f"meshdsl/{key}"
