"""How long each instruction ran on a device in one call, so that no moment counts twice.

Events overlap: that of a loop contains those of its body, a thread waits for a collective while
another one computes, and a copy runs beside both. So each moment belongs to one instruction, or is
shared by several that compute at once:

1. to what computes, if anything does;
2. else to a collective or a copy that is under way: this is *exposed* time, in which the device
   waits for it;
3. else to the innermost loop, call or branch: what it takes beside its body.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshdsl.predict.compiler.collectives import operation_of
from meshdsl.predict.compiler.hlo_text import Instruction, Module
from meshdsl.predict.compiler.parts import started
from meshdsl.predict.ledger.trace import Call, Event

# What runs other computations, whose instructions have events of their own.
AROUND = ("while", "call", "conditional")
_COMPUTES, _MOVES, _CONTAINS = range(3)


@dataclass
class Took:
    """What an instruction took of a device in one call, in nanoseconds.

    Attributes:
      own: the moments that belong to it.
      running: all of the time that it was under way.
      waiting: the part of `running` by which it is longer than on the fastest device, of which a
        collective is a wait for the others.
      count: how often it ran.
    """

    own: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class Measured:
    """One call of the program.

    Attributes:
      seconds: from when the first device begins until the last one ends.
      took: for each device and instruction.
    """

    seconds: float
    took: Mapping[str, Mapping[str, Took]]


def measured(call: Call, module: Module) -> Measured:
    """What each instruction took in one call of `module` on each device."""
    took = {device: _self_times(events, module) for device, events in call.items()}
    _note_waiting(call, took, module)
    starts = [event.start for events in call.values() for event in events]
    ends = [event.end for events in call.values() for event in events]
    return Measured((max(ends) - min(starts)) * 1e-9, took)


def started_by(module: Module, name: str) -> str:
    """The instruction that started what the instruction called `name` ends; else `name`."""
    i = module.instructions[name]
    if not i.opcode.endswith(("-done", "-update")):
        return name
    return module.read(i, lambda: started(module, i.computation, i)[1].name, name)


def _kind(i: Instruction) -> int:
    if i.opcode in AROUND:
        return _CONTAINS
    moves = operation_of(i) is not None or i.opcode.endswith(("-start", "-done", "-update"))
    return _MOVES if moves else _COMPUTES


def _self_times(events: Sequence[Event], module: Module) -> dict[str, Took]:
    """What one device's instructions took, by the name of the one that started each."""
    took: dict[str, Took] = defaultdict(Took)
    kinds = [_kind(module.instructions[event.instruction]) for event in events]
    owners = [started_by(module, event.instruction) for event in events]
    moments = []
    for n, event in enumerate(events):
        took[owners[n]].running += event.end - event.start
        if event.end > event.start:
            moments += [(event.start, True, n), (event.end, False, n)]
    _count(events, owners, took)
    active: tuple[dict[int, None], ...] = ({}, {}, {})  # by kind, the latest last
    before = 0.0
    for at, begins, n in sorted(moments, key=lambda moment: moment[:2]):
        if (span := at - before) and (shared := next(filter(None, active), None)):
            holders = [next(reversed(shared))] if shared is active[_CONTAINS] else list(shared)
            for one in holders:
                took[owners[one]].own += span / len(holders)
        before = at
        if begins:
            active[kinds[n]][n] = None
        else:
            del active[kinds[n]][n]
    return dict(took)


def _count(events: Sequence[Event], owners: Sequence[str], took: Mapping[str, Took]) -> None:
    """Count how often each instruction ran.

    An execution may have an event where it is started, one where it is under way and one where it
    ends, or only some of these. So the least frequent name that there is counts.
    """
    names: dict[str, Counter[str]] = defaultdict(Counter)
    for event, owner in zip(events, owners, strict=True):
        names[owner][event.instruction] += 1
    for owner, counted in names.items():
        took[owner].count = min(counted.values())


def _note_waiting(call: Call, took: Mapping[str, dict[str, Took]], module: Module) -> None:
    """Note how much longer each execution of a collective took than on the fastest device."""
    lasted: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for device, events in call.items():
        for event in events:
            if operation_of(module.instructions[event.instruction]) is not None:
                each = lasted[event.instruction].setdefault(device, [])
                each.append(event.end - event.start)
    for name, by_device in lasted.items():
        if len(by_device) < len(call) or len(set(map(len, by_device.values()))) > 1:
            continue  # some devices do not run it
        fastest = [min(times) for times in zip(*by_device.values(), strict=True)]
        for device, times in by_device.items():
            waits = sum(times) - sum(fastest)
            took[device][started_by(module, name)].waiting += waits
