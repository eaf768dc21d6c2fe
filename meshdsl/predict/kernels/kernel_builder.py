"""Makes kernels of a block of equations, by the rules that XLA's fusion follows on a TPU.

Element-wise code (broadcasts, iotas, conversions and slices included) takes no memory of its own
where that costs nothing: the kernels that use it compute it. It is written to memory where it must
be (for a collective, a loop, a result), or where computing it in several places would read more
than it holds.

What is written joins the kernel that makes its newest operand, as long as both go over the same
elements: the activation after a product belongs to the product's kernel, and an optimizer's update
of a parameter and of its moments is one kernel. A reduction ends a kernel.

What loops are given and do not change is passed in as it is; broadcasts and masks are computed
inside. What a collective or a fused kernel gives is copied into the stack that a loop writes, and a
slice of a stack is copied for a fused kernel: these cannot be joined with other code. A stack that
a loop only uses in a narrower type is converted once, before the loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from fractions import Fraction

from meshdsl.predict.kernels.before_fusion import (
    convert_stacks,
    needed,
    scalars_early,
    updated_in_place,
)
from meshdsl.predict.kernels.equation_work import collectives, dots, other_flops
from meshdsl.predict.kernels.equations import BARRIER, Block, Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer, Kernel, Loop
from meshdsl.predict.kernels.primitives import (
    ELEMENTWISE,
    FUSED,
    IN_PLACE,
    PARTIAL_READS,
    PRODUCTS,
    REDUCTIONS,
)
from meshdsl.predict.kernels.reordered import REORDER, is_batch, reorders
from meshdsl.predict.kernels.value_table import ValueTable
from meshdsl.predict.kernels.written_values import written_values
from meshdsl.program.branch_shares import shares_in
from meshdsl.program.collective import phase_in_step
from meshdsl.program.recorder import tag_in


class KernelBuilder:
    """Makes the kernels of one block. What the block is given stands in `table` already.

    Attributes:
      table: of the values of the whole program.
      flops: of the whole program, `{(tag or None, phase): FLOPs}`; those of the block are added.
      times: how often the block runs in one call of the program.
      share: of these times, in which the branches are taken that the block stands in.
      kernels: of the block, in program order.
    """

    def __init__(
        self,
        block: Block,
        table: ValueTable,
        flops: dict[tuple[str | None, str], int | Fraction],
        times: int,
        share: Fraction = Fraction(1),
    ):
        self.table, self.flops, self.times, self.share = table, flops, times, share
        self.kernels: list[Kernel] = []
        # Kernels are known by their position in `kernels`, and "elements" is how many a kernel goes
        # over. Of written values: the kernel that makes them, its elements if more code can join
        # it, and the kernels that read them.
        self._made_by: dict[Value, int] = {}
        self._joinable: dict[Value, int] = {}
        self._readers: dict[Value, list[int]] = defaultdict(list)
        # Of kernels: the elements of element-wise ones, and the equations that they compute.
        self._elements: dict[int, int] = {}
        self._computes: dict[int, set[Equation]] = defaultdict(set)
        self._batches: set[int] = set()  # kernels of batches of products
        equations = needed(updated_in_place(block.equations), block.outputs)
        equations = scalars_early(convert_stacks(equations))
        self._written = written_values(equations, block.outputs, table.sources)
        self._transposed = {original(v) for e in equations for v in e.operands if v.transposed}
        for equation in equations:
            self._count_flops(equation)
            self._add(equation)
        for index, kernel in enumerate(self.kernels):
            if kernel.loop is None and not kernel.branches:
                kernel.traffic = self._traffic(index)

    def _count_flops(self, equation: Equation) -> None:
        flops = sum(dot.flops for dot in dots(equation)) or other_flops(equation)
        if flops:
            key = tag_in(equation.scope), phase_in_step(equation.scope)
            self.flops[key] += self.times * self.share * flops

    def _add(self, equation: Equation) -> None:
        """Adds an equation to a kernel, begins one with it, or leaves it to those that use it."""
        if equation.blocks:
            self._add_with_blocks(equation)
        elif equation.primitive == BARRIER:
            self._add_barrier(equation)
        elif equation.primitive in ELEMENTWISE:
            sources = self.table.sources_of(equation.operands)
            for value in equation.outputs:
                if value in self._written:
                    self._join(equation, sources, value, value.size)
                    self._note_in_place(equation, value)
                else:
                    self.table.leave_unwritten(value, equation)
        elif equation.primitive in REDUCTIONS:
            sources = self.table.sources_of(equation.operands)
            elements = max((v.size for v in equation.operands), default=1)
            for value in equation.outputs:
                self._join(equation, sources, value, elements)
        else:
            self._add_alone(equation)

    def _add_barrier(self, equation: Equation) -> None:
        """What is written is the same behind a barrier.

        A slice of a stack, and what a loop computes for itself, is written for the barrier.
        """
        (before,), (behind,) = equation.operands, equation.outputs
        if not self.table.is_written(before):
            self._join(equation, self.table.sources(before), behind, behind.size)
        elif (stack := self.table.buffer(before, equation.scope).within) is None:
            self.table.share(behind, before)
            self._made_by[behind] = self._made_by.get(original(before), -1)
        else:
            self.table.buffer(behind, stack.scope)
            self._extend(self._new(equation), equation, self.table.sources(before), [behind])

    def _join(
        self, equation: Equation, sources: frozenset[Value], value: Value, elements: int
    ) -> None:
        """Adds element-wise code or a reduction to a kernel that goes over as many elements.

        That is the kernel that makes its newest operand, or else one behind it that reads an
        operand. If neither goes over as many elements, a kernel is begun.
        """
        latest = max((self._made_by.get(v, -1) for v in sources), default=-1)
        newest = [v for v in sources if self._made_by.get(v, -1) == latest]
        if latest >= 0 and all(self._joinable.get(v) == elements for v in newest):
            index = latest
        else:
            beside = (
                i
                for v in sources
                if v.size == elements
                for i in self._readers[v]
                if i > latest and self._elements.get(i) == elements
            )
            index = min(beside, default=None)
        if index is None:
            index = self._new(equation)
            self._elements[index] = elements
        self._extend(index, equation, sources, [value])
        if equation.primitive in ELEMENTWISE:
            self._joinable[value] = elements

    def _add_alone(self, equation: Equation) -> None:
        """Begins a kernel: for a product, a collective, or whatever else is not element-wise."""
        moved = collectives(equation, self.table.axis_sizes, self.times)
        if len(moved) > 1:
            for collective, operand, result in zip(
                moved, equation.inputs, equation.outputs, strict=True
            ):
                index = self._new(equation)
                kernel = self.kernels[index]
                kernel.collective, kernel.scope = collective, collective.scope
                sources = self.table.sources(operand) if operand else frozenset()
                self._extend(index, equation, sources, [result])
            return
        copies = self._copied_slices(equation) if equation.primitive == FUSED else {}
        copies |= self._reordered(equation)
        index = self._new(equation)
        kernel = self.kernels[index]
        kernel.dots = dots(equation)
        if moved:
            kernel.collective, kernel.scope = moved[0], moved[0].scope
            if reorders(equation) == "all_gather":
                self.table.reordered.update(equation.outputs)
        self._extend(index, equation, self.table.sources_of(equation.operands), equation.outputs)
        kernel.reads = [copies.get(id(buffer), buffer) for buffer in kernel.reads]
        if equation.primitive in PRODUCTS:
            self._joinable[equation.outputs[0]] = equation.outputs[0].size
        if is_batch(equation):
            self._batches.add(index)
        if equation.primitive in IN_PLACE and equation.inputs[0] is not None:
            operand = self.table.buffer(equation.inputs[0], equation.scope)
            kernel.in_place.append(
                (operand, self.table.buffer(equation.outputs[0], equation.scope))
            )

    def _copied_slices(self, equation: Equation) -> dict[int, Buffer]:
        """Copies of what an equation reads of stacks, by the id of the slice's buffer."""
        copies: dict[int, Buffer] = {}
        for value in _by_number(self.table.sources_of(equation.operands)):
            slice_ = self.table.buffer(value, equation.scope)
            if slice_.within is not None:
                copy = Buffer(slice_.shape, slice_.dtype, slice_.bytes, scope=equation.scope)
                self.kernels.append(_copy(slice_, copy, equation.scope))
                copies[id(slice_)] = copy
        return copies

    def _reordered(self, equation: Equation) -> dict[int, Buffer]:
        """Copies, in the order that an equation needs, of what stands in another; by its id."""
        sources: Iterable[Value] = ()
        if is_batch(equation):
            sources = self.table.reordered & self.table.sources_of(equation.operands)
        elif reorders(equation) == "reduce_scatter":
            made = self.table.sources_of(equation.operands)
            sources = [v for v in made if self._made_by.get(v) in self._batches]
        copies: dict[int, Buffer] = {}
        for value in _by_number(sources):
            buffer = self.table.buffer(value, equation.scope)
            copy = Buffer(buffer.shape, buffer.dtype, buffer.bytes, scope=equation.scope)
            self.kernels.append(_copy(buffer, copy, equation.scope, REORDER))
            copies[id(buffer)] = copy
        return copies

    def _note_in_place(self, equation: Equation, value: Value) -> None:
        """Notes which operands a result may be written over.

        A result that is used with its dims transposed is laid out for that use, and its elements
        stand where no operand's do.
        """
        if value in self._transposed:
            return
        index, result = self._made_by[value], self.table.buffer(value, equation.scope)
        for source in _by_number(self.table.aligned(equation)):
            if self._made_by.get(source) != index:
                operand = self.table.buffer(source, equation.scope)
                self.kernels[index].in_place.append((operand, result))

    def _new(self, equation: Equation) -> int:
        """Begins a kernel; returns its position."""
        self.kernels.append(Kernel(equation.primitive, equation.scope))
        return len(self.kernels) - 1

    def _extend(
        self, index: int, equation: Equation, sources: Iterable[Value], outputs: Iterable[Value]
    ) -> None:
        """Lets the kernel at `index` compute `outputs` of an equation from `sources`."""
        kernel = self.kernels[index]
        for value in _by_number(sources):
            if self._made_by.get(value) != index:
                self._readers[value].append(index)
                _read(kernel, self.table.buffer(value, equation.scope))
        for value in outputs:
            self._made_by[value] = index
            kernel.writes.append(self.table.buffer(value, equation.scope))
        added = self.table.chain(equation) - self._computes[index]
        kernel.other_flops += sum(other_flops(e) for e in added)
        self._computes[index] |= added

    def _traffic(self, index: int) -> int:
        """The bytes that the kernel at `index` reads and writes.

        What it only reads a part of counts for that part, and what it updates in place for the
        update.
        """
        kernel, wanted = self.kernels[index], defaultdict(int)
        written = sum(b.bytes for b in kernel.writes)
        for equation in self._computes[index]:
            part = None
            if equation.primitive in PARTIAL_READS:
                part = sum(v.bytes for v in equation.outputs)
            if equation.primitive in IN_PLACE:
                # A scatter may add to what stands there, and has to read it.
                overwrites = equation.primitive == "dynamic_update_slice"
                update = equation.inputs[1 if overwrites else 2]
                written = update.bytes if update else 0
                part = 0 if overwrites else written
            for i, value in enumerate(equation.inputs):
                if value is not None and self.table.is_written(value):
                    buffer = self.table.buffer(value, equation.scope)
                    wanted[id(buffer)] += part if part is not None and i == 0 else buffer.bytes
        return written + sum(min(b.bytes, wanted.get(id(b), b.bytes)) for b in kernel.reads)

    # -- loops and branches ------------------------------------------------------------------------

    def _add_with_blocks(self, equation: Equation) -> None:
        """Begins the kernel of a loop or a `cond`, and makes those of its blocks."""
        index = self._new(equation)
        kernel = self.kernels[index]
        for value in equation.operands:
            for source in _by_number(self.table.sources(value)):
                _read(kernel, self.table.buffer(source, equation.scope))
        for value in equation.outputs:
            self._made_by[value] = index
            kernel.writes.append(self.table.buffer(value, equation.scope))
        if equation.primitive == "cond":
            kernel.shares = shares_in(equation.scope, len(equation.blocks))
            kernel.branches = tuple(
                tuple(self._branch(block, equation, share))
                for block, share in zip(equation.blocks, kernel.shares, strict=True)
            )
        else:
            kernel.loop = self._loop(equation)
            self._note_carried(kernel, equation)

    def _note_carried(self, kernel: Kernel, equation: Equation) -> None:
        """Notes that what a loop carries stays where the first turn finds it."""
        carried = equation.inputs[equation.body_start + equation.constants :]
        results = equation.outputs[: equation.carried]
        for first, result in zip(carried, results, strict=False):
            if first is not None:
                operand = self.table.buffer(first, equation.scope)
                kernel.in_place.append((operand, self.table.buffer(result, equation.scope)))

    def _branch(self, block: Block, equation: Equation, share: Fraction) -> list[Kernel]:
        self._give(block.inputs, equation.inputs[equation.body_start :], equation.scope)
        results = [self.table.buffer(v, equation.scope) for v in equation.outputs]
        copied = self._place(block, results, range(len(results)))
        share *= self.share
        kernels = KernelBuilder(block, self.table, self.flops, self.times, share).kernels
        return kernels + [self._copy(value, to, equation.scope) for value, to in copied]

    def _loop(self, equation: Equation) -> Loop:
        block, scope = equation.blocks[0], equation.scope
        constants, carried = equation.constants, equation.carried
        stacked = constants + carried
        # Nobody knows how often a `while` runs.
        length = equation.eqn.params["length"] if equation.primitive == "scan" else 1
        given = equation.inputs[equation.body_start :]
        self._give(block.inputs[:constants], given[:constants], scope)
        starts = [self.table.buffer(v, scope) for v in block.inputs[constants:stacked]]
        stacks: set[int] = set()
        for inner, stack in zip(block.inputs[stacked:], given[stacked:], strict=True):
            within = None if stack is None else self.table.buffer(stack, scope)
            self.table.buffer(inner, scope, within)
            if stack is not None and original(stack) in self.table.reordered:
                self.table.reordered.add(original(inner))
            stacks |= set() if within is None else {id(within)}
        results = [self.table.buffer(v, scope) for v in equation.outputs]
        for result, value in zip(results, block.outputs, strict=True):
            result.scope = _scope_in_body(block, value, constants, scope)
        copied = self._place(block, results, range(carried, len(results)), within=True)
        times = self.times * length
        kernels = KernelBuilder(block, self.table, self.flops, times, self.share).kernels
        for result, value in zip(equation.outputs[carried:], block.outputs[carried:], strict=True):
            if value is not None and original(value) in self.table.reordered:
                self.table.reordered.add(original(result))
        copies = (self._copy(value, to, scope) for value, to in copied)
        kernels += [_from_stack_to_stack(copy, stacks, length) for copy in copies]
        for condition in equation.blocks[1:]:
            values = [*equation.inputs[: equation.body_start], *block.inputs[constants:]]
            self._give(condition.inputs, values, scope)
            built = KernelBuilder(condition, self.table, self.flops, times, self.share)
            kernels = built.kernels + kernels
        ends = [None if v is None else self.table.buffer(v, scope) for v in block.outputs[:carried]]
        carries = [(a, b) for a, b in zip(starts, ends, strict=True) if b is not None]
        return Loop(length, kernels, carries)

    def _give(self, inner: list[Value], outer: list[Value | None], scope: str) -> None:
        """Lets inputs of a block be the values outside that it is given as they are."""
        for value, given in zip(inner, outer, strict=True):
            if given is None:
                self.table.buffer(value, scope)
            else:
                self.table.share(value, given)

    def _place(
        self, block: Block, buffers: list[Buffer], which: Collection[int], within: bool = False
    ) -> list[tuple[Value, Buffer]]:
        """Lets outputs of a block be written where the results of its equation stand.

        Args:
          buffers: of the results of the equation.
          which: positions of the outputs that are placed.
          within: whether a buffer is a stack, of which the block writes a slice.

        Returns:
          Outputs that have to be copied, because they stand somewhere else already (an input of the
          block, say) or come from what cannot write a slice of a stack, with the buffers to copy
          them to.
        """
        copied = []
        placed = {original(v) for v in block.inputs}
        placed |= {
            original(v) for i, v in enumerate(block.outputs) if v is not None and i not in which
        }
        for i in which:
            output = block.outputs[i]
            if output is None:
                continue
            value, buffer = original(output), buffers[i]
            if within:
                buffer = Buffer(value.shape, value.dtype, value.bytes, within=buffer)
            if value in placed or (within and not _joins(value)):
                copied.append((output, buffer))
            else:
                placed.add(value)
                self.table.set_buffer(value, buffer)
        return copied

    def _copy(self, value: Value, to: Buffer, scope: str) -> Kernel:
        reads = [self.table.buffer(v, scope) for v in self.table.sources(value)]
        return Kernel("copy", scope, reads, [to], traffic=sum(b.bytes for b in reads) + to.bytes)


def _read(kernel: Kernel, buffer: Buffer) -> None:
    if all(buffer is not b for b in kernel.reads):
        kernel.reads.append(buffer)


def _copy(buffer: Buffer, to: Buffer, scope: str, primitive: str = "copy") -> Kernel:
    return Kernel(primitive, scope, [buffer], [to], traffic=buffer.bytes + to.bytes)


def _from_stack_to_stack(copy: Kernel, stacks: set[int], length: int) -> Kernel:
    """A copy in the body of a loop that runs `length` times, as XLA makes it.

    Where it copies a slice of a stack that the loop is given, as it is, to a stack that the loop
    makes, XLA takes the one for the other, and copies all of it in each turn.

    Args:
      stacks: ids of the buffers that the loop is given to slice.
    """
    if [id(b.within) for b in copy.reads if id(b.within) in stacks] and copy.writes[0].within:
        copy.traffic *= length
    return copy


def _joins(value: Value) -> bool:
    """Whether more code can join the kernel that makes a value: to write it into a stack, say."""
    made = value.equation
    return made is None or made.primitive in ELEMENTWISE | REDUCTIONS | PRODUCTS


def _by_number(values: Iterable[Value]) -> list[Value]:
    """Values in the order in which they were made, so that kernels do not depend on hashes."""
    return sorted(values, key=lambda v: v.number)


def _scope_in_body(block: Block, value: Value | None, constants: int, otherwise: str) -> str:
    """The scope of the equation in a loop's body that makes an output of it.

    For an output that is an input carried on as it is, that of the equation that makes the next
    turn's.
    """
    if value is not None and original(value) in block.inputs[constants:]:
        i = block.inputs.index(original(value)) - constants
        value = block.outputs[i] if i < len(block.outputs) else None
    equation = original(value).equation if value is not None else None
    return equation.scope if equation else otherwise
