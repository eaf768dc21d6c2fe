"""How a compiler runs a collective: its time on the links, and what the device does meanwhile.

Seen in programs that libtpu 0.0.42 compiled with the options of `compiled/options.py`, with one
gather, scatter and sum over each axis of a mesh:

- v5p (4x4x4, 2x2x2): gathers, scatters and sums run on the sparse cores while the device computes.
  The options have no such thing for an all_to_all: the device waits for it.
- v6e (4x4) and tpu7x (2x2x1): everything runs while the device computes.
- v5e (4x4): an all-gather runs while the device computes; it waits for sums and scatters.
- v4 (2x2x2, 4x4x4): the device waits for everything.
- A reduce-scatter over a whole slice of two or three dims runs as an all-reduce of the full size,
  but not on tpu7x. An all-gather over a whole slice of three rings does too, but not on v5p: it
  sums buffers that are filled with zeros but for each device's own part.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshdsl.machine import Chip, Network
from meshdsl.record.collective import Collective

# Code that the compiler does not fuse takes twice as long. Measured with its cycles for v5p:
# 941,376 for a negation of 8192 x 8192 bf16 elements, 468,704 for a fused chain on them.
_UNFUSED = 2

# For each chip: the operations that the device waits for, over an axis on one dim of the torus
# (False) and on several (True).
_SUMS = frozenset(
    (operation, several)
    for operation in ("psum", "pmax", "pmin", "psum_scatter", "all_to_all")
    for several in (False, True)
)
_GATHERS = frozenset({("all_gather", False), ("all_gather", True)})
_WAITS: dict[str, frozenset[tuple[str, bool]]] = {
    "v4": _SUMS | _GATHERS,
    "v5e": _SUMS,
    "v5p": frozenset({("all_to_all", False), ("all_to_all", True)}),
}
# The device waits for a sum of fewer bytes: in programs that libtpu 0.0.42.1 compiled for v5p, no
# all-reduce of up to 33,280 bytes ran beside other work, and all from 65,536 bytes on did.
_SMALL_SUM = 64 * 1024
_SUM = ("psum", "pmax", "pmin")
_SCATTERS = ("tpu7x",)  # chips that do not run a scatter over a whole slice as a sum
_GATHERS_ALL = ("v5p",)  # chips that do not run a gather over a whole slice as a sum


@dataclass(frozen=True)
class CollectiveTiming:
    """How a compiler runs a collective.

    Attributes:
      seconds: on its links.
      asynchronous: whether the device computes meanwhile.
      zero_filled: bytes of a buffer that is filled with zeros first.
    """

    seconds: float
    asynchronous: bool
    zero_filled: int = 0

    def filling_seconds(self, chip: Chip, width: int) -> float:
        """Seconds of filling the buffer with zeros; an element has `width` bytes."""
        in_memory = self.zero_filled / (chip.hbm_bandwidth * chip.hbm_efficiency)
        in_unit = self.zero_filled / width / chip.vector_rate if chip.vector_rate else 0.0
        return _UNFUSED * (in_memory + in_unit)


def collective_timing(collective: Collective, network: Network) -> CollectiveTiming:
    """How the compiler for the network's target runs one execution of `collective`."""
    chip, axes = network.target.chip, network.axes(collective.axes)
    dims = [part for level in axes.levels for part in level.parts]
    whole_slice = axes.size * network.target.slices == network.target.devices
    operation, zero_filled = collective.operation, 0
    if whole_slice and len(dims) > 1 and operation == "psum_scatter" and chip.name not in _SCATTERS:
        operation = "psum"
    elif (
        (whole_slice and len(dims) == 3 and axes.wraps)
        and operation == "all_gather"
        and chip.name not in _GATHERS_ALL
    ):
        operation, zero_filled = "psum", collective.bytes
    waits = (operation, len(dims) > 1) in _WAITS.get(chip.name, ())
    waits |= chip.kind == "tpu" and operation in _SUM and collective.bytes < _SMALL_SUM
    seconds = network.seconds(operation, collective.axes, collective.bytes)
    return CollectiveTiming(seconds, not waits, zero_filled)
