"""What a device does for each instruction of a compiled program: it computes, or something starts, or is waited for.

Compilers write an asynchronous collective in several ways: as a pair `all-gather-start` and `all-gather-done`; as an `async-start` or `call-start` of a computation
that holds it, for another core; and as a chain of fusions that compute meanwhile, each with a copy of it, of which the first starts it and the last waits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshdsl.plan.collective import Collective
from meshdsl.plan.explain.timing_streams import COPIES, Lane, lanes_of
from meshdsl.plan.hlo import cost
from meshdsl.plan.hlo.collectives import OPERATIONS, collectives_of, direction_of
from meshdsl.plan.hlo.text import ON_CHIP, Instruction, Module

_STARTS, _ENDS = 'custom_call_target="AsyncCollectiveStart"', 'custom_call_target="AsyncCollectiveDone"'


@dataclass
class Step:
    """What the streams do for an instruction.

    Attributes:
      what: `compute`, `start` (a collective or copy begins), `sync` (a collective is waited for), `done`, `loop`, `call`, `branch`.
      name, scope: of the instruction.
      seconds: of computing.
      moves, parts: the collective, and one for each of its operands; None for a copy.
      lanes, link_seconds: where it runs and how long.
      key: of the event that a start sets and a done waits for.
      bodies, turns: the computations that it runs, and how often a loop does.
    """

    what: str
    name: str
    scope: str
    seconds: float = 0.0
    moves: Collective | None = None
    parts: tuple[Collective, ...] = ()
    lanes: tuple[Lane, ...] = ()
    link_seconds: float = 0.0
    key: str = ""
    bodies: tuple[str, ...] = ()
    turns: int = 1


class Steps:
    """The steps of the computations of `module`; see `schedule.replay` for the rest."""

    def __init__(self, module: Module, chip, network, axis_sizes: dict[str, int]):
        self.module, self.chip, self.network, self.axis_sizes = module, chip, network, axis_sizes
        self._known: dict[str, list[Step]] = {}

    def of(self, computation: str) -> list[Step]:
        """In the order of the schedule. What takes no time is left out."""
        if computation not in self._known:
            steps = (self._step(computation, i) for i in self.module.computations[computation])
            self._known[computation] = [step for step in steps if step is not None]
        return self._known[computation]

    def _step(self, computation: str, i: Instruction) -> Step | None:
        if i.opcode == "while":
            return Step("loop", i.name, i.scope, bodies=(i.attribute("body"),), turns=self.module.trip_count(i))
        if i.opcode == "conditional":
            return Step("branch", i.name, i.scope, bodies=tuple(self.module.called(i)))
        if i.opcode == "call":
            return Step("call", i.name, i.scope, bodies=tuple(self.module.called(i)))
        if i.opcode.endswith("-done"):
            return Step("done", i.name, i.scope, key=self._started(computation, i.operands[0]))
        if i.opcode.endswith("-update"):
            return None
        if i.opcode in OPERATIONS or i.opcode.endswith("-start") or i.opcode == "fusion":
            return self._moving(computation, i)
        return self._computing(i)

    def _computing(self, i: Instruction) -> Step | None:
        seconds = cost.seconds(self.module, i, self.chip)
        return Step("compute", i.name, i.scope, seconds) if seconds else None

    def _moving(self, computation: str, i: Instruction) -> Step | None:
        """A collective, a copy, or a fusion that may hold a collective."""
        holder, inside = self._inside(computation, i)
        if inside is None:
            if i.opcode == "fusion":
                return self._computing(i)
            if i.opcode.endswith("-start"):
                return Step("start", i.name, i.scope, lanes=(COPIES,), link_seconds=self._copy_seconds(i), key=i.name)
            return None
        within = self.module.computations[holder]
        chain = _chain(inside)
        seconds = cost.seconds(self.module, i, self.chip) if i.opcode == "fusion" and i.cycles is not None else 0.0
        if chain and holder != computation:
            if any(_ENDS in one.attributes for one in within):
                return Step("done", i.name, i.scope, seconds, key=chain)
            if not any(_STARTS in one.attributes for one in within):
                return self._computing(i)
        parts = tuple(part if part.scope else replace(part, scope=i.scope) for part in collectives_of(self.module, holder, inside, self.axis_sizes))
        if not parts:
            return self._computing(i) if i.opcode == "fusion" else None
        moves = replace(max(parts, key=lambda part: part.bytes), bytes=sum(part.bytes for part in parts))
        lanes = lanes_of(moves, self.network, direction_of(inside, moves.axes, self.axis_sizes))
        link_seconds = self.network.seconds(moves.operation, moves.axes, moves.bytes)
        asynchronous = bool(chain and holder != computation) or i.opcode.endswith("-start")
        key = chain if chain and holder != computation else i.name
        return Step("start" if asynchronous else "sync", i.name, moves.scope, seconds, moves, parts, lanes, link_seconds, key)

    def _inside(self, computation: str, i: Instruction) -> tuple[str, Instruction | None]:
        """The collective that an instruction is or runs, and the computation that it stands in."""
        if i.opcode.removesuffix("-start") in OPERATIONS:
            return computation, i
        for called in self.module.called(i):
            for one in self.module.computations.get(called, ()):
                holder, found = self._inside(called, one) if one.opcode in ("fusion", "call", *OPERATIONS) else (called, None)
                if found is not None:
                    return holder, found
        return computation, None

    def _copy_seconds(self, i: Instruction) -> float:
        """Of a copy between memories, whole or of a slice: what it moves, for each of its ends that lies in HBM."""
        operands = [array for name in i.operands for array in self.module.instructions[name].results]
        # `(result, operand, context)` of a copy, `((operands), results, context)` of everything else
        target = i.results[0] if i.opcode == "copy-start" else i.results[len(operands)]
        moved = operands[1] if "update" in i.opcode else target
        ends = sum(array.memory != ON_CHIP for array in (operands[0], target))
        return moved.bytes * ends / (self.chip.hbm_bandwidth * self.chip.hbm_efficiency)

    def _started(self, computation: str, name: str) -> str:
        """The start that a done belongs to: through the loop that carries it, and through updates."""
        i = self.module.instructions[name]
        seen = set()
        while i.name not in seen and (i.opcode == "get-tuple-element" or i.opcode.endswith("-update")):
            seen.add(i.name)
            source = self.module.instructions[i.operands[0]]
            if i.opcode.endswith("-update"):
                i = source
                continue
            position = int(re.search(r"index=(\d+)", i.attributes)[1])
            if source.opcode == "parameter":
                carried = self.module.root(computation)
            elif source.opcode == "while":
                computation = source.attribute("body")
                carried = self.module.root(computation)
            else:
                carried = source
            if carried.opcode != "tuple":
                break
            i = self.module.instructions[carried.operands[position]]
        _, inside = self._inside(computation, i) if i.opcode == "fusion" else (computation, None)
        return (_chain(inside) if inside is not None else "") or i.name


def _chain(collective: Instruction) -> str:
    """The chain of fusions over which the TPU compiler spreads a collective; empty where it doesn't."""
    found = re.search(r'chain_id="?([\w.\-]+)', collective.attributes)
    return f"chain {found[1]}" if found else ""
