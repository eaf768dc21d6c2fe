"""The record of what was transferred between meshes: which tensors, how often, how many bytes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from meshdsl.figures import columns


class Transfer(NamedTuple):
    """One tensor that went from one mesh to another.

    Attributes:
      name: the name that the transfer was given, and the path of the tensor in its tree.
      source, target: dims and splits, and how many devices there are.
      parts: into how many different parts it was cut for the way; devices beyond that get copies.
      bytes: of all parts and copies that arrived at a device which did not have them.
    """

    name: str
    source: str
    target: str
    parts: int
    bytes: int


class Transfers:
    """What `transfer` and `Stages` moved from mesh to mesh, added up.

        moved = md.Transfers()
        x = md.transfer(x, layout, mesh, transfers=moved)
        print(moved.bytes, moved.table())

    Attributes:
      counts: how often there was each `Transfer`.
    """

    def __init__(self):
        self.counts: Counter[Transfer] = Counter()

    def __repr__(self):
        return f"<{self.counts.total()} transfers of {self.bytes:,} bytes>"

    @property
    def bytes(self) -> int:
        """The bytes of all transfers."""
        return sum(each.bytes * times for each, times in self.counts.items())

    def add(self, transfer: Transfer) -> None:
        """Count one more transfer of this kind."""
        self.counts[transfer] += 1

    def clear(self) -> None:
        """Forget all transfers, to count those of the next step alone."""
        self.counts.clear()

    def table(self) -> str:
        """A line for each kind of transfer: its tensor, from where to where, bytes, how often."""
        rows = [("tensor", "from", "to", "parts", "bytes", "times", "all bytes")]
        for each, times in self.counts.items():
            rows.append(
                (
                    each.name,
                    each.source,
                    each.target,
                    f"{each.parts:,}",
                    f"{each.bytes:,}",
                    f"{times:,}",
                    f"{each.bytes * times:,}",
                )
            )
        return "\n".join(columns(rows, right=(3, 4, 5, 6), indent=0))
