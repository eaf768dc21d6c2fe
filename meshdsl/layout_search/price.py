"""A rough price of a layout from its ops and moves alone, to tell which are worth a full estimate.

It never decides. What a layout costs is said by the estimate that `explain` makes; this one only
orders the candidates of which most will not be estimated. It takes the seconds that each op
computes from one full estimate, of the workload with nothing split, and divides them as the layout
divides the op's loop nest; the collectives are exactly those that the law asks for, and their
seconds those of the machine's network. How much of them is hidden is a guess (`_SHOWN`, `_HIDDEN`),
which the search corrects by what full estimates of similar candidates said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshdsl.dims import Dims
from meshdsl.estimate.explanation import Explanation
from meshdsl.estimate.memory.memory_view import kind_of
from meshdsl.layout import Layout
from meshdsl.layout_search.plan import Plan
from meshdsl.layout_search.workload import sizes_of
from meshdsl.machine import Network, Target
from meshdsl.record.program import Program
from meshdsl.record.recorder import Op

_SHOWN = 0.2  # the share of all collectives for which a device waits at least
_HIDDEN = 0.8  # the share of its computation behind which it can hide the rest
_KINDS = {"parameter": "parameters", "optimizer": "optimizer"}  # kinds of arguments: their level


@dataclass(frozen=True)
class Price:
    """What the ops and moves of a candidate come to.

    Attributes:
      step: seconds.
      at_rest: bytes of arguments and gradients on one device.
      live: what the values that ops make come to, in a unit of its own: only the ratio of two
        candidates says something.
      signature: equal for two candidates only if their ops run and move alike, and what is at rest
        is split alike.
    """

    step: float
    at_rest: float
    live: float
    signature: int


@dataclass(frozen=True)
class _Work:
    """Of the ops of one line of code: seconds of a step for each element of their loop nests."""

    seconds: float
    recomputed: bool


class Pricer:
    """Prices candidates of one workload.

    Args:
      program: of the workload with nothing split.
      explanation: of that program.
    """

    def __init__(self, program: Program, explanation: Explanation, target: Target):
        self._target = target
        self._arguments = [
            (a.dims, a.bytes, _KINDS.get(kind_of(a), "rules")) for a in program.arguments
        ]
        self._networks: dict[tuple[tuple[str, int], ...], Network] = {}
        self._ops = program.ops
        elements: dict[tuple, float] = defaultdict(float)
        seconds: dict[tuple, float] = defaultdict(float)
        again: set[tuple] = set()
        by_tag = {view.tag: view for view in explanation.ops}
        for op in program.ops:
            key = _key(op)
            elements[key] += op.count * math.prod(d.size for d in op.dims)
            view = by_tag[op.tag]
            # What is computed again depends on the settings, and not on the layout alone.
            phases = dict(view.seconds)
            if phases.pop("recompute", 0.0):
                again.add(key)
            seconds[key] += math.fsum(phases.values())
        self._work = {
            key: _Work(seconds[key] / max(elements[key], 1), key in again) for key in elements
        }
        nests: dict[tuple[Dims, frozenset[str]], float] = defaultdict(float)
        for op in program.ops:
            local = op.count * math.prod(d.size for d in op.dims)
            loops = frozenset(name for name, _ in op.loops)
            nests[op.dims, loops] += local * self._work[_key(op)].seconds
        # Those of the most seconds first, so that a bound is soon above what it may be.
        self._nests = sorted(nests.items(), key=lambda item: -item[1])

    def bound(self, layout: Layout) -> float:
        """Seconds that the ops compute at least; infinite where the law refuses the layout.

        What the backward pass computes again is not in it. It takes the law alone, and so a part of
        the time of `price`.
        """
        sizes = sizes_of(layout)
        stages = {rule.dim: rule.axis for rule in layout.parsed if rule.microbatches}
        total = 0.0
        for (dims, loops), seconds in self._nests:
            split = layout.split(dims)
            parts = 1
            for dim, axes in split.items():
                over = math.prod(sizes[a] for a in axes)
                if dim.size % over and dim.name not in layout.padded:
                    return math.inf
                parts *= over
            used = {a for axes in split.values() for a in axes}
            for loop in loops & stages.keys():
                if stages[loop] not in used:
                    parts *= sizes[stages[loop]]
            total += seconds / parts
        return total

    def price(self, layout: Layout, ops: Iterable[Op]) -> Price:
        """The price of a layout whose ops are these."""
        ops, sizes = list(ops), sizes_of(layout)
        network = self._network(sizes)
        compute = live = 0.0
        lanes: dict[str, float] = defaultdict(float)
        for op in ops:
            local = op.count * math.prod(
                -(-d.size // math.prod(sizes[a] for a in axes))
                for d, axes in zip(op.dims, op.axes, strict=True)
            )
            work = self._work.get(_key(op))
            if work is not None:
                compute += local * work.seconds
            live += local * (op.name not in ("einsum", "attention", "conv", "dot"))
            for move in op.moves:
                if not network:
                    break
                passes = 2 if work is not None and work.recomputed else 1
                took = passes * network.seconds(move.operation, move.axes, move.bytes)
                if move.backward:
                    size = move.backward_bytes or move.bytes
                    took += network.seconds(move.backward, move.axes, size)
                for axis in move.axes[:1]:
                    lanes[axis] += took * move.count * op.count
        total = math.fsum(lanes.values())
        longest = max(lanes.values(), default=0.0)
        step = compute + max(_SHOWN * total, longest - _HIDDEN * compute)
        at_rest, splits = self._at_rest(layout, sizes)
        runs = tuple(
            (
                op.axes,
                op.loops,
                op.count,
                (op.waste, op.kernel, op.needed, op.lacks),
                tuple((m.operation, m.axes, m.bytes, m.backward, m.count) for m in op.moves),
            )
            for op in ops
        )
        return Price(step, at_rest, live, hash((tuple(sizes.items()), runs, splits)))

    def _at_rest(self, layout: Layout, sizes: Mapping[str, int]) -> tuple[float, tuple]:
        """Bytes of arguments and gradients on one device, and how they are split."""
        splits: dict[tuple[Dims, str], tuple] = {}

        def parts(dims: Dims, level: str) -> int:
            if (dims, level) not in splits:
                splits[dims, level] = tuple(layout.at_rest(dims, sizes, level).items())
            return math.prod(sizes[a] for _, axes in splits[dims, level] for a in axes)

        total = 0.0
        for dims, size, level in self._arguments:
            total += size / parts(dims, level) if dims else size
            if level == "parameters" and dims:
                total += size / parts(dims, "optimizer")
        return total, tuple(splits.values())

    def _network(self, sizes: Mapping[str, int]) -> Network | None:
        if not self._target.timed:
            return None
        key = tuple(sizes.items())
        if key not in self._networks:
            self._networks[key] = Network(self._target, sizes)
        return self._networks[key]


def _key(op: Op) -> tuple:
    return op.name, tuple(d.name for d in op.dims), op.lines


def distance(one: Plan, other: Plan) -> float:
    """How much two plans differ: in lines, in sizes of axes, and in settings."""
    lines = len(set(one.lines) ^ set(other.lines))
    mine, theirs = dict(one.sizes), dict(other.sizes)
    apart = sum(
        abs(math.log2(mine.get(a, 1) / theirs.get(a, 1))) for a in mine.keys() | theirs.keys()
    )
    said = len(set(one.settings) ^ set(other.settings)) + len(set(one.words) ^ set(other.words))
    return lines + 0.5 * apart + 2 * said
