"""What all processes must have alike, and what one of them does for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count as counter
from typing import TypeVar

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import store

T = TypeVar("T")

_MEETING = 600.0  # seconds until processes that prepare the same run are together
_number = counter()  # of questions; the same in all processes, which ask the same ones


def agree(what: str, text: str, *, patience: float = _MEETING) -> None:
    """Refuse to go on unless `text` is the same in all processes: the configuration, say, or a fingerprint of the data.

    Each process sends its text once, and process 0 compares their hashes.

    Args:
      what: the text is of, for the message.
      patience: seconds between the first process that comes here and the last one.

    Raises:
      MeshDSLError: in every process, with the first line that differs and which processes have what, or with those that have not come.
    """
    if store.count() == 1:
        return
    key = f"agree/{next(_number)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    store.put(f"{key}/texts/{digest}", text)
    store.put(f"{key}/hashes/{store.index()}", digest)
    try:
        store.meet(f"{key}/all", patience)
    except RuntimeError as error:
        raise MeshDSLError(_not_met(what, key, patience, error)) from None
    if store.first():
        hashes = store.folder(f"{key}/hashes")
        same = len(set(hashes.values())) == 1
        store.put(
            f"{key}/verdict",
            "" if same else _difference(what, hashes, store.folder(f"{key}/texts")),
        )
    if verdict := store.wait_for(f"{key}/verdict"):
        raise MeshDSLError(verdict)


def first_does(do: Callable[[], T]) -> T:
    """Process 0 does it, and the others wait until it is done; all get what it returns.

    Args:
      do: returns what JSON holds.

    Raises:
      MeshDSLError: in every process, the one that `do` raised.
    """
    if store.count() == 1:
        return do()
    key = f"first/{next(_number)}"
    if store.first():
        try:
            value = do()
        except MeshDSLError as error:
            store.put(key, json.dumps({"refused": str(error)}))
            raise
        store.put(key, json.dumps({"value": value}))
        return value
    found = json.loads(store.wait_for(key))
    if "refused" in found:
        raise MeshDSLError(found["refused"])
    return found["value"]


def _not_met(what: str, key: str, patience: float, error: RuntimeError) -> str:
    """Why the processes did not meet to compare."""
    missing = set()
    with suppress(RuntimeError):  # the store is gone
        missing = set(range(store.count())) - {int(each) for each in store.folder(f"{key}/hashes")}
    if missing:
        return f"{what}: {_processes(missing)} of {store.count()} did not come in {patience:g} s to compare it with the others; still at work, or hanging?"
    return f"{what}: the {store.count()} processes could not meet to compare it: {' '.join(str(error).split())}"


def _difference(what: str, hashes: dict[str, str], texts: dict[str, str]) -> str:
    """The first line in which the texts differ, and who has which; `hashes` by the number of the process."""
    groups: dict[str, list[int]] = {}
    for process, digest in sorted(hashes.items(), key=lambda item: int(item[0])):
        groups.setdefault(digest, []).append(int(process))
    lines = {digest: texts[digest].splitlines() for digest in groups}
    at = next(
        (i for i, row in enumerate(zip(*lines.values(), strict=False)) if len(set(row)) > 1),
        min(map(len, lines.values())),
    )
    found: dict[str, list[int]] = {}
    for digest, processes in groups.items():
        line = lines[digest][at].strip() if at < len(lines[digest]) else ""
        found.setdefault(f"`{line}`" if line else "nothing there", []).extend(processes)
    said = "; ".join(f"{line} in {_processes(processes)}" for line, processes in found.items())
    return f"{what} differs between processes, and must be the same in all {len(hashes)}: {said}"


def _processes(numbers: Iterable[int]) -> str:
    """`process 0`, `processes 1-3, 7`."""
    numbers = sorted(numbers)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return f"process{'es' * (len(numbers) > 1)} {', '.join(f'{a}-{b}' if b > a else str(a) for a, b in runs)}"
