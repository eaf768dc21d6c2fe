"""The time of one step of a compiled program, by replaying the compiler's schedule.

What a device does for each instruction is an `Action`, and `machine.timeline` does these one after
the other. What is not understood takes no time, and is counted in `Module.unread`.

For most instructions it computes. Some start a collective or a copy, some wait for what was
started, and some run other computations: loops, calls and branches. `instruction_time` says how
long computing takes, `collectives` what is moved, and the network how long that takes.

Compilers write an asynchronous collective in several ways: as a pair `all-gather-start` and
`all-gather-done`; as an `async-start` or `call-start` of a computation that holds it, for another
core; and as a chain of fusions that compute meanwhile, each with a copy of it, of which the first
starts it and the last waits. Another core may compute too. Since libtpu 0.0.50 the start of what it
does may come before the operands are there; an update hands them over, and it runs from that
moment.

Between slices the hosts of TPUs exchange what `send` hands them; `recv-done` waits for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from meshdsl.machine import Chip, Network
from meshdsl.machine.timeline import (
    BETWEEN_SLICES,
    COPIES,
    FUSED,
    Action,
    Lane,
    Timeline,
    lanes_of,
    timeline,
)
from meshdsl.predict.compiler import instruction_time
from meshdsl.predict.compiler.collectives import (
    collectives_of,
    direction_of,
    is_unknown,
    operation_of,
)
from meshdsl.predict.compiler.hlo_text import ON_CHIP, Instruction, Module
from meshdsl.predict.compiler.parts import collective_inside, started

_STARTS, _ENDS = (
    'custom_call_target="AsyncCollectiveStart"',
    'custom_call_target="AsyncCollectiveDone"',
)
_CHAIN = re.compile(r'chain_id="?([\w.\-]+)')
_OTHER_CORE: Lane = ("another core", "")
# What hosts exchange, by the names that libtpu has for it; an exchange has one name for all hosts.
EXCHANGES = {
    "ONE_TO_ONE": "ppermute",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "psum_scatter",
    "ALL_REDUCE": "psum",
    "ALL_TO_ALL": "all_to_all",
}
EXCHANGE = re.compile(r'_xla_megascale_transfer_type="?(\w+)')
_NAME_OF_EXCHANGE = re.compile(r'_xla_host_transfer_rendezvous="?([\w.\-]+)')
_BETWEEN_SLICES = re.compile(r"\{(\d+)->(\d+)\}")
# What only moves data between the memories of a chip, and what goes on with something that was
# started.
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_UPDATES = ("call-update", "async-update")


def replay(
    text: str | Module, chip: Chip, network: Network, axis_sizes: Mapping[str, int]
) -> Timeline:
    """The time of one step of a compiled program.

    Args:
      text: `compiled.as_text()`, or a `Module` of it, in which what could not be read is counted.
      chip: what computes.
      network: how long a collective takes: `network.seconds(operation, axes, bytes)`.
      axis_sizes: the mesh, `{axis: size}`. Device n of the program is the n-th of the mesh.
    """
    module = text if isinstance(text, Module) else Module(text)
    return timeline(Actions(module, chip, network, dict(axis_sizes)).of, module.entry)


class Actions:
    """The actions of each computation of a program on a machine, found when they are asked for.

    Args:
      module: the program.
      chip: what computes.
      network: what the mesh's axes are laid on.
      axis_sizes: the mesh, `{axis: size}`.
    """

    def __init__(self, module: Module, chip: Chip, network: Network, axis_sizes: Mapping[str, int]):
        self.module, self.chip, self.network, self.axis_sizes = module, chip, network, axis_sizes
        self._known: dict[str, list[Action]] = {}
        updates = (i for i in module.instructions.values() if i.opcode in _UPDATES)
        self._updated = {name for i in updates for name in i.operands[:1]}

    def of(self, computation: str) -> list[Action]:
        """The actions of a computation, in the order of the schedule.

        What takes no time is left out, and so is what is not understood.
        """
        if computation not in self._known:
            read = self.module.read
            found = self.module.computations.get(computation, [])
            actions = [read(i, partial(self._action, computation, i), None) for i in found]
            self._known[computation] = [action for action in actions if action is not None]
        return self._known[computation]

    def _action(self, computation: str, i: Instruction) -> Action | None:
        """What the device does for `i`; None where that takes no time.

        Raises:
          ValueError, LookupError and others of `STRANGE`: the instruction is not understood.
        """
        if is_unknown(i):
            raise ValueError(f"{i.opcode} is a collective that is not known")
        if i.opcode == "while":
            return self._repeating(i)
        if i.opcode in ("call", "conditional"):
            bodies = tuple(self.module.called(i))
            if not bodies:
                raise LookupError(f"%{i.name} runs nothing")
            what = "call" if i.opcode == "call" else "branch"
            return Action(what, i.name, i.scope, bodies=bodies)
        if i.opcode in ("send", "recv"):
            return self._exchanging(i) if i.opcode == "send" else None
        if i.opcode == "recv-done" and (name := _exchange(self.module.operands(i)[0])):
            return Action("done", i.name, i.scope, key=name)
        if i.opcode.endswith("-done"):
            return Action(
                "done", i.name, i.scope, key=self._key(*started(self.module, computation, i))
            )
        if i.opcode in _UPDATES:
            return self._handing_over(computation, i)
        if operation_of(i) or i.opcode.endswith("-start") or i.opcode == "fusion":
            return None if self._awaits_operands(i) else self._moving(computation, i)
        return self._computing(i)

    def _exchanging(self, i: Instruction) -> Action | None:
        """What hosts begin to exchange between slices; None for what a host keeps to itself."""
        kind, name = EXCHANGE.search(i.attributes), _exchange(i)
        if kind is None or not name:
            return None
        received = (one for one in self.module.instructions.values() if one.opcode == "recv")
        ends = [i, *(one for one in received if _exchange(one) == name)]
        size = max(one.results[0].bytes for one in ends)
        seconds = self.network.between_slices(EXCHANGES[kind[1]], size)
        lanes: tuple[Lane, ...] = (("slices", "+"), ("slices", "-"))
        pairs = _BETWEEN_SLICES.findall(i.attributes)
        directions = {int(target) > int(source) for source, target in pairs}
        if len(directions) == 1:
            lanes = lanes[:1] if directions == {True} else lanes[1:]
        return Action("start", i.name, i.scope, lanes=lanes, link_seconds=seconds, key=name)

    def _repeating(self, i: Instruction) -> Action:
        turns = self.module.trip_count(i)
        if turns is None:
            self.module.unread.add("length of a while", repr(i), f"length of {i.name}")
        body = self.module.named(i, "body")
        return Action("loop", i.name, i.scope, bodies=(body,), turns=1 if turns is None else turns)

    def _awaits_operands(self, i: Instruction) -> bool:
        """Whether it is a start without operands, to which an update hands them over."""
        if i.operands or not i.opcode.endswith("-start"):
            return False
        inside = [one for name in self.module.called(i) for one in self.module.computations[name]]
        if not any(one.opcode == "parameter" for one in inside):
            return False
        if i.name not in self._updated:
            raise LookupError(f"nothing hands %{i.name} its operands")
        return True

    def _handing_over(self, computation: str, update: Instruction) -> Action | None:
        """What begins with an update: the start that got its operands from it, if one did."""
        holder, start = started(self.module, computation, update)
        return self._moving(holder, start) if self._awaits_operands(start) else None

    def _computing(self, i: Instruction) -> Action | None:
        seconds = instruction_time.seconds(self.module, i, self.chip)
        stated = instruction_time.stated_flops(i)
        work = "" if stated is None or stated.grouped else FUSED
        return Action("compute", i.name, i.scope, seconds, work=work) if seconds else None

    def _moving(self, computation: str, i: Instruction) -> Action | None:
        """Of a collective, a copy, another core's work, or a fusion that may hold a collective."""
        holder, inside = collective_inside(self.module, computation, i)
        if inside is None:
            return self._computing(i) if i.opcode == "fusion" else self._meanwhile(i)
        chain = _chain(inside) if holder != computation else ""
        timed = i.opcode == "fusion" and i.cycles is not None
        seconds = instruction_time.seconds(self.module, i, self.chip) if timed else 0.0
        if chain:
            within = self.module.computations[holder]
            if any(_ENDS in one.attributes for one in within):
                return Action("done", i.name, i.scope, seconds, key=chain)
            if not any(_STARTS in one.attributes for one in within):
                return self._computing(i)
        parts = tuple(
            part if part.scope else replace(part, scope=i.scope)
            for part in collectives_of(self.module, holder, inside, self.axis_sizes)
        )
        if not parts:
            return self._computing(i) if i.opcode == "fusion" else None
        largest = max(parts, key=lambda part: part.bytes)
        moves = replace(largest, bytes=sum(part.bytes for part in parts))
        direction = direction_of(inside, moves.axes, self.axis_sizes)
        return Action(
            what="start" if chain or i.opcode.endswith("-start") else "sync",
            name=i.name,
            scope=moves.scope,
            seconds=seconds,
            moves=moves,
            parts=parts,
            lanes=lanes_of(moves, self.network, direction),
            link_seconds=self.network.seconds(moves.operation, moves.axes, moves.bytes),
            key=chain or i.name,
        )

    def _meanwhile(self, i: Instruction) -> Action | None:
        """A copy, or what another core computes while this one goes on."""
        if not i.opcode.endswith("-start"):
            return None
        if i.opcode in _COPIES:
            lane, seconds = COPIES, self._copy_seconds(i)
        else:
            (called,) = self.module.called(i)
            lane, seconds = _OTHER_CORE, self._serial_seconds(called)
        return Action("start", i.name, i.scope, lanes=(lane,), link_seconds=seconds, key=i.name)

    def _serial_seconds(self, computation: str) -> float:
        """How long a computation takes with one action after the other, as on another core."""
        seconds = 0.0
        for action in self.of(computation):
            bodies = [self._serial_seconds(body) for body in action.bodies] or [0.0]
            within = max(bodies) if action.what == "branch" else math.fsum(bodies)
            seconds += action.seconds + action.link_seconds + action.turns * within
        return seconds

    def _copy_seconds(self, i: Instruction) -> float:
        """How long a copy between memories takes, of a whole array or of a slice.

        What it moves counts once for each of its ends that lies in HBM.
        """
        operands = [array for one in self.module.operands(i) for array in one.results]
        # A copy gives `(result, operand, context)`, everything else `((operands), results,
        # context)`.
        target = i.results[0] if i.opcode == "copy-start" else i.results[len(operands)]
        moved = operands[1] if "update" in i.opcode else target
        ends = sum(array.memory != ON_CHIP for array in (operands[0], target))
        return moved.bytes * ends / (self.chip.hbm_bandwidth * self.chip.hbm_efficiency)

    def _key(self, computation: str, i: Instruction) -> str:
        """The name of the event that a start sets."""
        _, inside = (
            collective_inside(self.module, computation, i)
            if i.opcode == "fusion"
            else (computation, None)
        )
        return (_chain(inside) if inside is not None else "") or i.name


def _exchange(i: Instruction) -> str:
    """The name of what hosts exchange by a `send` or a `recv`; empty where it has none."""
    found = _NAME_OF_EXCHANGE.search(i.attributes)
    return f"{BETWEEN_SLICES} {found[1]}" if found else ""


def _chain(collective: Instruction) -> str:
    """The chain of fusions over which the TPU compiler spreads a collective; empty without one."""
    found = _CHAIN.search(collective.attributes)
    return f"chain {found[1]}" if found else ""
