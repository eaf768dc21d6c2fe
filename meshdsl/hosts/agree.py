"""What processes must have alike (`agree`), what one does for all (`first_does`), or before them.

The processes must call these functions in the same order: each call has a number, by which a
process finds the call of the others in the store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from itertools import count as counter
from typing import TypeVar

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import store

T = TypeVar("T")

_MEETING = 600.0  # seconds until processes that prepare the same run are together
_call_numbers = counter()


def agree(what: str, text: str, *, patience: float = _MEETING) -> None:
    """Refuse to go on unless `text` is the same in all processes.

    The text is the configuration of the run, say, or a fingerprint of its data. Each process sends
    it once, and process 0 compares the hashes.

    Args:
      what: what the text describes, for the message.
      patience: seconds that the first process waits here for the last one.

    Raises:
      MeshDSLError: in every process. It quotes the first line that differs and says which processes
        have what, or it names the processes that did not come.
    """
    if store.count() == 1:
        return
    key = f"agree/{next(_call_numbers)}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    store.put(f"{key}/texts/{digest}", text)
    store.put(f"{key}/hashes/{store.index()}", digest)
    try:
        store.wait_for_all(f"{key}/all", patience)
    except RuntimeError as error:
        raise MeshDSLError(_not_met(what, key, patience, error)) from None
    if store.first():
        hashes = store.values_below(f"{key}/hashes")
        same = len(set(hashes.values())) == 1
        store.put(
            f"{key}/verdict",
            "" if same else _difference(what, hashes, store.values_below(f"{key}/texts")),
        )
    if verdict := store.wait_for(f"{key}/verdict"):
        raise MeshDSLError(verdict)


def first_does(do: Callable[[], T]) -> T:
    """Call `do` in process 0 only, while the others wait; all get what it returns.

    Args:
      do: returns something that JSON can hold.

    Raises:
      MeshDSLError: in every process, where `do` raised one.
    """
    if store.count() == 1:
        return do()
    key = f"first/{next(_call_numbers)}"
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


def first_goes_ahead(do: Callable[[], T]) -> T:
    """Call `do` in all processes; process 0 has done it, or failed, before any other begins."""
    if store.count() == 1:
        return do()
    key = f"ahead/{next(_call_numbers)}"
    if not store.first():
        store.wait_for(key)
        return do()
    try:
        return do()
    finally:
        store.put(key, "done")


def _not_met(what: str, key: str, patience: float, error: RuntimeError) -> str:
    """The message where the processes did not meet to compare their texts."""
    missing = set()
    with suppress(RuntimeError):  # the store is gone
        come = {int(each) for each in store.values_below(f"{key}/hashes")}
        missing = set(range(store.count())) - come
    if missing:
        return (
            f"{what}: {store.in_words(missing)} of {store.count()} did not come in {patience:g} s "
            "to compare it with the others; still at work, or hanging?"
        )
    reason = " ".join(str(error).split())
    return f"{what}: the {store.count()} processes could not meet to compare it: {reason}"


def _difference(what: str, hashes: dict[str, str], texts: dict[str, str]) -> str:
    """The message that quotes the first line in which the texts differ, and says who has which.

    Args:
      hashes: of the text of each process, by the number of the process.
      texts: by their hashes.
    """
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
    said = "; ".join(f"{line} in {store.in_words(processes)}" for line, processes in found.items())
    return f"{what} differs between processes, and must be the same in all {len(hashes)}: {said}"
