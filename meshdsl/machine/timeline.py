"""The timeline of one step on a device, from the actions that the device does one after the other.

The compute stream does the actions in their order. A collective that is synchronous holds it for
the time that its axes' links take. One that is started runs on its links meanwhile, after those
that were started before it, and the compute stream waits where its result is needed. Copies between
the memories of a chip run likewise on a stream of their own, and so does what is given to another
core. The approach is that of Jia et al., *Beyond data and model parallelism*, 2019.

Loops run their body twice, because what is started in one turn may still be under way in the next;
all further turns take as long as the second.

The actions come from an estimate (`meshdsl.predict.time`), or from the schedule of a compiled
program (`meshdsl.predict.compiler.replay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshdsl.machine.network import Network
from meshdsl.program.collective import Collective, phase_in_step
from meshdsl.program.recorder import tag_in

# A lane is one direction of the links of a mesh axis, or the copies between the memories of a chip.
# Each lane serves first come, first served.
Lane = tuple[str, str]
COPIES: Lane = ("copies", "")
FUSED = "fused"  # how the work of a fused kernel begins
BETWEEN_SLICES = "between slices"  # how the keys of exchanges between slices begin


@dataclass(frozen=True)
class Span:
    """A bar in the timeline of a step.

    Attributes:
      stream: `compute`, `loops` for a whole loop, or the axes of a collective: `data, model`.
      name: of the primitive or instruction.
      start: seconds from the start of the step.
      end: seconds from the start of the step.
      phase: one of `predict.explanation.PHASES`.
      tag: of the op; empty if it belongs to none.
      repeats: how often it runs. What stands in a loop is shown for the first turn alone.
    """

    stream: str
    name: str
    start: float
    end: float
    phase: str
    tag: str = ""
    repeats: int = 1


@dataclass(slots=True)
class Action:
    """What a device does at one place of its program.

    Attributes:
      what: `compute`; `start`: a collective or a copy begins; `sync`: a collective begins and is
        waited for; `done`: what was started is waited for; `loop`, `call`, `branch`.
      name, scope: of the instruction or the kernel.
      seconds: of computing.
      moves: the collective; None for a copy and for all that moves nothing. `parts` has one for
        each of its operands.
      lanes: the lanes on which it runs, and `link_seconds` how long it takes there.
      key: the name of the event that a start sets and a done waits for.
      needs: keys of events whose results it needs: a start begins when they are there, and for any
        other action the compute stream waits for them first.
      alone: a start that the compute stream holds back until what was started alone before it is
        finished.
      bodies: the blocks of actions that it runs; a `loop` has one and runs it `turns` times.
      work: what it computes, with a word for the kind first: `product bfloat16 8x128x64x256`.
        Equal work takes equally long. Of a fused kernel that states its FLOPs the word is `fused`;
        empty where nothing asks what it computes.
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
    needs: tuple[str, ...] = ()
    alone: bool = False
    bodies: tuple[Any, ...] = ()
    turns: int = 1
    work: str = ""


@dataclass(frozen=True)
class Ran:
    """A collective of the program, all its executions in one step.

    Attributes:
      collective: what it moves; where the compiler combined several, the largest of them with the
        bytes of all.
      parts: one for each operand, each with its own bytes.
      asynchronous: whether it runs while the device computes.
      seconds: of all executions, alone on the links.
      exposed: the part of `seconds` in which the compute stream waits for it.
      name: of the instruction or the kernel.
    """

    collective: Collective
    parts: tuple[Collective, ...]
    asynchronous: bool
    seconds: float
    exposed: float
    name: str

    @property
    def scope(self) -> str:
        """The JAX name stack that it was traced in."""
        return self.collective.scope


@dataclass(frozen=True)
class Timeline:
    """One step, in seconds.

    Attributes:
      step: from start to end.
      compute: of the compute stream, without waiting.
      work: the parts of `compute`, by the `work` of its actions.
      communication: of the collectives over each combination of axes, one after the other.
      exposed: in which the compute stream waits for a collective, or for what hosts exchange
        between slices.
      copies: in which it waits for copies between the memories of the chip, and for another core.
      collectives: in the order in which they run.
      spans: with the body of each loop once.
    """

    step: float
    compute: float
    work: dict[str, float]
    communication: dict[tuple[str, ...], float]
    exposed: float
    copies: float
    collectives: tuple[Ran, ...]
    spans: tuple[Span, ...]

    @property
    def fused(self) -> float:
        """The part of `compute` in fused kernels, whose speed is assumed."""
        return math.fsum(n for work, n in self.work.items() if work.partition(" ")[0] == FUSED)


def timeline(actions: Callable[[Any], Sequence[Action]], entry: Any) -> Timeline:
    """The timeline of a step.

    Args:
      actions: those of a block, by its name, in the order in which the device does them.
      entry: the name of the block that is the whole step.
    """
    device = _Device(actions)
    device.execute(entry, 1, 1)
    ran = [one.ran() for one in device.counts.values()]
    communication: dict[tuple[str, ...], float] = {}
    for one in ran:
        axes = one.collective.axes
        communication[axes] = communication.get(axes, 0.0) + one.seconds
    return Timeline(
        step=device.now,
        compute=device.computed,
        work=device.work,
        communication=communication,
        exposed=sum(one.exposed for one in ran) + device.between_slices,
        copies=device.copies,
        collectives=tuple(ran),
        spans=tuple(device.spans),
    )


@dataclass
class _Count:
    """The executions of a collective so far."""

    action: Action
    count: int = 0
    exposed: float = 0.0

    def ran(self) -> Ran:
        action, count = self.action, self.count
        assert action.moves is not None
        return Ran(
            collective=replace(action.moves, count=count),
            parts=tuple(replace(part, count=count) for part in action.parts),
            asynchronous=action.what == "start",
            seconds=action.link_seconds * count,
            exposed=self.exposed,
            name=action.name,
        )


@dataclass
class _Device:
    """A device that does actions, and what is counted of it; see `Timeline`.

    Its methods take with an action its `weight`, how many executions it stands for, and `repeats`,
    the number that the timeline shows for it; 0 keeps it off the timeline.

    Attributes:
      now: seconds from the start, until which the compute stream is busy.
      lanes: for each lane, the moment until which it is busy.
      events: for each key that something was started under, the moment at which it is finished.
    """

    actions: Callable[[Any], Sequence[Action]]
    now: float = 0.0
    lanes: dict[Lane, float] = field(default_factory=dict)
    events: dict[str, float] = field(default_factory=dict)
    counts: dict[str, _Count] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    computed: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    copies: float = 0.0
    between_slices: float = 0.0
    _alone: str = ""  # the key of what was last started alone
    _under_way: dict[str, tuple[Lane, ...]] = field(default_factory=dict)

    def execute(self, block: Any, weight: int, repeats: int) -> None:
        """Do the actions of a block once, and count them `weight` times."""
        methods = {
            "compute": self._compute,
            "start": self._start,
            "sync": self._sync,
            "done": self._done,
            "loop": self._repeat,
            "call": self._call,
            "branch": self._branch,
        }
        for action in self.actions(block):
            if action.needs and action.what != "start":
                for key in action.needs:
                    self._wait_for(key, weight)
            methods[action.what](action, weight, repeats)

    def _compute(self, action: Action, weight: int, repeats: int) -> None:
        start, self.now = self.now, self.now + action.seconds
        self.computed += action.seconds * weight
        self.work[action.work] = self.work.get(action.work, 0.0) + action.seconds * weight
        self._show("compute", action, start, self.now, repeats)

    def _start(self, action: Action, weight: int, repeats: int) -> None:
        """Move data as soon as its lanes are free, while the compute stream goes on."""
        if action.seconds:
            self._compute(action, weight, repeats)
        if action.alone:
            self._wait_for(self._alone, weight)
            self._alone = action.key
        needed = (self.events.get(key, 0.0) for key in action.needs)
        free = (self.lanes.get(lane, 0.0) for lane in action.lanes)
        start = max(self.now, *needed, *free, 0.0)
        end = start + action.link_seconds
        self.lanes.update(dict.fromkeys(action.lanes, end))
        self.events[action.key] = end
        self._under_way[action.key] = action.lanes
        if action.moves is not None:
            self._count(action).count += weight
            self._show(stream_of(action.moves), action, start, end, repeats)

    def _sync(self, action: Action, weight: int, repeats: int) -> None:
        """Move data at once, while the compute stream waits.

        What is under way on these lanes shares them, and finishes that much later.
        """
        assert action.moves is not None  # a copy is always asynchronous
        start, end = self.now, self.now + action.link_seconds
        self._under_way = {
            key: lanes for key, lanes in self._under_way.items() if self.events[key] > start
        }
        for key, lanes in self._under_way.items():
            if not set(lanes).isdisjoint(action.lanes):
                self.events[key] += action.link_seconds
        for lane in action.lanes:
            self.lanes[lane] = max(self.lanes.get(lane, 0.0), start) + action.link_seconds
        self.now = end
        count = self._count(action)
        count.count += weight
        count.exposed += action.link_seconds * weight
        self._show(stream_of(action.moves), action, start, end, repeats)
        if action.seconds:
            self._compute(action, weight, repeats)

    def _done(self, action: Action, weight: int, repeats: int) -> None:
        self._wait_for(action.key, weight)
        if action.seconds:
            self._compute(action, weight, repeats)

    def _wait_for(self, key: str, weight: int) -> None:
        """Let the compute stream wait for what was started under a key."""
        waited = max(self.events.get(key, 0.0) - self.now, 0.0)
        self.now += waited
        if key in self.counts:
            self.counts[key].exposed += waited * weight
        elif key.startswith(BETWEEN_SLICES):
            self.between_slices += waited * weight
        else:
            self.copies += waited * weight

    def _repeat(self, action: Action, weight: int, repeats: int) -> None:
        begin = self.now
        (body,) = action.bodies
        if action.turns:
            self.execute(body, weight, repeats * action.turns)
        if action.turns > 1:
            second = self.now
            self.execute(body, weight * (action.turns - 1), 0)
            # All further turns: what happened before goes on for so much longer.
            further = (action.turns - 2) * (self.now - second)
            self.now += further
            self.lanes = {lane: end + further for lane, end in self.lanes.items()}
            self.events = {key: end + further for key, end in self.events.items()}
        self._show("loops", action, begin, self.now, repeats)

    def _call(self, action: Action, weight: int, repeats: int) -> None:
        for body in action.bodies:
            self.execute(body, weight, repeats)

    def _branch(self, action: Action, weight: int, repeats: int) -> None:
        """Execute the longest branch: other devices wait for one that takes it."""

        def seconds(body: Any) -> float:
            alone = _Device(self.actions)
            alone.execute(body, 1, 0)
            return max([alone.now, *alone.events.values()])

        self.execute(max(action.bodies, key=seconds), weight, repeats)

    def _count(self, action: Action) -> _Count:
        return self.counts.setdefault(action.key, _Count(action))

    def _show(self, stream: str, action: Action, start: float, end: float, repeats: int) -> None:
        """Put the action on the timeline, unless it takes no time or is one of further turns."""
        if repeats and end > start:
            phase, tag = phase_in_step(action.scope), tag_in(action.scope) or ""
            self.spans.append(Span(stream, action.name, start, end, phase, tag, repeats))


def lanes_of(collective: Collective, network: Network, directions: str = "+-") -> tuple[Lane, ...]:
    """The lanes that a collective occupies.

    On a torus these are the links of its axes, one lane for each direction. A switch, and what
    joins slices or nodes, is one lane that all axes share.

    Args:
      directions: `+` or `-` for a shift in one direction; everything else takes both.
    """
    kinds = [level.kind for level in network.axes(collective.axes).levels]
    shared = tuple((kind, "") for kind in kinds if kind != "torus")
    if "torus" not in kinds:
        return shared
    links = ((axis, direction) for axis in collective.axes for direction in directions)
    return (*shared, *links)


def stream_of(collective: Collective) -> str:
    """The name of the stream that shows a collective in a timeline: `data, model`."""
    return ", ".join(collective.axes)
