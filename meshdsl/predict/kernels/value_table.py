"""What is known about values while kernels are made: their buffers, or what computes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshdsl.predict.kernels.equations import Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer
from meshdsl.predict.kernels.primitives import REORDERS


class ValueTable:
    """The buffers of written values, and for the others how they are computed from written ones.

    One table serves all blocks of a program.

    Attributes:
      axis_sizes: the mesh.
      reordered: values that a collective has left in another order, see `reordered`.
    """

    def __init__(self, axis_sizes: Mapping[str, int]):
        self.axis_sizes = axis_sizes
        self.reordered: set[Value] = set()
        self._buffers: dict[Value, Buffer] = {}
        # Of values that are not written: the written ones that they are computed from; those of
        # them that are aligned with the value; the equations that compute it.
        self._sources: dict[Value, frozenset[Value]] = {}
        self._aligned: dict[Value, frozenset[Value]] = {}
        self._chains: dict[Value, frozenset[Equation]] = {}

    def buffer(self, value: Value, scope: str, within: Buffer | None = None) -> Buffer:
        """The buffer of a written value.

        Args:
          scope: of the buffer, if it is made by this call.
          within: likewise.
        """
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
        self._sources[value] = self.sources_of(equation.operands)
        self._aligned[value] = self.aligned(equation)
        self._chains[value] = self.chain(equation)

    def is_written(self, value: Value) -> bool:
        """Whether the value stands in memory, and is not computed where it is used."""
        return original(value) not in self._sources

    def share(self, value: Value, other: Value) -> None:
        """Lets `value` be the memory of `other`, or be computed as `other` is."""
        value, other = original(value), original(other)
        if other in self._sources:
            self._sources[value] = self._sources[other]
            self._aligned[value] = frozenset()
            self._chains[value] = self._chains[other]
        else:
            self._buffers[value] = self.buffer(other, "")

    def sources(self, value: Value) -> frozenset[Value]:
        """The written values that `value` is computed from; itself if it is written."""
        value = original(value)
        return self._sources[value] if value in self._sources else frozenset((value,))

    def sources_of(self, values: Iterable[Value]) -> frozenset[Value]:
        """The written values that any of `values` is computed from."""
        return frozenset().union(*(self.sources(v) for v in values))

    def chain(self, equation: Equation) -> frozenset[Equation]:
        """An equation with those that compute its unwritten operands in the same kernel."""
        return frozenset((equation,)).union(
            *(self._chains.get(original(v), ()) for v in equation.operands)
        )

    def aligned(self, equation: Equation) -> frozenset[Value]:
        """The written values that an element-wise equation goes over along with its result.

        Element by element in the same order, so that the result may be written over them.
        """
        found: frozenset[Value] = frozenset()
        if equation.primitive in REORDERS:
            return found
        for value in equation.operands:
            if not value.transposed and value.size == equation.outputs[0].size:
                value = original(value)
                found |= self._aligned[value] if value in self._sources else frozenset((value,))
        return found
