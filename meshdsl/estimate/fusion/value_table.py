"""What is known of values while kernels are made of their equations: their buffers, or what they are computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from meshdsl.estimate.fusion.flat_jaxpr import Node, Value, original
from meshdsl.estimate.fusion.written_values import REORDERS
from meshdsl.estimate.kernels import Buffer


class Made:
    """What the fusions of all blocks share.

    Attributes:
      sources: of a value that is not written, the written ones that it is computed from.
      steps: those of them that are gone over in step with it.
      chain: the equations that compute it from them.
    """

    def __init__(self, axis_sizes: Mapping[str, int]):
        self.axis_sizes = axis_sizes
        self.sources: dict[Value, frozenset[Value]] = {}
        self.steps: dict[Value, frozenset[Value]] = {}
        self.chain: dict[Value, frozenset[Node]] = {}
        self.flops: dict[tuple[str | None, str], int] = defaultdict(int)
        self._buffers: dict[Value, Buffer] = {}

    def buffer(self, value: Value, scope: str, within: Buffer | None = None) -> Buffer:
        """The buffer of a value that is written; made where it has none yet."""
        value = original(value)
        if value not in self._buffers:
            self._buffers[value] = Buffer(
                value.shape, value.dtype, value.bytes, scope=scope, within=within, host=value.host
            )
        return self._buffers[value]

    def place(self, value: Value, buffer: Buffer) -> None:
        """`value` is made in `buffer`."""
        self._buffers[original(value)] = buffer

    def share(self, value: Value, other: Value) -> None:
        """`value` is the memory (or the computation) of `other`."""
        value, other = original(value), original(other)
        if other in self.sources:
            self.sources[value], self.steps[value], self.chain[value] = (
                self.sources[other],
                frozenset(),
                self.chain[other],
            )
        else:
            self._buffers[value] = self.buffer(other, "")

    def from_(self, value: Value) -> frozenset[Value]:
        """The written values that `value` is computed from, itself where it is written."""
        value = original(value)
        return self.sources[value] if value in self.sources else frozenset((value,))

    def behind(self, node: Node) -> frozenset[Node]:
        """An equation with those that compute, in the same kernel, what it uses."""
        return frozenset((node,)).union(
            *(self.chain.get(original(v), ()) for v in node.inputs if v is not None)
        )

    def in_step(self, node: Node) -> frozenset[Value]:
        """The written values that an element-wise equation goes over in step with its result."""
        found: frozenset[Value] = frozenset()
        for value in node.inputs:
            if (
                value is not None
                and not value.turned
                and value.size == node.outputs[0].size
                and node.primitive not in REORDERS
            ):
                value = original(value)
                found |= self.steps[value] if value in self.sources else frozenset((value,))
        return found
