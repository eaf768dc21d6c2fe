"""The kernels of a block of equations, with those of the loops and branches in it.

The blocks of a loop or a `cond` share the memory of the block that they stand in: the buffers of
what is passed to them, and of the results. What one of them gives that stands elsewhere is copied.
"""

from __future__ import annotations

from fractions import Fraction

from meshdsl.predict.kernels.block_builder import BlockBuilder, read
from meshdsl.predict.kernels.block_outputs import (
    copy_kernel,
    fill_kernels,
    place_outputs,
    put_later,
    scope_in_body,
    take_kernels,
)
from meshdsl.predict.kernels.equations import Block, Equation, Value, original
from meshdsl.predict.kernels.kernels import Buffer, Kernel, Loop
from meshdsl.predict.kernels.primitives import ROUND
from meshdsl.predict.kernels.reordered import is_turned, lengthwise, stays_lengthwise
from meshdsl.predict.kernels.value_table import by_number
from meshdsl.program.name_stacks import shares_in


class KernelBuilder(BlockBuilder):
    """A `BlockBuilder` of a block that may have loops and branches."""

    def _add_with_blocks(self, equation: Equation) -> None:
        """Begins the kernel of a loop or a `cond`, and builds the kernels of its blocks."""
        fills: list[Kernel] = []
        if self.table.tiled and equation.eqn.params.get("reverse"):
            stacks = equation.outputs[equation.carried :]
            fills = fill_kernels(self._standing(v, equation.scope)[0] for v in stacks)
            self.kernels += fills
        draft, scope = self._begin(equation), equation.scope
        kernel = draft.kernel
        kernel.behind = tuple(b for fill in fills for b in fill.writes)
        for value in equation.operands:
            for source in by_number(self.table.sources_of([value])):
                read(kernel, self.table.buffer(source, scope))
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
        # Each turn of a loop may write a carried value over the value that the turn before carried.
        carried = equation.inputs[equation.body_start + equation.constants :]
        for first, result in zip(carried, equation.outputs[: equation.carried], strict=False):
            if first is not None:
                self._note_result_over(kernel, first, result, scope)

    def _inside(
        self, block: Block, times: int, share: Fraction, lengthwise: Value | None = None
    ) -> list[Kernel]:
        """The kernels of a block that is nested in this block."""
        return KernelBuilder(block, self.table, self.flops, times, share, lengthwise).kernels

    def _branch(self, block: Block, equation: Equation, share: Fraction) -> list[Kernel]:
        """The kernels of one branch of a `cond`, which write the results of the `cond`."""
        self._give(block.inputs, equation.inputs[equation.body_start :], equation.scope)
        results = [self.table.buffer(v, equation.scope) for v in equation.outputs]
        copied = place_outputs(self.table, block, results, range(len(results)))
        kernels = self._inside(block, self.times, share * self.share)
        for value, to in copied:
            kernels.append(copy_kernel(self._standing(value, equation.scope), to, equation.scope))
        return kernels

    def _standing(self, value: Value, scope: str) -> list[Buffer]:
        """The buffer of a written value, or those that an unwritten value is computed from."""
        return [self.table.buffer(v, scope) for v in self.table.sources_of([value])]

    def _loop(self, equation: Equation) -> Loop:
        """The loop of a `scan` or a `while`, with the kernels of its body and its condition.

        The inputs of the body are constants, then carried values, then slices of the stacks that
        the loop reads. The outputs are carried values, then slices of the stacks that it writes.
        """
        block, scope = equation.blocks[0], equation.scope
        constants, carried = equation.constants, equation.carried
        stacked, reordered = constants + carried, self.table.reordered
        # The number of turns of a `while` is not known; it is taken to run once.
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
            maker = None if stack is None else self._makers.get(original(stack))
            if within is not None and maker is not None and maker.kernel.collective:
                stacks.add(id(within))
        results = [self.table.buffer(v, scope) for v in equation.outputs]
        for result, value in zip(results, block.outputs, strict=True):
            result.scope = scope_in_body(block, value, constants, scope)
        which = range(carried, len(results))
        copied = place_outputs(self.table, block, results, which, within=True)
        carry = lengthwise(block, constants, carried) if self.table.tiled else None
        kept = [s if self._is_of_loop(s) else None for s in given[stacked:]]
        turned = None
        if carry is not None and not stays_lengthwise(kept):
            turned, carry = carry, None
        pairs = zip(block.inputs[stacked:], kept, strict=True)
        slices = [v for v, stack in pairs if stack is not None and is_turned(v, turned)]
        taken = [self.table.buffer(v, scope) for v in slices] if self.table.tiled else []
        kernels = self._inside(block, self.times * length, self.share, carry)
        kernels = take_kernels(kernels, taken) + kernels
        if self.table.tiled:
            given_on = [original(v) for v in block.outputs if v is not None]
            rounded = [v for v in given_on if v.equation and v.equation.primitive == ROUND]
            buffers = ([self.table.buffer(v, scope) for v in of] for of in (rounded, given_on))
            put_later(kernels, *buffers)
        for result, value in zip(equation.outputs[carried:], block.outputs[carried:], strict=True):
            if value is not None and original(value) in reordered:
                reordered.add(original(result))
        for value, to in copied:
            # Where a slice of a stack that was gathered goes unchanged into a stack that the loop
            # writes, XLA takes both stacks for one, and copies the whole stack in each turn.
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

    def _is_of_loop(self, value: Value | None) -> bool:
        """Whether a loop of this block has made a value: a stack of what it keeps of each turn."""
        maker = None if value is None else self._makers.get(original(value))
        return maker is not None and maker.kernel.loop is not None

    def _give(self, inner: list[Value], outer: list[Value | None], scope: str) -> None:
        """Lets inputs of a block share the memory of the values that are passed for them."""
        for value, given in zip(inner, outer, strict=True):
            if given is None:
                self.table.buffer(value, scope)
            else:
                self.table.share(value, given)
