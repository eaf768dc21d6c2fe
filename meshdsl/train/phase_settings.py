"""What `[[phase]]` tables may say: where each phase of a run ends, and which settings change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshdsl.errors import MeshDSLError

UNTIL = "until"
# What a phase may change, by dotted key; `*` stands for a name, and a key that ends in a dot for
# all below it. The rest is one for the whole run: what it is written to, seeds, and datasets.
CHANGES = (
    *("layout", "batch", "microbatches", "offload", "memory"),
    *("model.", "optimizer.", "schedule.", "precision.", "validation."),
    *("data.sources.*.weight", "data.separate", "data.prefetch"),
)
# Of these, what cannot be changed while a run goes on, because it depends on where a phase ends.
_PLANNED = ("optimizer.", "schedule.", UNTIL)


def last_step(phases: Sequence[Mapping[str, Any]], steps: int, usual: int) -> int:
    """The number of steps of a run with phases: where the last one ends.

    Args:
      phases: the tables, in the order of the file.
      steps: the setting of that name, which counts where the last phase does not say its end.
      usual: its default.

    Raises:
      MeshDSLError: phases are out of order, one but the last has no end, or `steps` says another.
    """
    before = 0
    for number, phase in enumerate(phases, 1):
        end = phase.get(UNTIL)
        if end is None and number == len(phases):
            end = steps
        elif type(end) is not int:
            said = "is missing" if end is None else f"= {end}: expected a whole number"
            raise MeshDSLError(f"phase {number}: `until`, the last step of the phase, {said}")
        if end <= before:
            after = (
                f"phase {number - 1} ends with step {before}" if before else "steps count from 1"
            )
            raise MeshDSLError(f"phase {number}: until={end}, and {after}")
        before = end
    if steps not in (before, usual):
        raise MeshDSLError(
            f"steps={steps}: the last phase ends with step {before}; leave out one of the two"
        )
    return before


def check_changes(phase: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError where a phase changes what is one for the whole run."""
    for key in _keys(phase, ""):
        if key != UNTIL and not any(_covers(known, key) for known in CHANGES):
            raise MeshDSLError(f"`{key}` is one for all phases of a run; set it outside of them")
    if "family" in phase.get("model", {}):
        raise MeshDSLError("`model.family` is one for all phases of a run; set it outside of them")


def check_relayout(table: Mapping[str, Any]) -> None:
    """Raise a MeshDSLError where `relayout.toml` changes what a run cannot while it goes on."""
    if not table:
        raise MeshDSLError('it is empty; expected what changes, such as layout = "fsdp"')
    for key in _keys(table, ""):
        if any(_covers(planned, key) for planned in _PLANNED):
            raise MeshDSLError(f"`{key}` is planned before a run, in a [[phase]] of its file")
    check_changes(table)


def _keys(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """The dotted keys of nested tables; a layout may be a table, and is one value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and path + key != "layout":
            yield from _keys(value, f"{path}{key}.")
        else:
            yield path + key


def _covers(known: str, key: str) -> bool:
    if known.endswith("."):
        return key.startswith(known)
    names, parts = known.split("."), key.split(".")
    return len(names) == len(parts) and all(
        name in ("*", part) for name, part in zip(names, parts, strict=True)
    )
