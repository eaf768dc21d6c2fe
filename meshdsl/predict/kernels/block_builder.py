"""Groups the equations of a block into kernels, by the rules that XLA's fusion follows on a TPU.

`BlockBuilder` goes through the equations of a block in program order. Each equation has one of
three fates:

1. *It is computed where its result is used.* Element-wise equations (broadcasts, iotas, conversions
   and slices included) are, unless `written_values` says that their result must be written to
   memory. They get no kernel of their own: the value table keeps how the result is computed, and
   each kernel that uses the result computes it once more.
2. *It joins a kernel.* An element-wise equation whose result is written, and a reduction, join the
   kernel that writes their newest operand, as long as both go over the same number of elements. So
   the activation after a product belongs to the product's kernel, and an optimizer's update of a
   parameter and of its moments is one kernel. Nothing joins a kernel behind a reduction.
3. *It begins a kernel.* Products, collectives, fused kernels, loops and branches always do.

Some values must be copied from one place in memory to another, and each copy is a kernel:

- The result of a collective or of a fused kernel, where a loop stacks the results of its turns: a
  collective cannot write into the stack. Nor can a product write what is kept beside its result.
- A slice of a stack, where a fused kernel reads it.
- An operand or a result whose dims are needed in another order (`reordered`): of a batch of
  products, of a collective, of attention with groups of heads, and what lies lengthwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from meshdsl.predict.kernels.before_fusion import (
    convert_stacks,
    needed,
    once,
    scalars_early,
    unrounded,
    updated_in_place,
)
from meshdsl.predict.kernels.block_outputs import as_gathered, copy_kernel, part_kernel, slice_lanes
from meshdsl.predict.kernels.drafts import Draft, is_bare, is_heavy, postpone
from meshdsl.predict.kernels.equation_work import collectives, dots, other_flops
from meshdsl.predict.kernels.equations import BARRIER, Block, Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from meshdsl.predict.kernels.moves import moves
from meshdsl.predict.kernels.primitives import (
    COSTLY,
    ELEMENTWISE,
    FUSED,
    IN_PLACE,
    PRODUCTS,
    REDUCTIONS,
)
from meshdsl.predict.kernels.reordered import (
    COPY,
    REORDER,
    grouped_heads,
    is_batch,
    read_by_fused,
    relaid,
    reorders,
    scatters_lanes,
)
from meshdsl.predict.kernels.value_table import ValueTable, by_number
from meshdsl.predict.kernels.written_values import written_values
from meshdsl.predict.memory.tiles import LANES
from meshdsl.program.collective import phase_in_step
from meshdsl.program.recorder import tag_in


class BlockBuilder:
    """The kernels of one block of equations. The inputs of the block are in `table` already.

    Attributes:
      table: where each value of the whole program is: in a buffer, or computed where it is used.
      flops: the FLOPs of the whole program by `(tag or None, phase)`; the builder adds the FLOPs of
        the block.
      times: how often the block would run in one call of the program if every branch around the
        block were taken.
      share: the part of `times` in which the branches around the block are taken.
      lengthwise: of the body of a loop of layers, the activations that it hands on, where these are
        kept with their length in lanes.
      kernels: the kernels of the block, in program order.
    """

    def __init__(
        self,
        block: Block,
        table: ValueTable,
        flops: dict[tuple[str | None, str], int | Fraction],
        times: int,
        share: Fraction = Fraction(1),
        lengthwise: Value | None = None,
    ):
        self.table, self.flops, self.times, self.share = table, flops, times, share
        self.lengthwise = lengthwise
        self.kernels: list[Kernel] = []
        # For each value: the kernel of this block that writes it, and the kernels that read it.
        self._makers: dict[Value, Draft] = {}
        self._readers: dict[Value, list[Draft]] = defaultdict(list)
        # Values whose kernel further element-wise code and reductions over the value may join.
        self._joinable: set[Value] = set()
        # What passes one barrier: by the barrier, and by the buffer of each of its results.
        self._passing: dict[int, list[Buffer]] = defaultdict(list)
        self._barred: dict[int, list[Buffer]] = {}
        self._copies: dict[Value, Buffer] = {}  # of a slice once for all fused kernels
        self._reordered: set[tuple[Value, str]] = set()  # queries that are copied in a phase
        self._results = {original(v) for v in block.outputs if v is not None}
        equations = block.equations if table.tiled else unrounded(block.equations)
        equations = needed(updated_in_place(once(equations)), block.outputs)
        equations = scalars_early(convert_stacks(equations))
        outside = lambda value: table.sources_of([value])
        fused = frozenset() if table.products_alone else PRODUCTS
        self._written = written_values(equations, block.outputs, outside, REDUCTIONS | fused)
        self._transposed = {original(v) for e in equations for v in e.operands if v.transposed}
        self._used = {original(v) for e in equations for v in e.operands}
        self._used |= {original(v) for v in block.outputs if v is not None}
        self._drafts: list[Draft] = []
        self._into_fused = read_by_fused(equations)
        for equation in equations:
            self._count_flops(equation)
            self._add(equation)
        for draft in self._drafts:
            draft.kernel.moves = moves(draft.kernel, draft.equations, table)
            draft.kernel.bare = table.tiled and is_bare(draft)
        for kernel in self.kernels:
            barred = (o for b in kernel.reads for o in self._barred.get(id(b), ()))
            kernel.behind = (*kernel.behind, *barred)

    def _count_flops(self, equation: Equation) -> None:
        flops = sum(dot.flops for dot in dots(equation)) or other_flops(equation)
        if flops:
            key = tag_in(equation.scope), phase_in_step(equation.scope)
            self.flops[key] += self.times * self.share * flops

    def _add(self, equation: Equation) -> None:
        """Gives an equation one of the three fates that the head of this file describes."""
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

    def _add_with_blocks(self, equation: Equation) -> None:
        """Begins the kernel of a loop or a `cond`, and builds the kernels of its blocks."""
        raise NotImplementedError

    def _add_barrier(self, equation: Equation) -> None:
        """Handles an `optimization_barrier`, which has one operand and one result.

        An operand that has a buffer of its own passes the barrier in this buffer. An operand that
        is a slice of a stack, or that is computed where it is used, is written to a buffer here.
        """
        (before,), (behind,) = equation.operands, equation.outputs
        if not self.table.is_written(before):
            self._join(equation, behind, behind.size)
        elif (stack := self.table.buffer(before, equation.scope).within) is None:
            self.table.share(behind, before)
            if (maker := self._makers.get(original(before))) is not None:
                self._makers[behind] = maker
                carry = self.lengthwise
                if maker.kernel.dots and carry is not None and behind.shape == carry.shape:
                    self.table.set_buffer(behind, self._copy(equation, before, REORDER))
                passing = self._passing[id(equation.eqn)]
                passing.append(self.table.buffer(behind, ""))
                self._barred[id(passing[-1])] = passing
        else:
            self.table.buffer(behind, stack.scope)
            self._extend(self._begin(equation), equation, equation.operands, [behind])

    def _join(self, equation: Equation, value: Value, elements: int) -> None:
        """Adds element-wise code or a reduction to a kernel that goes over `elements` elements.

        The first choice is the kernel that writes the newest operand. The second choice is the
        first kernel behind that one which reads an operand of the equation. If neither goes over
        the same number of elements, a new kernel begins.
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
            if draft is None and all(
                v in self._makers and self._makers[v].kernel.dots for v in newest
            ):
                draft = self._postponed(sources, elements)
        if draft is None:
            draft = self._begin(equation)
            draft.elements = elements
        self._extend(draft, equation, equation.operands, [value])

    def _postponed(self, sources: Iterable[Value], elements: int) -> Draft | None:
        """The kernel of a product that writes one of the sources, moved behind all the others.

        None where another source is computed from what that kernel writes.
        """
        for value in sorted(sources, key=lambda v: -self._made_at(v)):
            draft = self._makers.get(value)
            joinable = value in self._joinable and value.size == elements
            if draft is None or not joinable or not draft.kernel.dots:
                continue
            others = [self.table.buffer(v, "") for v in sources if v is not value]
            if postpone(draft, self.kernels, self._drafts, others):
                return draft
        return None

    def _made_at(self, value: Value) -> int:
        """The place of the kernel that writes a value; -1 for a value from outside of the block."""
        maker = self._makers.get(value)
        return -1 if maker is None else maker.place

    def _add_alone(self, equation: Equation) -> None:
        """Begins a kernel with an equation that joins none, such as a product or a collective.

        An equation that stands for several collectives begins one kernel for each.
        """
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
        relay, gathered = "", ()
        if moved:
            kernel.collective, kernel.scope = moved[0], moved[0].scope
            kernel.whole = self.table.tiled and bool(scatters_lanes(equation)) and not copies
            if self.table.tiled:
                relay, gathered = relaid(equation, in_loop=self.times > 1)
            if not relay and reorders(equation) == "all_gather":
                self.table.reordered.update(equation.outputs)
            if not relay and self.table.tiled and self._is_copied_after(equation):
                relay = COPY
        self._extend(draft, equation, equation.operands, equation.outputs)
        if kernel.dots:
            if original(equation.outputs[0]) not in self._into_fused:
                kernel.dots = [replace(dot, lanes=1.0) for dot in kernel.dots]
            computed = [v.size for e in draft.equations if e.primitive in COSTLY for v in e.outputs]
            kernel.costly = max(computed, default=0)
        kernel.reads = [copies.get(id(buffer), buffer) for buffer in kernel.reads]
        if equation.primitive == FUSED and self.table.tiled:
            if grouped_heads(equation):
                self._reorder_heads(equation)
            used = [self.table.buffer(v, "") for v in equation.outputs if v in self._used]
            self.kernels += slice_lanes(kernel, used)
        if kernel.whole:
            self.kernels.append(part_kernel(kernel))
        if relay:
            result = equation.outputs[0]
            self.table.set_buffer(result, self._copy(equation, result, relay))
            if gathered:
                as_gathered(kernel, self.kernels[-1], gathered)
        if equation.primitive in PRODUCTS and not self.table.products_alone:
            self._joinable.add(equation.outputs[0])
        if equation.primitive in IN_PLACE and (first := equation.inputs[0]) is not None:
            self._note_result_over(kernel, first, equation.outputs[0], equation.scope)

    def _copied(self, equation: Equation) -> dict[int, Buffer]:
        """Adds copy kernels for operands that the equation cannot read where the operands stand.

        A fused kernel cannot read a slice of a stack. A batch of products, and a collective that
        scatters parts, cannot read an operand whose dims are in another order.

        Returns:
          The buffer of each copy, by the id of the buffer that was copied.
        """
        sources, scope = self.table.sources_of(equation.operands), equation.scope
        how: dict[Value, str] = {}
        if equation.primitive == FUSED:
            slices = (v for v in sources if self.table.buffer(v, scope).within is not None)
            how = dict.fromkeys(slices, COPY)
        if is_batch(equation):
            how |= dict.fromkeys(sources & self.table.reordered, REORDER)
        elif self.table.tiled and (part := scatters_lanes(equation)):
            makers = {v: self._makers[v] for v in sources if v in self._makers}
            tiles = LANES % part == 0
            how |= {v: REORDER for v, m in makers.items() if m.of_batch or (tiles and is_heavy(m))}
        for value in by_number(how):
            if value not in self._copies or equation.primitive != FUSED:
                self._copies[value] = self._copy(equation, value, how[value])
        return {id(self.table.buffer(value, scope)): self._copies[value] for value in how}

    def _copy(self, equation: Equation, value: Value, how: str) -> Buffer:
        """Adds a kernel that copies a value for an equation; gives the buffer of the copy."""
        buffer = self.table.buffer(value, equation.scope)
        copy = Buffer(buffer.shape, buffer.dtype, buffer.bytes, scope=equation.scope)
        self.kernels.append(copy_kernel([buffer], copy, equation.scope, how))
        return copy

    def _is_copied_after(self, equation: Equation) -> bool:
        """Whether what a collective gives is copied where it is used, in the same order.

        What is exchanged is, and what is gathered and is a result of the program, which stands in
        the memory of an argument.
        """
        gathered = equation.primitive.startswith("all_gather") and self.times == 1
        result = gathered and equation.outputs[0] in self._results
        return result or equation.primitive == "all_to_all"

    def _reorder_heads(self, equation: Equation) -> None:
        """Adds copies of what a fused kernel of attention with grouped heads reads and gives.

        Such a kernel has the elements of a head in lanes. Queries that are normalised come with
        their length in lanes, and their gradient goes so, because the sums over a head are then
        cheap. Where activations lie lengthwise, so do the result and its gradient.
        """
        queries, phase = equation.operands[0], phase_in_step(equation.scope)
        copies = int(self._is_normalised(queries))
        if phase == "backward" and self.lengthwise is not None:
            copies += 2
        if (original(queries), phase) not in self._reordered:
            self._reordered.add((original(queries), phase))
            for _ in range(copies):
                self._copy(equation, queries, REORDER)

    def _is_normalised(self, heads: Value) -> bool:
        """Whether a kernel divides each head by a number of its own to make them."""
        rows = heads.size // heads.shape[-1]
        makers = [self._makers.get(v) for v in self.table.sources_of([heads])]
        read = [b for maker in makers if maker is not None for b in maker.kernel.reads]
        return any(b.dtype == "float32" and b.bytes == 4 * rows for b in read)

    def _note_in_place(self, equation: Equation, value: Value) -> None:
        """Notes which operands the result of an element-wise equation may be written over.

        A result that a later equation uses with its dims transposed is laid out for that use. The
        order of its elements in memory then differs from the operands', so it overwrites none.
        """
        if value not in self._transposed:
            maker = self._makers[value]
            for source in by_number(self.table.aligned(equation)):
                if self._makers.get(source) is not maker:
                    self._note_result_over(maker.kernel, source, value, equation.scope)

    def _note_result_over(self, kernel: Kernel, operand: Value, result: Value, scope: str) -> None:
        """Notes that a result may be written over an operand."""
        buffers = self.table.buffer(operand, scope), self.table.buffer(result, scope)
        kernel.in_place.append(buffers)

    def _begin(self, equation: Equation) -> Draft:
        """Begins a kernel."""
        draft = Draft(Kernel(equation.primitive, equation.scope), len(self.kernels))
        self.kernels.append(draft.kernel)
        self._drafts.append(draft)
        return draft

    def _extend(
        self, draft: Draft, equation: Equation, values: Iterable[Value], outputs: Iterable[Value]
    ) -> None:
        """Adds an equation to a kernel, which now reads `values` and writes `outputs`."""
        kernel = draft.kernel
        for value in by_number(self.table.sources_of(values)):
            if self._makers.get(value) is not draft:
                self._readers[value].append(draft)
                read(kernel, self.table.buffer(value, equation.scope))
        for value in outputs:
            self._makers[value] = draft
            kernel.writes.append(self.table.buffer(value, equation.scope))
        added = self.table.chain(equation) - draft.equations
        kernel.other_flops += sum(other_flops(e) for e in added)
        draft.equations |= added


def read(kernel: Kernel, buffer: Buffer) -> None:
    """Adds a buffer to those that the kernel reads, unless it is among them."""
    if all(buffer is not b for b in kernel.reads):
        kernel.reads.append(buffer)
