"""How a compiler runs a collective: its time on the links, and what the device does meanwhile.

Which collectives a chip's device waits for, and which of them the compiler runs as sums, are keys
of the chip in `machine/hardware.toml`. docs/hardware.md says how they were found.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshdsl.machine import Chip, Network
from meshdsl.program.collective import Collective

# Code that the compiler does not fuse takes twice as long. Measured with its cycles for v5p:
# 941,376 for a negation of 8192 x 8192 bf16 elements, 468,704 for a fused chain on them.
_UNFUSED = 2

_SUM = ("psum", "pmax", "pmin")


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
    if whole_slice and operation in chip.as_sums:
        if operation == "psum_scatter" and len(dims) > 1:
            operation = "psum"
        elif operation == "all_gather" and len(dims) == 3 and axes.wraps:
            operation, zero_filled = "psum", collective.bytes
    waits = operation in chip.waits or (operation in _SUM and collective.bytes < chip.small_sum)
    seconds = network.seconds(operation, collective.axes, collective.bytes)
    return CollectiveTiming(seconds, not waits, zero_filled)
