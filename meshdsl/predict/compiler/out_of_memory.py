"""What the TPU compiler says when a program does not fit, read off the text of its error.

Where far too much is needed it gives up early and says no more than how much: "HLO temporaries"
then include the arguments. Otherwise it lists the largest allocations, with the op that each
belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshdsl.program.recorder import tag_in

_SIZE = r"([\d.]+[KMGT]?B?)"
_EARLY = re.compile(rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_FULL = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
_ARGUMENTS = re.compile(rf"^\s+arguments\s+{_SIZE}", re.MULTILINE)
_ENTRY = re.compile(rf"^\s+\d+\. Size: {_SIZE}\n(.*?)\n\s+=+", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s+(Operator|Shape|XLA label|Allocation type|Tag): (.*)$", re.MULTILINE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Allocation:
    """One of the largest allocations of a program that does not fit.

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
      arguments: bytes of the arguments; None where the compiler doesn't say.
      largest: the largest allocations, the largest first; empty where it doesn't say.
    """

    needed: int
    available: int
    arguments: int | None
    largest: tuple[Allocation, ...]


def parse_oom(message: str) -> OutOfMemory | None:
    """The verdict in `message`, the text of a compiler's error; None for another kind of error."""
    if early := _EARLY.search(message):
        return OutOfMemory(_bytes(early[1]), _bytes(early[2]), None, ())
    if full := _FULL.search(message):
        arguments = _ARGUMENTS.search(message)
        return OutOfMemory(
            needed=_bytes(full[1]),
            available=_bytes(full[2]),
            arguments=_bytes(arguments[1]) if arguments else None,
            largest=tuple(_allocation(size, text) for size, text in _ENTRY.findall(message)),
        )
    return None


def _allocation(size: str, text: str) -> Allocation:
    """An entry of the compiler's list: its size, and lines that begin with the name of a field."""
    fields = dict(_FIELD.findall(text))
    label = fields.get("XLA label", "").partition("(")[0].partition(" = ")[0]
    return Allocation(
        bytes=_bytes(size),
        what=fields.get("Allocation type", ""),
        shape=fields.get("Shape", ""),
        tag=tag_in(fields.get("Operator", "")) or "",
        label=label,
    )


def _bytes(text: str) -> int:
    """`376.30G`, `65.5K` or `512B`, in powers of 1024."""
    number = text.removesuffix("B")
    unit = number.lstrip("0123456789.")
    return round(float(number.removesuffix(unit)) * _UNITS[unit])
