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
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from meshdsl.predict.kernels.before_fusion import (
    convert_stacks,
    needed,
    scalars_early,
    updated_in_place,
)
from meshdsl.predict.kernels.block_outputs import copy_kernel, place_outputs, scope_in_body
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
from meshdsl.program.collective import phase_in_step
from meshdsl.program.name_stacks import shares_in
from meshdsl.program.recorder import tag_in


@dataclass(eq=False)
class _Draft:
    """A kernel of a block that more equations may join.

    Attributes:
      place: its position among the kernels of the block.
      elements: how many it goes over, if it is element-wise code or a reduction.
      equations: what it computes.
      of_batch: whether it is a batch of products.
    """

    kernel: Kernel
    place: int
    elements: int | None = None
    equations: set[Equation] = field(default_factory=set)
    of_batch: bool = False


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
        # Of values that are written in this block: who makes them, and who reads them.
        self._makers: dict[Value, _Draft] = {}
        self._readers: dict[Value, list[_Draft]] = defaultdict(list)
        self._joinable: set[Value] = set()  # values whose kernel more code over them can join
        equations = needed(updated_in_place(block.equations), block.outputs)
        equations = scalars_early(convert_stacks(equations))
        outside = lambda value: table.sources_of([value])
        self._written = written_values(equations, block.outputs, outside)
        self._transposed = {original(v) for e in equations for v in e.operands if v.transposed}
        self._drafts: list[_Draft] = []
        for equation in equations:
            self._count_flops(equation)
            self._add(equation)
        for draft in self._drafts:
            draft.kernel.traffic = self._traffic(draft)

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
            for value in equation.outputs:
                if value in self._written:
                    self._join(equation, value, value.size)
                    self._joinable.add(value)
                    self._note_in_place(equation, value)
                else:
                    self.table.leave_unwritten(value, equation)
        elif equation.primitive in REDUCTIONS:
            elements = max((v.size for v in equation.operands), default=1)
            for value in equation.outputs:
                self._join(equation, value, elements)
        else:
            self._add_alone(equation)

    def _add_barrier(self, equation: Equation) -> None:
        """What is written is the same behind a barrier.

        A slice of a stack, and what a loop computes for itself, is written for the barrier.
        """
        (before,), (behind,) = equation.operands, equation.outputs
        if not self.table.is_written(before):
            self._join(equation, behind, behind.size)
        elif (stack := self.table.buffer(before, equation.scope).within) is None:
            self.table.share(behind, before)
            if (maker := self._makers.get(original(before))) is not None:
                self._makers[behind] = maker
        else:
            self.table.buffer(behind, stack.scope)
            self._extend(self._begin(equation), equation, equation.operands, [behind])

    def _join(self, equation: Equation, value: Value, elements: int) -> None:
        """Adds element-wise code or a reduction to a kernel that goes over as many elements.

        That is the kernel that makes its newest operand, or else one behind it that reads an
        operand. If neither goes over as many elements, a kernel is begun.
        """
        sources = self.table.sources_of(equation.operands)
        latest = max((self._made_at(v) for v in sources), default=-1)
        newest = [v for v in sources if self._made_at(v) == latest]
        if latest >= 0 and all(v in self._joinable and v.size == elements for v in newest):
            draft = self._makers[newest[0]]
        else:
            beside = [
                reader
                for v in sources
                if v.size == elements
                for reader in self._readers[v]
                if reader.place > latest and reader.elements == elements
            ]
            draft = min(beside, key=lambda reader: reader.place, default=None)
        if draft is None:
            draft = self._begin(equation)
            draft.elements = elements
        self._extend(draft, equation, equation.operands, [value])

    def _made_at(self, value: Value) -> int:
        """The place of the kernel that makes a value; -1 for one from outside of the block."""
        maker = self._makers.get(value)
        return -1 if maker is None else maker.place

    def _add_alone(self, equation: Equation) -> None:
        """Begins a kernel: for a product, a collective, or whatever else is not element-wise."""
        moved = collectives(equation, self.table.axis_sizes, self.times)
        if len(moved) > 1:
            for collective, operand, result in zip(
                moved, equation.inputs, equation.outputs, strict=True
            ):
                draft = self._begin(equation)
                draft.kernel.collective, draft.kernel.scope = collective, collective.scope
                self._extend(draft, equation, [operand] if operand else [], [result])
            return
        copies = self._copied(equation)
        draft = self._begin(equation)
        kernel = draft.kernel
        kernel.dots, draft.of_batch = dots(equation), is_batch(equation)
        if moved:
            kernel.collective, kernel.scope = moved[0], moved[0].scope
            if reorders(equation) == "all_gather":
                self.table.reordered.update(equation.outputs)
        self._extend(draft, equation, equation.operands, equation.outputs)
        kernel.reads = [copies.get(id(buffer), buffer) for buffer in kernel.reads]
        if equation.primitive in PRODUCTS:
            self._joinable.add(equation.outputs[0])
        if equation.primitive in IN_PLACE and (first := equation.inputs[0]) is not None:
            self._note_result_over(kernel, first, equation.outputs[0], equation.scope)

    def _copied(self, equation: Equation) -> dict[int, Buffer]:
        """Copies of what an equation cannot read where it stands, by the id of its buffer.

        These are slices of stacks, of what a fused kernel reads, and what stands in another order.
        """
        sources = self.table.sources_of(equation.operands)
        copies: dict[int, Buffer] = {}
        if equation.primitive == FUSED:
            for value in _by_number(sources):
                if self.table.buffer(value, equation.scope).within is not None:
                    self._copy_for(equation, value, copies)
        if is_batch(equation):
            sources &= self.table.reordered
        elif reorders(equation) == "reduce_scatter":
            made = ((v, self._makers.get(v)) for v in sources)
            sources = [v for v, maker in made if maker is not None and maker.of_batch]
        else:
            return copies
        for value in _by_number(sources):
            self._copy_for(equation, value, copies, REORDER)
        return copies

    def _copy_for(
        self, equation: Equation, value: Value, copies: dict[int, Buffer], how: str = "copy"
    ) -> None:
        buffer = self.table.buffer(value, equation.scope)
        copy = Buffer(buffer.shape, buffer.dtype, buffer.bytes, scope=equation.scope)
        self.kernels.append(copy_kernel([buffer], copy, equation.scope, how))
        copies[id(buffer)] = copy

    def _note_in_place(self, equation: Equation, value: Value) -> None:
        """Notes which operands a result may be written over.

        A result that is used with its dims transposed is laid out for that use, and its elements
        stand where no operand's do.
        """
        if value not in self._transposed:
            maker = self._makers[value]
            for source in _by_number(self.table.aligned(equation)):
                if self._makers.get(source) is not maker:
                    self._note_result_over(maker.kernel, source, value, equation.scope)

    def _note_result_over(self, kernel: Kernel, operand: Value, result: Value, scope: str) -> None:
        """Notes that a result may be written over an operand."""
        buffers = self.table.buffer(operand, scope), self.table.buffer(result, scope)
        kernel.in_place.append(buffers)

    def _begin(self, equation: Equation) -> _Draft:
        """Begins a kernel."""
        draft = _Draft(Kernel(equation.primitive, equation.scope), len(self.kernels))
        self.kernels.append(draft.kernel)
        self._drafts.append(draft)
        return draft

    def _extend(
        self, draft: _Draft, equation: Equation, values: Iterable[Value], outputs: Iterable[Value]
    ) -> None:
        """Lets a kernel compute `outputs` of an equation from `values`."""
        kernel = draft.kernel
        for value in _by_number(self.table.sources_of(values)):
            if self._makers.get(value) is not draft:
                self._readers[value].append(draft)
                _read(kernel, self.table.buffer(value, equation.scope))
        for value in outputs:
            self._makers[value] = draft
            kernel.writes.append(self.table.buffer(value, equation.scope))
        added = self.table.chain(equation) - draft.equations
        kernel.other_flops += sum(other_flops(e) for e in added)
        draft.equations |= added

    def _traffic(self, draft: _Draft) -> int:
        """The bytes that a kernel reads and writes; of a loop or a choice those of its blocks.

        What it only reads a part of counts for that part, and what it updates in place for the
        update.
        """
        kernel, wanted = draft.kernel, defaultdict(int)
        if kernel.loop is not None or kernel.branches:
            return 0
        written = sum(b.bytes for b in kernel.writes)
        for equation in draft.equations:
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
        draft, scope = self._begin(equation), equation.scope
        kernel = draft.kernel
        for value in equation.operands:
            for source in _by_number(self.table.sources_of([value])):
                _read(kernel, self.table.buffer(source, scope))
        for value in equation.outputs:
            self._makers[value] = draft
            kernel.writes.append(self.table.buffer(value, scope))
        if equation.primitive == "cond":
            kernel.shares = shares_in(scope, len(equation.blocks))
            kernel.branches = tuple(
                tuple(self._branch(block, equation, share))
                for block, share in zip(equation.blocks, kernel.shares, strict=True)
            )
            return
        kernel.loop = self._loop(equation)
        # What a loop carries stays where the first turn finds it.
        carried = equation.inputs[equation.body_start + equation.constants :]
        for first, result in zip(carried, equation.outputs[: equation.carried], strict=False):
            if first is not None:
                self._note_result_over(kernel, first, result, scope)

    def _inside(self, block: Block, times: int, share: Fraction) -> list[Kernel]:
        """The kernels of a block inside of this one."""
        return KernelBuilder(block, self.table, self.flops, times, share).kernels

    def _branch(self, block: Block, equation: Equation, share: Fraction) -> list[Kernel]:
        self._give(block.inputs, equation.inputs[equation.body_start :], equation.scope)
        results = [self.table.buffer(v, equation.scope) for v in equation.outputs]
        copied = place_outputs(self.table, block, results, range(len(results)))
        kernels = self._inside(block, self.times, share * self.share)
        for value, to in copied:
            kernels.append(copy_kernel(self._standing(value, equation.scope), to, equation.scope))
        return kernels

    def _standing(self, value: Value, scope: str) -> list[Buffer]:
        """The buffers that a value is in or is computed from."""
        return [self.table.buffer(v, scope) for v in self.table.sources_of([value])]

    def _loop(self, equation: Equation) -> Loop:
        block, scope = equation.blocks[0], equation.scope
        constants, carried = equation.constants, equation.carried
        stacked, reordered = constants + carried, self.table.reordered
        # Nobody knows how often a `while` runs.
        length = equation.eqn.params["length"] if equation.primitive == "scan" else 1
        given = equation.inputs[equation.body_start :]
        self._give(block.inputs[:constants], given[:constants], scope)
        starts = [self.table.buffer(v, scope) for v in block.inputs[constants:stacked]]
        stacks: set[int] = set()
        for inner, stack in zip(block.inputs[stacked:], given[stacked:], strict=True):
            within = None if stack is None else self.table.buffer(stack, scope)
            self.table.buffer(inner, scope, within)
            if stack is not None and original(stack) in reordered:
                reordered.add(original(inner))
            stacks |= set() if within is None else {id(within)}
        results = [self.table.buffer(v, scope) for v in equation.outputs]
        for result, value in zip(results, block.outputs, strict=True):
            result.scope = scope_in_body(block, value, constants, scope)
        which = range(carried, len(results))
        copied = place_outputs(self.table, block, results, which, within=True)
        kernels = self._inside(block, self.times * length, self.share)
        for result, value in zip(equation.outputs[carried:], block.outputs[carried:], strict=True):
            if value is not None and original(value) in reordered:
                reordered.add(original(result))
        for value, to in copied:
            # Where a slice of a stack that the loop is given goes as it is to a stack that the loop
            # makes, XLA takes the one for the other, and copies all of it in each turn.
            reads = self._standing(value, scope)
            whole = any(id(buffer.within) in stacks for buffer in reads)
            kernels.append(copy_kernel(reads, to, scope, times=length if whole else 1))
        for condition in equation.blocks[1:]:
            values = [*equation.inputs[: equation.body_start], *block.inputs[constants:]]
            self._give(condition.inputs, values, scope)
            kernels = self._inside(condition, self.times * length, self.share) + kernels
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


def _read(kernel: Kernel, buffer: Buffer) -> None:
    if all(buffer is not b for b in kernel.reads):
        kernel.reads.append(buffer)


def _by_number(values: Iterable[Value]) -> list[Value]:
    """Values in the order in which they were made, so that kernels do not depend on hashes."""
    return sorted(values, key=lambda v: v.number)
