"""What the TPU compiler says when a program does not fit.

Where far too much is needed it gives up early and says no more than how much: "HLO temporaries" then include the arguments. Otherwise it lists the largest
allocations, with the op that each belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshdsl.record.recorder import tag_in

_EARLY = re.compile(
    r"required for HLO temporaries \(([\d.]+[KMGT]?B?)\) exceeds available HBM \(([\d.]+[KMGT]?B?)\)"
)
_FULL = re.compile(r"Used ([\d.]+[KMGT]?B?) of ([\d.]+[KMGT]?B?) hbm")
_ARGUMENTS = re.compile(r"^\s+arguments\s+([\d.]+[KMGT]?B?)", re.MULTILINE)
_ENTRY = re.compile(r"^\s+\d+\. Size: ([\d.]+[KMGT]?B?)\n(.*?)\n\s+=+", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s+(Operator|Shape|XLA label|Allocation type|Tag): (.*)$", re.MULTILINE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Allocation:
    """One of the largest allocations.

    Attributes:
      bytes: with its padding.
      what: its kind in the compiler's words: `HLO temp`, `arguments`, `scoped`, `overlays`.
      shape: the type of the array; empty where it is none.
      tag: of the recorded op that makes it; empty where the compiler names none.
      label: the start of the instruction that makes it.
    """

    bytes: int
    what: str
    shape: str
    tag: str
    label: str


@dataclass(frozen=True)
class OutOfMemory:
    """The compiler's verdict that a program does not fit.

    Attributes:
      needed: bytes of HBM, arguments included.
      available: bytes of HBM that programs may use.
      arguments: bytes of them; None where it doesn't say.
      largest: allocations, largest first.
    """

    needed: int
    available: int
    arguments: int | None
    largest: tuple[Allocation, ...]


def parse_oom(message: str) -> OutOfMemory | None:
    """The verdict in the text of a compiler's error; None for an error of another kind."""
    if early := _EARLY.search(message):
        return OutOfMemory(_bytes(early[1]), _bytes(early[2]), None, ())
    if full := _FULL.search(message):
        arguments = _ARGUMENTS.search(message)
        largest = tuple(_allocation(size, fields) for size, fields in _ENTRY.findall(message))
        return OutOfMemory(
            _bytes(full[1]), _bytes(full[2]), _bytes(arguments[1]) if arguments else None, largest
        )
    return None


def _allocation(size: str, text: str) -> Allocation:
    fields = dict(_FIELD.findall(text))
    label = fields.get("XLA label", "").partition("(")[0].partition(" = ")[0]
    return Allocation(
        _bytes(size),
        fields.get("Allocation type", ""),
        fields.get("Shape", ""),
        tag_in(fields.get("Operator", "")) or "",
        label,
    )


def _bytes(text: str) -> int:
    """`376.30G`, `65.5K` or `512B`, in powers of 1024."""
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text).groups()
    return round(float(number) * _UNITS[unit])
