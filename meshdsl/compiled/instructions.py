"""What a device does for each instruction of a compiled program: it computes, or something starts, or is waited for.

Compilers write an asynchronous collective in several ways: as a pair `all-gather-start` and `all-gather-done`; as an `async-start` or `call-start` of a computation
that holds it, for another core; and as a chain of fusions that compute meanwhile, each with a copy of it, of which the first starts it and the last waits.
Another core may compute too. Since libtpu 0.0.50 the start of what it does may come before the
operands are there; an update hands them over, and it runs from that moment.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial

from meshdsl.compiled import instruction_time
from meshdsl.compiled.collectives import collectives_of, direction_of, is_unknown, operation_of
from meshdsl.compiled.hlo_text import ON_CHIP, Instruction, Module
from meshdsl.machine.streams import COPIES, Lane, lanes_of
from meshdsl.record.collective import Collective

_STARTS, _ENDS = (
    'custom_call_target="AsyncCollectiveStart"',
    'custom_call_target="AsyncCollectiveDone"',
)
_OTHER_CORE: Lane = ("another core", "")
# What only moves data between the memories of a chip, what may hold a collective, and what goes on
# with something that was started.
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_HOLDERS = ("fusion", "call", "call-start", "async-start")
_UPDATES = ("call-update", "async-update")


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
        updates = (i for i in module.instructions.values() if i.opcode in _UPDATES)
        self._updated = {name for i in updates for name in i.operands[:1]}

    def of(self, computation: str) -> list[Step]:
        """In the order of the schedule, without what takes no time and what is not understood."""
        if computation not in self._known:
            read = self.module.read
            found = self.module.computations.get(computation, [])
            steps = [read(i, partial(self._step, computation, i), None) for i in found]
            self._known[computation] = [step for step in steps if step is not None]
        return self._known[computation]

    def _step(self, computation: str, i: Instruction) -> Step | None:
        if is_unknown(i):
            raise ValueError(f"{i.opcode} is a collective that is not known")
        if i.opcode == "while":
            return self._loop(i)
        if i.opcode in ("call", "conditional"):
            bodies = tuple(self.module.called(i))
            if not bodies:
                raise LookupError(f"%{i.name} runs nothing")
            return Step("call" if i.opcode == "call" else "branch", i.name, i.scope, bodies=bodies)
        if i.opcode.endswith("-done"):
            return Step("done", i.name, i.scope, key=self._key(*self._started(computation, i)))
        if i.opcode in _UPDATES:
            return self._handing_over(computation, i)
        if operation_of(i) or i.opcode.endswith("-start") or i.opcode == "fusion":
            return None if self._waits(i) else self._moving(computation, i)
        return self._computing(i)

    def _loop(self, i: Instruction) -> Step:
        turns = self.module.trip_count(i)
        if turns is None:
            self.module.unread.add("length of a while", repr(i), f"length of {i.name}")
        body = self.module.named(i, "body")
        return Step("loop", i.name, i.scope, bodies=(body,), turns=1 if turns is None else turns)

    def _waits(self, i: Instruction) -> bool:
        """Whether it is a start without operands, to which an update hands them over."""
        if i.operands or not i.opcode.endswith("-start"):
            return False
        inside = [one for name in self.module.called(i) for one in self.module.computations[name]]
        if not any(one.opcode == "parameter" for one in inside):
            return False
        if i.name not in self._updated:
            raise LookupError(f"nothing hands %{i.name} its operands")
        return True

    def _handing_over(self, computation: str, update: Instruction) -> Step | None:
        """What an update starts: that whose operands it hands over, if it does."""
        holder, start = self._started(computation, update)
        return self._moving(holder, start) if self._waits(start) else None

    def _computing(self, i: Instruction) -> Step | None:
        seconds = instruction_time.seconds(self.module, i, self.chip)
        return Step("compute", i.name, i.scope, seconds) if seconds else None

    def _moving(self, computation: str, i: Instruction) -> Step | None:
        """A collective, a copy, what another core does, or a fusion that may hold a collective."""
        holder, inside = self._inside(computation, i)
        if inside is None:
            return self._computing(i) if i.opcode == "fusion" else self._meanwhile(i)
        within = self.module.computations[holder]
        chain = _chain(inside)
        seconds = (
            instruction_time.seconds(self.module, i, self.chip)
            if i.opcode == "fusion" and i.cycles is not None
            else 0.0
        )
        if chain and holder != computation:
            if any(_ENDS in one.attributes for one in within):
                return Step("done", i.name, i.scope, seconds, key=chain)
            if not any(_STARTS in one.attributes for one in within):
                return self._computing(i)
        parts = tuple(
            part if part.scope else replace(part, scope=i.scope)
            for part in collectives_of(self.module, holder, inside, self.axis_sizes)
        )
        if not parts:
            return self._computing(i) if i.opcode == "fusion" else None
        moves = replace(
            max(parts, key=lambda part: part.bytes), bytes=sum(part.bytes for part in parts)
        )
        lanes = lanes_of(moves, self.network, direction_of(inside, moves.axes, self.axis_sizes))
        link_seconds = self.network.seconds(moves.operation, moves.axes, moves.bytes)
        asynchronous = bool(chain and holder != computation) or i.opcode.endswith("-start")
        key = chain if chain and holder != computation else i.name
        return Step(
            "start" if asynchronous else "sync",
            i.name,
            moves.scope,
            seconds,
            moves,
            parts,
            lanes,
            link_seconds,
            key,
        )

    def _meanwhile(self, i: Instruction) -> Step | None:
        """A copy, or what another core computes while this one goes on."""
        if not i.opcode.endswith("-start"):
            return None
        if i.opcode in _COPIES:
            lane, seconds = COPIES, self._copy_seconds(i)
        else:
            (called,) = self.module.called(i)
            lane, seconds = _OTHER_CORE, self._alone(called)
        return Step("start", i.name, i.scope, lanes=(lane,), link_seconds=seconds, key=i.name)

    def _alone(self, computation: str) -> float:
        """Of a computation on another core, one step after the other."""
        seconds = 0.0
        for step in self.of(computation):
            bodies = [self._alone(body) for body in step.bodies] or [0.0]
            within = max(bodies) if step.what == "branch" else math.fsum(bodies)
            seconds += step.seconds + step.link_seconds + step.turns * within
        return seconds

    def _inside(self, computation: str, i: Instruction) -> tuple[str, Instruction | None]:
        """The collective that an instruction is or runs, and the computation that it stands in."""
        if operation_of(i) is not None:
            return computation, i
        for called in self.module.called(i):
            for one in self.module.computations[called]:
                if operation_of(one) is None and one.opcode not in _HOLDERS:
                    continue
                within = partial(self._inside, called, one)
                holder, found = self.module.read(one, within, (called, None))
                if found is not None:
                    return holder, found
        return computation, None

    def _copy_seconds(self, i: Instruction) -> float:
        """Of a copy between memories, whole or of a slice: what it moves, for each of its ends that lies in HBM."""
        operands = [array for one in self.module.operands(i) for array in one.results]
        # `(result, operand, context)` of a copy, `((operands), results, context)` of everything else
        target = i.results[0] if i.opcode == "copy-start" else i.results[len(operands)]
        moved = operands[1] if "update" in i.opcode else target
        ends = sum(array.memory != ON_CHIP for array in (operands[0], target))
        return moved.bytes * ends / (self.chip.hbm_bandwidth * self.chip.hbm_efficiency)

    def _started(self, computation: str, i: Instruction) -> tuple[str, Instruction]:
        """The start that a done or an update belongs to, and the computation that it stands in.

        It is looked for through the loop that carries it, and through updates.
        """
        i = self.module.operands(i)[0]
        seen = set()
        while i.name not in seen and (
            i.opcode == "get-tuple-element" or i.opcode.endswith("-update")
        ):
            seen.add(i.name)
            source = self.module.operands(i)[0]
            if i.opcode.endswith("-update"):
                i = source
                continue
            position = int(re.search(r"index=(\d+)", i.attributes)[1])
            if source.opcode == "parameter":
                carried = self.module.root(computation)
            elif source.opcode == "while":
                computation = self.module.named(source, "body")
                carried = self.module.root(computation)
            else:
                carried = source
            if carried.opcode != "tuple":
                break
            i = self.module.operands(carried)[position]
        return computation, i

    def _key(self, computation: str, i: Instruction) -> str:
        """The name of the event that a start sets."""
        _, inside = self._inside(computation, i) if i.opcode == "fusion" else (computation, None)
        return (_chain(inside) if inside is not None else "") or i.name


def _chain(collective: Instruction) -> str:
    """The chain of fusions over which the TPU compiler spreads a collective; empty where it doesn't."""
    found = re.search(r'chain_id="?([\w.\-]+)', collective.attributes)
    return f"chain {found[1]}" if found else ""
