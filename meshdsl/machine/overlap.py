"""How the compiler of a chip runs collectives, by the form of the axes that they go over.

`python -m benchmarks.overlap` finds it for TPUs from small programs that it compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.machine.measured_collectives import COLLECTIVES

# How axes lie on a slice. What fills chips along several dims of the torus is a block.
FORMS = (
    "devices of a chip",
    "part of a dim",
    "one dim",
    "part of a block",  # of the dims that it lies on, one in part
    "two dims",
    "three dims",
    "whole slice of rings",  # and one axis of the mesh is all of it
    "whole slice of two equal dims",  # these and what follows are no rings
    "whole slice of two dims",
    "whole slice of three dims",
    "whole slice by several axes",
    "no block",
)
_AS_PSUM = {"pmax": "psum", "pmin": "psum"}  # they run as a sum does


@dataclass(frozen=True)
class Overlap:
    """How a compiler runs collectives over axes of one form.

    What stands in none of the lists runs as itself, over all dims of the torus that the axes lie
    on, while the device computes.

    Attributes:
      waits: the collectives during which the device does not compute.
      rings: those that go along one ring through all chips.
      sums: those that run as sums of the whole array: of a gather the other parts are zeros.
    """

    waits: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()

    def has(self, how: str, operation: str) -> bool:
        """Whether a collective stands in the list `how`."""
        return _AS_PSUM.get(operation, operation) in getattr(self, how)


def checked_collectives(value: list[Any], key: str, where: str) -> tuple[str, ...]:
    """A list of collectives of a hardware file.

    Raises:
      MeshDSLError: something in it is no collective.
    """
    for one in value:
        if one not in COLLECTIVES:
            raise MeshDSLError(
                f"{where}: `{key}` has {quote(one)}, which is no collective"
                f"{nearest(one, COLLECTIVES)}; they are {', '.join(COLLECTIVES)}"
            )
    return tuple(value)


def checked_overlap(table: Mapping[str, Any], where: str) -> dict[str, Overlap]:
    """The table `overlap` of a chip in a hardware file.

    Args:
      where: the file and the chip, for errors.

    Raises:
      MeshDSLError: it has a form, a list or a collective that there is not.
    """
    found = {}
    lists = [one.name for one in fields(Overlap)]
    for form, given in table.items():
        key = f"overlap.{form}"
        if form not in FORMS:
            raise MeshDSLError(
                f"{where}: `overlap` has {quote(form)}, which is no form of axes"
                f"{nearest(form, FORMS)}; they are {', '.join(FORMS)}"
            )
        wrong = isinstance(given, dict) and [one for one in given if one not in lists]
        if not isinstance(given, dict) or wrong:
            raise MeshDSLError(
                f"{where}: `{key}` is a table of {', '.join(f'`{one}`' for one in lists)}, "
                f"not {quote(wrong[0] if wrong else given)}"
            )
        for name, value in given.items():
            if not isinstance(value, list):
                raise MeshDSLError(
                    f"{where}: `{key}.{name}` is a list of collectives, not {quote(value)}"
                )
        found[form] = Overlap(
            **{
                name: checked_collectives(value, f"{key}.{name}", where)
                for name, value in given.items()
            }
        )
    return found
