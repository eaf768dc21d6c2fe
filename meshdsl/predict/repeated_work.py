"""Work that devices repeat: what comes out the same all along an axis of the mesh.

What a device has differs along an axis because an argument is split over it, because the device
asks for its own place there, or because a collective hands out parts. All that is computed of such
values differs too, until a sum or a gather over the axis makes it equal again. Everything else is
the same on all devices along the axis, and each of them computes it. So names of dims, rules of the
layout and ops do not matter here, only the program of one device.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from meshdsl.predict.kernels.before_fusion import needed
from meshdsl.predict.kernels.equation_work import dots, other_flops
from meshdsl.predict.kernels.equations import BARRIER, Block, Equation, Value, original
from meshdsl.predict.kernels.flat_jaxpr import flatten
from meshdsl.program.collective import phase_in_step
from meshdsl.program.jaxpr import COLLECTIVES
from meshdsl.program.name_stacks import shares_in
from meshdsl.program.program import Program
from meshdsl.program.recorder import tag_in

Axes = frozenset[str]
_EQUAL_AFTER = ("psum", "pmax", "pmin", "all_gather")  # on all devices along the axes
_NONE: Axes = frozenset()
_MATTERS = 1e-3  # the share of all work below which repeated work is not worth a line


@dataclass(frozen=True)
class RepeatedView:
    """Work of one line of the user's code that comes out the same on several devices.

    Attributes:
      source: the line; `optimizer`, or empty, for work that belongs to no recorded op.
      tag: of the op with most of the work; empty if there is none.
      ops: names of the ops, those with most work first.
      axes: along which all devices do the same.
      copies: how many devices that are.
      flops, bytes: of the work and of its results, on each device in one call.
      share_of_flops, share_of_bytes: of all that a device computes.
      advice: a rule that would split the work, such as `length -> model`; empty if there is none.
    """

    source: str
    tag: str
    ops: tuple[str, ...]
    axes: tuple[str, ...]
    copies: int
    flops: int
    bytes: int
    share_of_flops: float
    share_of_bytes: float
    advice: str = ""

    @property
    def matters(self) -> bool:
        """Whether there is enough of it to be worth a line."""
        return max(self.share_of_flops, self.share_of_bytes) > _MATTERS


def repeated_work(program: Program) -> tuple[RepeatedView, ...]:
    """The work of one call that devices repeat, for each line of the user's code, most FLOPs first.

    Arrays of one element are left out: nothing could split them.
    """
    block, walk = flatten(program), _Walk(program)
    for value, argument in zip(block.inputs, program.arguments, strict=True):
        walk.differs[value] = frozenset(axis for axes in argument.axes for axis in axes)
    walk.block(block, Fraction(1))
    return walk.views()


class _Walk:
    """Goes through the equations of one device in program order.

    Attributes:
      differs: for each value that has memory of its own the axes along which it differs.
      work: FLOPs and bytes of results by op, phase and the axes along which they are the same.
    """

    def __init__(self, program: Program):
        self._program = program
        self._axes = [axis for axis, size in program.axis_sizes.items() if size > 1]
        self.differs: dict[Value, Axes] = {}
        self.work: dict[tuple, list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])

    def block(self, block: Block, times: Fraction) -> None:
        """Goes through a block that runs so many `times`; if that is 0, nothing is counted."""
        for equation in needed(block.equations, block.outputs):
            if equation.blocks:
                self._with_blocks(equation, times)
                continue
            axes = self._differ_along(equation)
            self.differs.update((original(v), axes) for v in equation.outputs)
            if times:
                self._count(equation, axes, times)

    def views(self) -> tuple[RepeatedView, ...]:
        """What is repeated, by lines and axes."""
        total = [sum(work[i] for work in self.work.values()) or Fraction(1) for i in (0, 1)]
        lines: dict[tuple, list] = defaultdict(list)
        for (tag, phase, same), work in self.work.items():
            op = self._program.op_tagged(tag)
            source = self._source(tag) or (phase if phase == "optimizer" else "")
            if same:
                lines[source, same].append((work, op))
        found = []
        for (source, axes), each in lines.items():
            flops, size = (sum((work[i] for work, _ in each), Fraction(0)) for i in (0, 1))
            each.sort(key=lambda pair: -pair[0][0])
            found.append(
                RepeatedView(
                    source=source,
                    tag=next((op.tag for _, op in each if op), ""),
                    ops=tuple(dict.fromkeys(op.name for _, op in each if op)),
                    axes=axes,
                    copies=prod(self._program.axis_sizes[axis] for axis in axes),
                    flops=round(flops),
                    bytes=round(size),
                    share_of_flops=float(flops / total[0]),
                    share_of_bytes=float(size / total[1]),
                )
            )
        return tuple(sorted(found, key=lambda view: (-view.flops, -view.bytes)))

    def _source(self, tag: str | None) -> str:
        """The innermost line of an op's code: `attention.py:53`."""
        op = self._program.op_tagged(tag)
        return f"{os.path.basename(op.source[0])}:{op.source[1]}" if op and op.lines else ""

    def _of(self, values: Iterable[Value | None]) -> Axes:
        """The axes along which one of the values differs."""
        return _NONE.union(*(self.differs.get(original(v), _NONE) for v in values if v is not None))

    def _differ_along(self, equation: Equation) -> Axes:
        """The axes along which the results of an equation differ."""
        name, axes = equation.primitive, self._of(equation.inputs)
        if name == "axis_index":
            return _named(equation.eqn.params["axis_name"])
        if name not in COLLECTIVES:
            return axes
        operation, parameter = COLLECTIVES[name]
        over = _named(equation.eqn.params[parameter])
        return axes - over if operation in _EQUAL_AFTER else axes | over

    def _count(self, equation: Equation, axes: Axes, times: Fraction) -> None:
        if equation.primitive in COLLECTIVES or equation.primitive == BARRIER:
            return
        if all(v.size <= 1 for v in (*equation.operands, *equation.outputs)):
            return
        same = tuple(axis for axis in self._axes if axis not in axes)
        work = self.work[tag_in(equation.scope), phase_in_step(equation.scope), same]
        work[0] += times * (sum(dot.flops for dot in dots(equation)) or other_flops(equation))
        work[1] += times * sum(v.bytes for v in equation.outputs)

    def _with_blocks(self, equation: Equation, times: Fraction) -> None:
        """A loop or a choice, whose results differ as those of its body or branches do."""
        given = equation.inputs[equation.body_start :]
        if equation.primitive == "cond":
            axes = self._of(equation.inputs[:1])
            shares = shares_in(equation.scope, len(equation.blocks))
            for block, share in zip(equation.blocks, shares, strict=True):
                self._give(block.inputs, given)
                self.block(block, times * share)
                self._give(equation.outputs, block.outputs, axes)
            return
        body, *conditions = equation.blocks
        constants, stacked = equation.constants, equation.constants + equation.carried
        self._give(body.inputs, given)
        before = None
        carried = body.inputs[constants:stacked]
        while before != (before := [self.differs.get(v) for v in carried]):
            self.block(body, Fraction(0))
            self._give(carried, body.outputs[: equation.carried])
        axes = _NONE
        for condition in conditions:
            self._give(condition.inputs, [*equation.inputs[: equation.body_start], *carried])
            self.block(condition, times)
            axes |= self._of(condition.outputs)
        length = equation.eqn.params["length"] if equation.primitive == "scan" else 1
        self.block(body, times * length)
        self._give(equation.outputs, body.outputs, axes)
        self._give(equation.outputs[: equation.carried], carried)

    def _give(self, values: Iterable[Value], sources: Iterable, axes: Axes = _NONE) -> None:
        """Notes that `values` are what `sources` are, beside what they were before."""
        for value, source in zip(values, sources, strict=True):
            at = original(value)
            self.differs[at] = self.differs.get(at, _NONE) | self._of([source]) | axes


def _named(axes) -> Axes:
    return frozenset(axes if isinstance(axes, (tuple, list)) else (axes,))
