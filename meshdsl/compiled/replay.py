"""The time of one step of a compiled program, by replaying the compiler's schedule.

The compute stream does the actions of the program in the order of the schedule (`actions` says what
each is and takes). A collective that the compiler left synchronous holds it for the time that its
axes' links take. One with a start and a done runs on its links meanwhile, after those that were
started before it, and the compute stream waits at the done if it isn't finished. Copies between the
memories of a chip run likewise on a stream of their own, and so does what the compiler gives to
another core. What is not understood takes no time, and is counted in `Module.unread`.

Loops run their body twice, as what is started in one turn may still be under way in the next; all
further turns take as long as the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshdsl.compiled.actions import BETWEEN_SLICES, Action, Actions
from meshdsl.compiled.hlo_text import Module
from meshdsl.estimate.explanation import Span
from meshdsl.machine import Chip, Network
from meshdsl.machine.streams import Streams, stream_of
from meshdsl.record.collective import Collective, phase_in_step
from meshdsl.record.recorder import tag_in


@dataclass(frozen=True)
class Ran:
    """A collective instruction of the compiled program, all its executions in one step.

    Attributes:
      collective: what it moves; where the compiler combined several, the largest of them with the
        bytes of all.
      parts: one for each operand, each with its own bytes.
      asynchronous: whether it runs while the device computes.
      seconds: of all executions, alone on the links.
      exposed: the part of `seconds` in which the compute stream waits for it.
      name: of the instruction.
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
class Replay:
    """One step, in seconds.

    Attributes:
      step: from start to end.
      compute: of the compute stream, without waiting.
      fused: the part of `compute` in fused kernels, whose speed is assumed.
      communication: of the collectives over each combination of axes, one after the other.
      exposed: in which the compute stream waits for a collective, or for what hosts exchange
        between slices.
      copies: in which it waits for copies between the memories of the chip, and for another core.
      collectives: in the order of the schedule.
      spans: the timeline, with the body of each loop once.
    """

    step: float
    compute: float
    fused: float
    communication: dict[tuple[str, ...], float]
    exposed: float
    copies: float
    collectives: tuple[Ran, ...]
    spans: tuple[Span, ...]


def replay(
    text: str | Module, chip: Chip, network: Network, axis_sizes: Mapping[str, int]
) -> Replay:
    """The time of one step of a compiled program.

    Args:
      text: `compiled.as_text()`, or a `Module` of it, in which what could not be read is counted.
      chip: what computes.
      network: how long a collective takes: `network.seconds(operation, axes, bytes)`.
      axis_sizes: the mesh, `{axis: size}`. Device n of the program is the n-th of the mesh.
    """
    module = text if isinstance(text, Module) else Module(text)
    device = _Device(Actions(module, chip, network, dict(axis_sizes)))
    device.execute(module.entry, 1, 1)
    communication: dict[tuple[str, ...], float] = {}
    for ran in device.ran.values():
        axes = ran.collective.axes
        communication[axes] = communication.get(axes, 0.0) + ran.seconds
    return Replay(
        step=device.streams.now,
        compute=device.computed,
        fused=device.fused,
        communication=communication,
        exposed=sum(ran.exposed for ran in device.ran.values()) + device.between_slices,
        copies=device.copies,
        collectives=tuple(device.ran.values()),
        spans=tuple(device.spans),
    )


@dataclass
class _Device:
    """A device that executes a program, and what is counted of it; see `Replay`.

    Its methods take with an action its `weight`, how many executions it stands for, and `repeats`,
    the number that the timeline shows for it; 0 keeps it off the timeline.
    """

    actions: Actions
    streams: Streams = field(default_factory=Streams)
    ran: dict[str, Ran] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    computed: float = 0.0
    fused: float = 0.0
    copies: float = 0.0
    between_slices: float = 0.0

    def execute(self, computation: str, weight: int, repeats: int) -> None:
        """Do the actions of a computation once, and count them `weight` times."""
        methods = {
            "compute": self._compute,
            "start": self._start,
            "sync": self._sync,
            "done": self._done,
            "loop": self._repeat,
            "call": self._call,
            "branch": self._branch,
        }
        for action in self.actions.of(computation):
            methods[action.what](action, weight, repeats)

    def _compute(self, action: Action, weight: int, repeats: int) -> None:
        start, end = self.streams.compute(action.seconds)
        self.computed += action.seconds * weight
        self.fused += action.seconds * weight * action.fused
        self._show("compute", action, start, end, repeats)

    def _start(self, action: Action, weight: int, repeats: int) -> None:
        if action.seconds:
            self._compute(action, weight, repeats)
        start, end = self.streams.launch(action.key, action.lanes, action.link_seconds)
        if action.moves is not None:
            self._count(action, action.moves, weight, 0.0, asynchronous=True)
            self._show(stream_of(action.moves), action, start, end, repeats)

    def _sync(self, action: Action, weight: int, repeats: int) -> None:
        assert action.moves is not None  # a copy is always asynchronous
        start, end = self.streams.communicate(action.lanes, action.link_seconds)
        self._count(action, action.moves, weight, action.link_seconds, asynchronous=False)
        self._show(stream_of(action.moves), action, start, end, repeats)
        if action.seconds:
            self._compute(action, weight, repeats)

    def _done(self, action: Action, weight: int, repeats: int) -> None:
        waited = self.streams.wait(self.streams.events.get(action.key, 0.0))
        if action.key in self.ran:
            ran = self.ran[action.key]
            self.ran[action.key] = replace(ran, exposed=ran.exposed + waited * weight)
        elif action.key.startswith(BETWEEN_SLICES):
            self.between_slices += waited * weight
        else:
            self.copies += waited * weight
        if action.seconds:
            self._compute(action, weight, repeats)

    def _repeat(self, action: Action, weight: int, repeats: int) -> None:
        begin = self.streams.now
        (body,) = action.bodies
        if action.turns:
            self.execute(body, weight, repeats * action.turns)
        if action.turns > 1:
            second = self.streams.now
            self.execute(body, weight * (action.turns - 1), 0)
            self.streams.skip((action.turns - 2) * (self.streams.now - second))
        self._show("loops", action, begin, self.streams.now, repeats)

    def _call(self, action: Action, weight: int, repeats: int) -> None:
        for body in action.bodies:
            self.execute(body, weight, repeats)

    def _branch(self, action: Action, weight: int, repeats: int) -> None:
        """Execute the longest branch: other devices wait for one that takes it."""

        def seconds(body: str) -> float:
            alone = _Device(self.actions)
            alone.execute(body, 1, 0)
            return alone.streams.now

        self.execute(max(action.bodies, key=seconds), weight, repeats)

    def _count(
        self, action: Action, moves: Collective, weight: int, exposed: float, *, asynchronous: bool
    ) -> None:
        """Count `weight` more executions of a collective, each `exposed` for so many seconds."""
        before = self.ran.get(action.key)
        count = (before.collective.count if before else 0) + weight
        self.ran[action.key] = Ran(
            collective=replace(moves, count=count),
            parts=tuple(replace(part, count=count) for part in action.parts),
            asynchronous=asynchronous,
            seconds=(before.seconds if before else 0.0) + action.link_seconds * weight,
            exposed=(before.exposed if before else 0.0) + exposed * weight,
            name=action.name,
        )

    def _show(self, stream: str, action: Action, start: float, end: float, repeats: int) -> None:
        """Put the action on the timeline, unless it takes no time or is one of further turns."""
        if repeats and end > start:
            phase, tag = phase_in_step(action.scope), tag_in(action.scope) or ""
            self.spans.append(Span(stream, action.name, start, end, phase, tag, repeats))
