"""Where the values of a program are while kernels are made: in a buffer, or computed where used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from meshdsl.predict.kernels.equations import Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer
from meshdsl.predict.kernels.primitives import REORDERS


@dataclass(frozen=True)
class Computed:
    """How a value is computed that is not written.

    Attributes:
      sources: the written values that it is computed from.
      aligned: those of them whose elements stand in the same order as the value's own.
      chain: the equations that compute it.
    """

    sources: frozenset[Value]
    aligned: frozenset[Value]
    chain: frozenset[Equation]


class ValueTable:
    """The buffers of written values, and for the others how they are computed from written ones.

    One table serves all blocks of a program.

    Attributes:
      axis_sizes: the mesh.
      products_alone: whether a product is a kernel of its own, as a GPU's library has it. A TPU's
        compiler lets element-wise code before and behind it join its kernel.
      tiled: whether arrays are kept in tiles, as on a TPU.
      reordered: values that a collective has left in another order, see `reordered`.
    """

    def __init__(self, axis_sizes: Mapping[str, int], kind: str):
        self.axis_sizes = axis_sizes
        self.products_alone, self.tiled = kind == "gpu", kind == "tpu"
        self.reordered: set[Value] = set()
        self._buffers: dict[Value, Buffer] = {}
        self._computed: dict[Value, Computed] = {}

    def buffer(self, value: Value, scope: str, within: Buffer | None = None) -> Buffer:
        """The buffer of a written value; the first call gives it its `scope` and `within`."""
        value = original(value)
        if value not in self._buffers:
            self._buffers[value] = Buffer(
                value.shape, value.dtype, value.bytes, scope=scope, within=within, host=value.host
            )
        return self._buffers[value]

    def set_buffer(self, value: Value, buffer: Buffer) -> None:
        """Lets `value` be written to `buffer`."""
        self._buffers[original(value)] = buffer

    def leave_unwritten(self, value: Value, equation: Equation) -> None:
        """Lets what uses `value`, a result of `equation`, compute it."""
        self._computed[value] = Computed(
            self.sources_of(equation.operands), self.aligned(equation), self.chain(equation)
        )

    def is_written(self, value: Value) -> bool:
        """Whether the value stands in memory, and is not computed where it is used."""
        return original(value) not in self._computed

    def share(self, value: Value, other: Value) -> None:
        """Lets `value` be the memory of `other`, or be computed as `other` is."""
        value, other = original(value), original(other)
        if other in self._computed:
            self._computed[value] = replace(self._computed[other], aligned=frozenset())
        else:
            self._buffers[value] = self.buffer(other, "")

    def sources_of(self, values: Iterable[Value]) -> frozenset[Value]:
        """The written values that any of `values` is computed from; itself if it is written."""
        found: set[Value] = set()
        for value in map(original, values):
            found |= self._computed[value].sources if value in self._computed else {value}
        return frozenset(found)

    def chain(self, equation: Equation) -> frozenset[Equation]:
        """An equation with those that compute its unwritten operands in the same kernel."""
        operands = (original(v) for v in equation.operands)
        chains = (self._computed[v].chain for v in operands if v in self._computed)
        return frozenset((equation,)).union(*chains)

    def aligned(self, equation: Equation) -> frozenset[Value]:
        """The written values that an element-wise equation goes over along with its result.

        Element by element in the same order, so that the result may be written over them.
        """
        found: set[Value] = set()
        for value in () if equation.primitive in REORDERS else equation.operands:
            if not value.transposed and value.size == equation.outputs[0].size:
                value = original(value)
                found |= self._computed[value].aligned if value in self._computed else {value}
        return frozenset(found)


def by_number(values: Iterable[Value]) -> list[Value]:
    """Values in the order of the program, so that the kernels do not depend on hashes."""
    return sorted(values, key=lambda v: v.number)
