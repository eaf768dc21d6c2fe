"""Labels of the parts of dims: which mesh axis, or which local dim, a part belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from math import prod
from typing import NamedTuple


class Sent(NamedTuple):
    """The label of a part of which devices along an axis have indices that were sent to them.

    Attributes:
      axis: the mesh axis.
      table: for each place along the axis the index that the device there has. The part may have
        more indices than there are devices.
    """

    axis: str
    table: tuple[int, ...]


class Minor(NamedTuple):
    """The label of a part of the local array that lies in another order, together with `Major`.

    Two parts of a term, major and minor, have one index: that of the pair. On the device at place k
    along the axis, at index j of the local array, this is `table[k][j]`. Each index is there once.

    Attributes:
      axis: the mesh axis.
      table: for each place along the axis the indices that the device there has.
      number: tells apart parts of one array that lie in the same order.
    """

    axis: str
    table: tuple[tuple[int, ...], ...]
    number: int


class Major(NamedTuple):
    """The label of the part before one that is `Minor`; it belongs to the devices."""

    minor: Minor


# Of a part: a mesh axis; an axis along which parts were sent on, or lie in another order; or a
# number, for a part of a dim of the local array or of the rounds of a loop that is under way.
Label = str | int | Sent | Major | Minor


class Part(NamedTuple):
    """A part of a dim.

    Attributes:
      size: how many indices it has.
      label: which part it is. None: along it nothing changes, and the term does not have it.
    """

    size: int
    label: Label | None


Parts = tuple[Part, ...]  # major first
_labels = itertools.count()


def fresh() -> int:
    """A label that no part has yet."""
    return next(_labels)


def axis_of(label: Label | None) -> str:
    """The mesh axis that a label is of; nothing if it is of none."""
    if isinstance(label, Major):
        return label.minor.axis
    return label.axis if isinstance(label, Sent) else label if isinstance(label, str) else ""


def renewed(label: Label | None) -> Label:
    """A label that no part has yet, of a part that lies in the order of another one."""
    return label._replace(number=fresh()) if isinstance(label, Minor) else fresh()


def nameless(label: Label | None) -> Label | None:
    """A label without the number that tells it apart from others in the same order."""
    return Major(label.minor._replace(number=-1)) if isinstance(label, Major) else label


def size_of(parts: Iterable[Part]) -> int:
    return prod(part.size for part in parts)


def labelled(parts: Iterable[Part]) -> dict[Label, int]:
    """The labels of parts, with their sizes."""
    return {part.label: part.size for part in parts if part.label is not None}
