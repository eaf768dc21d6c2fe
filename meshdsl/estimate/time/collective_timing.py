"""How a compiler runs a collective: how long its links take, whether the device computes meanwhile, and what it has to compute for it.

Seen in programs that libtpu 0.0.42 compiled with the default options of `plan.compiled`, one gather, scatter and sum over each axis of a mesh:

- v5p (4x4x4, 4x4x8, 2x2x2): everything runs on the sparse cores while the device computes, but for an all-gather over an axis on more than one dim of
  the torus: the device waits for it.
- v6e (4x4) and tpu7x (2x2x1): everything runs while the device computes.
- v5e (4x4): an all-gather does; the device waits for sums and scatters. v4 (2x2x2, 4x4x4): it waits for everything.
- A reduce-scatter over a whole slice of two or three dims runs as an all-reduce of the full size, but on tpu7x. Over a whole slice of three rings an
  all-gather does too: it sums buffers that are filled with zeros and hold each device's own part.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshdsl.machine import Network
from meshdsl.record.collective import Collective

# Code that the compiler doesn't fuse takes twice as long: measured with its cycles for v5p, 941,376 for a negation of 8192 x 8192 bf16 elements, 468,704 for
# a fused chain on them.
_UNFUSED = 2


# By chip: what the device waits for, over an axis on one dim of the torus (False) and on several (True).
_SUMS = frozenset(
    (operation, several)
    for operation in ("psum", "pmax", "pmin", "psum_scatter", "all_to_all")
    for several in (False, True)
)
_GATHERS = frozenset({("all_gather", False), ("all_gather", True)})
_WAITS: dict[str, frozenset[tuple[str, bool]]] = {
    "v4": _SUMS | _GATHERS,
    "v5e": _SUMS,
    "v5p": frozenset({("all_gather", True)}),
}
_SCATTERS = ("tpu7x",)  # Chips that scatter over whole slices as such.


@dataclass(frozen=True)
class Movement:
    """A collective as it runs.

    Attributes:
      seconds: on its links.
      asynchronous: the device computes meanwhile.
      filled: bytes that are written first.
    """

    seconds: float
    asynchronous: bool
    filled: int = 0

    def before(self, chip, width: int) -> float:
        """Seconds of computing before it can start; `width` is that of an element."""
        rate = chip.hbm_bandwidth * chip.hbm_efficiency
        return _UNFUSED * (
            self.filled / rate
            + (self.filled / width / chip.vector_rate if chip.vector_rate else 0.0)
        )


def movement(moves: Collective, network: Network) -> Movement:
    """How `moves` runs on the network's target."""
    chip, lay = network.target.chip, network.axes(moves.axes)
    dims = [part for level in lay.levels for part in level.parts]
    whole = lay.size * network.target.slices == network.target.devices
    operation, filled = moves.operation, 0
    if whole and len(dims) > 1 and operation == "psum_scatter" and chip.name not in _SCATTERS:
        operation = "psum"
    elif whole and len(dims) == 3 and operation == "all_gather" and lay.wraps:
        operation, filled = "psum", moves.bytes
    waits = (operation, len(dims) > 1) in _WAITS.get(chip.name, ())
    return Movement(network.seconds(operation, moves.axes, moves.bytes), not waits, filled)
