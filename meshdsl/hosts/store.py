"""The key-value store that the processes of a run share, and who they are.

It belongs to the coordination service that `jax.distributed.initialize` starts. JAX has no public name for it; orbax reaches it the
same way. JAX's public counts, `jax.process_count()` and `jax.process_index()`, make the devices when they are first called, which is too
early here: how many virtual devices there should be is still to be said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src.distributed import global_state

_PATIENCE = 86_400_000  # ms of one wait: each that ends without its key leaves some 35 kB behind in process 0

_meeting = False


def count() -> int:
    """How many processes run this program."""
    return global_state.num_processes if joined() else 1


def index() -> int:
    """The number of this process, from 0."""
    return global_state.process_id if joined() else 0


def first() -> bool:
    """Whether this process speaks for all: the only one, or number 0."""
    return index() == 0


def joined() -> bool:
    return global_state.client is not None and not _meeting


@contextmanager
def meeting() -> Iterator[None]:
    """In here the processes find each other, and this one is alone until then.

    JAX ends the process by SIGABRT where the store is used before all have come.
    """
    global _meeting
    _meeting = True
    try:
        yield
    finally:
        _meeting = False


def put(key: str, value: str) -> bool:
    """Set `key` unless another process has; whether it was this one.

    Raises:
      RuntimeError: the store is gone, as every other function here.
    """
    try:
        _client().key_value_set(_path(key), value)
    except RuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
        return False
    return True


def peek(key: str) -> str | None:
    """The value of `key`, if there is one by now."""
    try:
        return _client().key_value_try_get(_path(key))
    except RuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None


def wait_for(key: str) -> str:
    """The value of `key`, whenever it comes. A thread that is still in here when Python ends crashes it: the key must come before."""
    while True:
        try:
            return _client().blocking_key_value_get(_path(key), _PATIENCE)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def folder(key: str) -> dict[str, str]:
    """All values below `key`, by the last part of their keys."""
    return {
        path.rsplit("/", 1)[1]: value for path, value in _client().key_value_dir_get(_path(key))
    }


def meet(key: str, seconds: float) -> None:
    """Go on when all processes have come here.

    Raises:
      RuntimeError: they have not, in so many seconds.
    """
    _client().wait_at_barrier(_path(key), int(1000 * seconds))


def _client() -> Any:
    return global_state.client


def _path(key: str) -> str:
    return f"meshdsl/{key}"
