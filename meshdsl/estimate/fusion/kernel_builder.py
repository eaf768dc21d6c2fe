"""From a jaxpr to kernels, by the rules that XLA's fusion follows on a TPU.

Element-wise code (and broadcasts, iotas, conversions, slices) takes no memory of its own where that costs nothing: it is computed by the kernels that
use it. It is written to memory where it must be (for a collective, a loop, a result) or where computing it in several places would read more than it
holds. What is written joins the kernel that makes its newest operand, as long as it goes over the same elements: the activation after a product
belongs to the product's kernel, and an optimizer's update of a parameter and of its moments is one kernel. A reduction ends a kernel.

What loops are given and don't change is passed in as it is; broadcasts and masks are computed inside. A stack that a loop only uses in a narrower type is
converted once, before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from meshdsl.estimate.fusion.before_fusion import narrowed, needed, small_first
from meshdsl.estimate.fusion.equation_work import collectives, dots, other_flops
from meshdsl.estimate.fusion.flat_jaxpr import BARRIER, Block, Node, Value, flatten, original
from meshdsl.estimate.fusion.value_table import Made
from meshdsl.estimate.fusion.written_values import (
    DOTS,
    ELEMENTWISE,
    IN_PLACE,
    PARTS,
    REDUCTIONS,
    written,
)
from meshdsl.estimate.kernels import Buffer, Graph, Kernel, Loop
from meshdsl.record.collective import phase_in_step
from meshdsl.record.program import Program
from meshdsl.record.recorder import tag_in


def build(program: Program) -> Graph:
    """The kernels of one call of `program`."""
    block = flatten(program)
    made = Made(program.axis_sizes)
    arguments = [made.buffer(value, "") for value in block.inputs]
    for buffer, value in zip(arguments, block.inputs, strict=True):
        buffer.name = value.name
    kernels = _Fusion(block, made, 1).kernels
    results = [made.buffer(v, "") for v in block.outputs if v is not None]
    _drop_unread(kernels, {id(b) for b in results} | _read(kernels))
    return Graph(
        kernels,
        arguments,
        results,
        program.donated,
        _aliases(arguments, results, program.donated),
        program.axis_sizes,
        dict(made.flops),
    )


def _read(kernels: Iterable[Kernel]) -> set[int]:
    """The buffers that something reads or that a loop carries."""
    found: set[int] = set()
    for kernel in kernels:
        found.update(id(b) for b in kernel.reads)
        for branch in kernel.branches:
            found |= _read(branch)
        if kernel.loop is not None:
            found |= _read(kernel.loop.kernels) | {id(end) for _, end in kernel.loop.carries}
    return found


def _drop_unread(kernels: Iterable[Kernel], read: set[int]) -> None:
    """What only its own kernel uses, such as a product whose activation alone is needed, is not written."""
    for kernel in kernels:
        if kernel.loop is not None:
            _drop_unread(kernel.loop.kernels, read)
            continue
        for branch in kernel.branches:
            _drop_unread(branch, read | {id(b) for b in kernel.writes})
        unread = [b for b in kernel.writes if b.within is None and id(b) not in read]
        if unread and len(unread) < len(kernel.writes):
            kernel.writes = [b for b in kernel.writes if all(b is not u for u in unread)]
            kernel.traffic -= sum(b.bytes for b in unread)


def _aliases(
    arguments: list[Buffer], results: list[Buffer], donated: Iterable[bool]
) -> dict[int, int]:
    """Each result takes the memory of the first donated argument of its shape and type that is still free, as JAX pairs them."""
    free: dict[tuple, list[int]] = defaultdict(list)
    for i, (buffer, given) in enumerate(zip(arguments, donated, strict=True)):
        if given:
            free[buffer.shape, buffer.dtype].append(i)
    found = {}
    for i, buffer in enumerate(results):
        if waiting := free[buffer.shape, buffer.dtype]:
            found[i] = waiting.pop(0)
    return found


def _made_in(block: Block, value: Value | None, constants: int, otherwise: str) -> str:
    """The scope of the equation that makes a result of a loop; for what is carried from turn to turn, of the one that makes the next."""
    if value is not None and original(value) in block.inputs[constants:]:
        i = block.inputs.index(original(value)) - constants
        value = block.outputs[i] if i < len(block.outputs) else None
    node = value and original(value).node
    return node.scope if node else otherwise


class _Fusion:
    """The kernels of one block that runs `times` in one call. Its inputs are known to `made`."""

    def __init__(self, block: Block, made: Made, times: int):
        self.made, self.times = made, times
        self.kernels: list[Kernel] = []
        self._at: dict[Value, int] = {}  # a written value: the kernel that makes it
        self._joined: dict[
            Value, int
        ] = {}  # of those that more code can join: the elements that their kernel goes over
        self._over: dict[int, int] = {}  # an element-wise kernel: the elements that it goes over
        self._done: dict[int, set[Node]] = defaultdict(set)  # by a kernel
        self._readers: dict[Value, list[int]] = defaultdict(list)
        nodes = small_first(narrowed(needed(block.nodes, block.outputs)))
        self._written = written(nodes, block.outputs, made.from_)
        self._turned = {
            original(v) for node in nodes for v in node.inputs if v is not None and v.turned
        }
        for node in nodes:
            self._count(node)
            self._emit(node)
        for index, kernel in enumerate(self.kernels):
            if kernel.loop is None and not kernel.branches:
                kernel.traffic = self._traffic(index)

    def _count(self, node: Node) -> None:
        flops = sum(dot.flops for dot in dots(node)) or other_flops(node)
        if flops:
            self.made.flops[tag_in(node.scope), phase_in_step(node.scope)] += self.times * flops

    def _emit(self, node: Node) -> None:
        if node.blocks:
            self._blocks(node)
            return
        if node.primitive == BARRIER:
            self._barrier(node)
            return
        found = frozenset().union(*(self.made.from_(v) for v in node.inputs if v is not None))
        if node.primitive in ELEMENTWISE:
            for value in node.outputs:
                if value in self._written:
                    self._join(node, found, value, value.size)
                    self._step(node, value)
                else:
                    self.made.sources[value], self.made.steps[value], self.made.chain[value] = (
                        found,
                        self.made.in_step(node),
                        self.made.behind(node),
                    )
        elif node.primitive in REDUCTIONS:
            for value in node.outputs:
                self._join(
                    node,
                    found,
                    value,
                    max((v.size for v in node.inputs if v is not None), default=1),
                )
        else:
            self._alone(node, found)

    def _barrier(self, node: Node) -> None:
        """What is written is the same behind a barrier; a slice of a stack, and what a loop computes for itself, is written for it."""
        (before,), (behind,) = node.inputs, node.outputs
        if original(before) in self.made.sources:
            self._join(node, self.made.from_(before), behind, behind.size)
        elif (stack := self.made.buffer(before, node.scope).within) is None:
            self.made.share(behind, before)
            self._at[behind] = self._at.get(original(before), -1)
        else:
            self.made.buffer(behind, stack.scope)
            self._extend(self._new(node), node, self.made.from_(before), [behind])

    def _join(self, node: Node, found: frozenset[Value], value: Value, over: int) -> None:
        """Adds element-wise code or a reduction to the kernel that makes its newest operand, or to one beside it that reads an operand; else begins a kernel."""
        latest = max((self._at.get(v, -1) for v in found), default=-1)
        newest = [v for v in found if self._at.get(v, -1) == latest]
        if latest >= 0 and all(self._joined.get(v) == over for v in newest):
            index = latest
        else:
            beside = (
                i
                for v in found
                if v.size == over
                for i in self._readers[v]
                if i > latest and self._over.get(i) == over
            )
            index = min(beside, default=None)
        if index is None:
            index = self._new(node)
            self._over[index] = over
        self._extend(index, node, found, [value])
        if node.primitive in ELEMENTWISE:
            self._joined[value] = over

    def _alone(self, node: Node, found: frozenset[Value]) -> None:
        """A kernel of its own: a product, a collective, or whatever else is not element-wise."""
        moved = collectives(node, self.made.axis_sizes, self.times)
        if len(moved) > 1:
            for collective, operand, result in zip(moved, node.inputs, node.outputs, strict=True):
                index = self._new(node)
                self.kernels[index].collective, self.kernels[index].scope = (
                    collective,
                    collective.scope,
                )
                self._extend(index, node, self.made.from_(operand) if operand else (), [result])
            return
        index = self._new(node)
        kernel = self.kernels[index]
        kernel.dots = dots(node)
        if moved:
            kernel.collective, kernel.scope = moved[0], moved[0].scope
        self._extend(index, node, found, node.outputs)
        if node.primitive in DOTS:
            self._joined[node.outputs[0]] = node.outputs[0].size
        if node.primitive in IN_PLACE and node.inputs[0] is not None:
            kernel.steps.append(
                (
                    self.made.buffer(node.inputs[0], node.scope),
                    self.made.buffer(node.outputs[0], node.scope),
                )
            )

    def _step(self, node: Node, value: Value) -> None:
        """Notes which operands a result may be written over. One that is used with its dims turned is laid out for that use, and goes over none in step."""
        if value in self._turned:
            return
        kernel, result = self.kernels[self._at[value]], self.made.buffer(value, node.scope)
        for source in sorted(self.made.in_step(node), key=lambda v: v.number):
            if self._at.get(source) != self._at[value]:
                kernel.steps.append((self.made.buffer(source, node.scope), result))

    def _new(self, node: Node) -> int:
        self.kernels.append(Kernel(node.primitive, node.scope))
        return len(self.kernels) - 1

    def _extend(
        self, index: int, node: Node, found: Iterable[Value], outputs: Iterable[Value]
    ) -> None:
        kernel = self.kernels[index]
        for value in sorted(found, key=lambda v: v.number):
            if self._at.get(value) != index:
                self._readers[value].append(index)
                self._read(kernel, self.made.buffer(value, node.scope))
        for value in outputs:
            self._at[value] = index
            buffer = self.made.buffer(value, node.scope)
            kernel.writes.append(buffer)
        done = self._done[index]
        kernel.other_flops += sum(other_flops(n) for n in self.made.behind(node) - done)
        done |= self.made.behind(node)

    @staticmethod
    def _read(kernel: Kernel, buffer: Buffer) -> None:
        if all(buffer is not b for b in kernel.reads):
            kernel.reads.append(buffer)

    def _traffic(self, index: int) -> int:
        """Bytes that a kernel reads and writes: of what it only takes a part of, that part; of what it updates in place, the update."""
        kernel, wanted = self.kernels[index], defaultdict(int)
        written = sum(b.bytes for b in kernel.writes)
        for node in self._done[index]:
            part = sum(v.bytes for v in node.outputs) if node.primitive in PARTS else None
            if node.primitive in IN_PLACE:
                over = (
                    node.primitive == "dynamic_update_slice"
                )  # a scatter may add to what stands there, and has to read it
                update = node.inputs[1 if over else 2]
                written = update.bytes if update else 0
                part = 0 if over else written
            for i, value in enumerate(node.inputs):
                if value is not None and original(value) not in self.made.sources:
                    buffer = self.made.buffer(value, node.scope)
                    wanted[id(buffer)] += part if part is not None and i == 0 else buffer.bytes
        return written + sum(min(b.bytes, wanted.get(id(b), b.bytes)) for b in kernel.reads)

    # -- loops and branches ------------------------------------------------------------------------------------------

    def _blocks(self, node: Node) -> None:
        index = self._new(node)
        kernel = self.kernels[index]
        for value in node.inputs:
            if value is not None:
                for source in sorted(self.made.from_(value), key=lambda v: v.number):
                    self._read(kernel, self.made.buffer(source, node.scope))
        for value in node.outputs:
            self._at[value] = index
            kernel.writes.append(self.made.buffer(value, node.scope))
        if node.primitive == "cond":
            kernel.branches = tuple(tuple(self._branch(block, node)) for block in node.blocks)
        else:
            kernel.loop = self._loop(node)

    def _branch(self, block: Block, node: Node) -> list[Kernel]:
        self._give(block.inputs, node.inputs[node.given :], node.scope)
        late = self._place(
            block, [self.made.buffer(v, node.scope) for v in node.outputs], range(len(node.outputs))
        )
        return _Fusion(block, self.made, self.times).kernels + [
            self._copy(block.outputs[i], to, node) for i, to in late
        ]

    def _loop(self, node: Node) -> Loop:
        block, constants, carried = node.blocks[0], node.constants, node.carried
        length = (
            node.eqn.params["length"] if node.primitive == "scan" else 1
        )  # nobody knows how often a `while` runs
        outer = node.inputs[node.given :]
        self._give(block.inputs[:constants], outer[:constants], node.scope)
        starts = [
            self.made.buffer(v, node.scope) for v in block.inputs[constants : constants + carried]
        ]
        for inner, stack in zip(
            block.inputs[constants + carried :], outer[constants + carried :], strict=True
        ):
            self.made.buffer(
                inner,
                node.scope,
                within=None if stack is None else self.made.buffer(stack, node.scope),
            )
        stacks = [self.made.buffer(v, node.scope) for v in node.outputs]
        for stack, value in zip(stacks, block.outputs, strict=True):
            stack.scope = _made_in(block, value, constants, node.scope)
        late = self._place(block, stacks, range(carried, len(stacks)), within=True)
        kernels = _Fusion(block, self.made, self.times * length).kernels
        kernels += [self._copy(block.outputs[i], to, node) for i, to in late]
        for condition in node.blocks[1:]:
            self._give(
                condition.inputs,
                [*node.inputs[: node.given], *block.inputs[constants:]],
                node.scope,
            )
            kernels = _Fusion(condition, self.made, self.times * length).kernels + kernels
        ends = [
            None if v is None else self.made.buffer(v, node.scope) for v in block.outputs[:carried]
        ]
        return Loop(
            length, kernels, [(a, b) for a, b in zip(starts, ends, strict=True) if b is not None]
        )

    def _give(self, inner: list[Value], outer: list[Value | None], scope: str) -> None:
        """What a block uses as it is."""
        for value, given in zip(inner, outer, strict=True):
            if given is None:
                self.made.buffer(value, scope)
            else:
                self.made.share(value, given)

    def _place(
        self, block: Block, buffers: list[Buffer], which: Iterable[int], within: bool = False
    ) -> list[tuple[int, Buffer]]:
        """Lets the block's results be made where they are wanted. Those that are no one's to place, such as an input, have to be copied; gives them."""
        late = []
        placed: set[Value] = {original(v) for v in block.inputs}
        placed |= {
            original(v) for i, v in enumerate(block.outputs) if v is not None and i not in which
        }
        for i in which:
            value = block.outputs[i] and original(block.outputs[i])
            part = (
                Buffer(value.shape, value.dtype, value.bytes, within=buffers[i])
                if within and value
                else buffers[i]
            )
            if value is None:
                continue
            if value in placed:
                late.append((i, part))
            else:
                placed.add(value)
                self.made.place(value, part)
        return late

    def _copy(self, value: Value, to: Buffer, node: Node) -> Kernel:
        reads = [self.made.buffer(v, node.scope) for v in self.made.from_(value)]
        return Kernel(
            "copy", node.scope, reads, [to], traffic=sum(b.bytes for b in reads) + to.bytes
        )
