"""Collectives whose times were measured on a machine, one table for each form of a group.

A form says how many devices of a node a group has, and of how many nodes: `8`, `4x2`. Between two
sizes that were measured the time is that of the straight line through both. Below the smallest size
it stays as it is. Above the largest each further byte takes as long as between the largest two.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshdsl.errors import MeshDSLError, nearest, quote

# What a chip may have a table of.
COLLECTIVES = ("all_gather", "psum_scatter", "psum", "pmax", "pmin", "all_to_all", "ppermute")
# The extremes move what a sum moves, and take its times where they have none of their own.
_AS_PSUM = ("pmax", "pmin")
_FORM = re.compile(r"[1-9]\d*(x[1-9]\d*)?")


@dataclass(frozen=True)
class Curve:
    """How long a collective takes by its bytes.

    Attributes:
      bytes: the larger of operand and result on one device, ascending.
      times: the seconds for each of them.
      source: how they were measured.
    """

    bytes: tuple[float, ...]
    times: tuple[float, ...]
    source: str

    def seconds(self, bytes: float) -> float:
        """The seconds of a collective of so many bytes."""
        at = bisect_left(self.bytes, bytes)
        if at == 0:
            return self.times[0]
        if at == len(self.bytes):
            return self.times[-1] + (bytes - self.bytes[-1]) * self._of_byte
        (x0, x1), (y0, y1) = self.bytes[at - 1 : at + 1], self.times[at - 1 : at + 1]
        return y0 + (y1 - y0) * (bytes - x0) / (x1 - x0)

    @property
    def _of_byte(self) -> float:
        """Seconds of a further byte above the largest size, in proportion where one is known."""
        sizes, times = list(self.bytes), list(self.times)
        if len(sizes) > 1 and times[-1] > times[-2]:
            return (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return times[-1] / sizes[-1]


Curves = Mapping[str, Mapping[str, Curve]]  # by collective, and by form of the group


def curve_of(curves: Curves, operation: str, form: str) -> Curve | None:
    """The curve of a collective in groups of a form; None where none was measured."""
    for name in (operation, *(("psum",) if operation in _AS_PSUM else ())):
        if found := curves.get(name, {}).get(form):
            return found
    return None


def checked_curves(table: Any, where: str) -> Curves:
    """The curves in the key `collectives` of a chip; `where` is the chip, for errors.

    Raises:
      MeshDSLError: it is no table of curves.
    """
    if not isinstance(table, dict):
        raise MeshDSLError(f"{where}: `collectives` is a table, not {quote(table)}")
    for name, forms in table.items():
        if name not in COLLECTIVES:
            raise MeshDSLError(
                f"{where}: `collectives` has {quote(name)}, which is no collective"
                f"{nearest(name, COLLECTIVES)}; they are {', '.join(COLLECTIVES)}"
            )
        if not isinstance(forms, dict):
            raise MeshDSLError(f"{where}: `collectives.{name}` is a table, not {quote(forms)}")
    return {
        name: {
            form: _checked(f"{where}: `collectives.{name}.{form}`", form, given)
            for form, given in forms.items()
        }
        for name, forms in table.items()
    }


def _checked(what: str, form: str, given: Any) -> Curve:
    if not _FORM.fullmatch(form):
        raise MeshDSLError(
            f"{what}: a group is named by its devices in a node, `8`, and its nodes, `4x2`"
        )
    wanted = '{ bytes = [...], value = [...], unit = "us", source = "..." }'
    if not isinstance(given, dict) or set(given) != {"bytes", "value", "unit", "source"}:
        raise MeshDSLError(
            f"{what} is {wanted}, not {given if isinstance(given, dict) else quote(given)}"
        )
    for key in ("bytes", "value"):
        numbers = given[key]
        if not isinstance(numbers, list) or not numbers or not all(map(_is_positive, numbers)):
            raise MeshDSLError(f"{what}: `{key}` is a list of numbers above 0")
    if len(given["bytes"]) != len(given["value"]):
        raise MeshDSLError(
            f"{what}: `bytes` and `value` are of {len(given['bytes'])} and "
            f"{len(given['value'])} numbers, and should be of as many"
        )
    if any(a >= b for a, b in zip(given["bytes"], given["bytes"][1:], strict=False)):
        raise MeshDSLError(f"{what}: `bytes` ascends")
    if given["unit"] != "us":
        raise MeshDSLError(f"{what}: the unit is us, not {quote(given['unit'])}")
    if not isinstance(given["source"], str) or not given["source"]:
        raise MeshDSLError(f"{what}: the source is a text that says how it was measured")
    seconds = tuple(value * 1e-6 for value in given["value"])
    return Curve(tuple(given["bytes"]), seconds, given["source"])


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
