"""The time of one step by replaying a compiled program's schedule.

The compute stream runs the instructions in the order of the schedule (`cost.py` says how long each takes). A collective that the compiler
left synchronous holds it for the time that its axes' links take; one with a start and a done runs on its links meanwhile, after those that were started
before it, and the compute stream waits at the done if it isn't finished. Copies between the
memories of a chip run likewise on a stream of their own, and so does what the compiler gives to
another core. What is not understood takes no time, and is counted in `Module.unread`.
Loops run their body twice, as what is started in one turn may still be under way in the next; all further turns take as long as the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshdsl.compiled.hlo_text import Module
from meshdsl.compiled.instructions import Step, Steps
from meshdsl.estimate.explanation import Span
from meshdsl.machine.streams import Streams, stream_of
from meshdsl.record.collective import Collective, phase_in_step
from meshdsl.record.recorder import tag_in


@dataclass(frozen=True)
class Ran:
    """A collective instruction of the compiled program, all its executions in one step.

    Attributes:
      collective: what it moves; where the compiler combined several, the largest of them with the bytes of all.
      parts: one for each operand, each with its own bytes.
      asynchronous: it runs while the device computes.
      seconds: of all executions, alone on the links.
      exposed: of them, in which the compute stream waits.
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
        return self.collective.scope


@dataclass(frozen=True)
class Replay:
    """One step, in seconds.

    Attributes:
      step: from start to end.
      compute: of the compute stream, without waiting.
      communication: of the collectives over each combination of axes, one after the other.
      exposed: in which the compute stream waits for a collective.
      copies: in which it waits for copies between the memories of the chip, and for another core.
      collectives: in the order of the schedule.
      spans: the timeline, each loop's body once.
    """

    step: float
    compute: float
    communication: dict[tuple[str, ...], float]
    exposed: float
    copies: float
    collectives: tuple[Ran, ...]
    spans: tuple[Span, ...]


def replay(text: str | Module, chip, network, axis_sizes: Mapping[str, int]) -> Replay:
    """The time of one step of a compiled program.

    Args:
      text: `compiled.as_text()`; as a `Module`, whose `unread` says what of it the time is without.
      chip: what computes; see `cost.seconds`.
      network: `network.seconds(operation, axes, bytes)` of a collective.
      axis_sizes: the mesh, `{axis: size}`; device n of the program is the n-th of the mesh.
    """
    module = text if isinstance(text, Module) else Module(text)
    run = _Run(Steps(module, chip, network, dict(axis_sizes)))
    run.computation(module.entry, 1, 1)
    communication: dict[tuple[str, ...], float] = {}
    for ran in run.ran.values():
        communication[ran.collective.axes] = (
            communication.get(ran.collective.axes, 0.0) + ran.seconds
        )
    return Replay(
        step=run.streams.now,
        compute=run.compute,
        communication=communication,
        exposed=sum(ran.exposed for ran in run.ran.values()),
        copies=run.copies,
        collectives=tuple(run.ran.values()),
        spans=tuple(run.spans),
    )


@dataclass
class _Run:
    steps: Steps
    streams: Streams = field(default_factory=Streams)
    ran: dict[str, Ran] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    compute: float = 0.0
    copies: float = 0.0

    def computation(self, name: str, weight: int, repeats: int) -> None:
        """Run a computation once, and count what it does `weight` times. It is shown with `repeats`; 0 shows nothing."""
        for step in self.steps.of(name):
            getattr(self, f"_{step.what}")(step, weight, repeats)

    def _compute(self, step: Step, weight: int, repeats: int) -> None:
        start, end = self.streams.compute(step.seconds)
        self.compute += step.seconds * weight
        self._show("compute", step, start, end, repeats)

    def _start(self, step: Step, weight: int, repeats: int) -> None:
        if step.seconds:
            self._compute(step, weight, repeats)
        start, end = self.streams.launch(step.key, step.lanes, step.link_seconds)
        if step.moves is not None:
            self._count(step, weight, 0.0, asynchronous=True)
            self._show(stream_of(step.moves), step, start, end, repeats)

    def _sync(self, step: Step, weight: int, repeats: int) -> None:
        start, end = self.streams.communicate(step.lanes, step.link_seconds)
        self._count(step, weight, step.link_seconds, asynchronous=False)
        self._show(stream_of(step.moves), step, start, end, repeats)
        if step.seconds:
            self._compute(step, weight, repeats)

    def _done(self, step: Step, weight: int, repeats: int) -> None:
        waited = self.streams.wait(self.streams.events.get(step.key, 0.0))
        if step.key in self.ran:
            ran = self.ran[step.key]
            self.ran[step.key] = replace(ran, exposed=ran.exposed + waited * weight)
        else:
            self.copies += waited * weight
        if step.seconds:
            self._compute(step, weight, repeats)

    def _loop(self, step: Step, weight: int, repeats: int) -> None:
        begin = self.streams.now
        (body,) = step.bodies
        if step.turns:
            self.computation(body, weight, repeats * step.turns)
        if step.turns > 1:
            second = self.streams.now
            self.computation(body, weight * (step.turns - 1), 0)
            self.streams.skip((step.turns - 2) * (self.streams.now - second))
        self._show("loops", step, begin, self.streams.now, repeats)

    def _call(self, step: Step, weight: int, repeats: int) -> None:
        for body in step.bodies:
            self.computation(body, weight, repeats)

    def _branch(self, step: Step, weight: int, repeats: int) -> None:
        """One branch runs: it is the longest that is waited for."""

        def alone(body: str) -> float:
            run = _Run(self.steps)
            run.computation(body, 1, 0)
            return run.streams.now

        self.computation(max(step.bodies, key=alone), weight, repeats)

    def _count(self, step: Step, weight: int, exposed: float, *, asynchronous: bool) -> None:
        before = self.ran.get(step.key)
        count, seconds, waited = (
            (before.collective.count, before.seconds, before.exposed) if before else (0, 0.0, 0.0)
        )
        moves, *parts = (replace(one, count=count + weight) for one in (step.moves, *step.parts))
        self.ran[step.key] = Ran(
            moves,
            tuple(parts),
            asynchronous,
            seconds + step.link_seconds * weight,
            waited + exposed * weight,
            step.name,
        )

    def _show(self, stream: str, step: Step, start: float, end: float, repeats: int) -> None:
        if repeats and end > start:
            self.spans.append(
                Span(
                    stream,
                    step.name,
                    start,
                    end,
                    phase_in_step(step.scope),
                    tag_in(step.scope) or "",
                    repeats,
                )
            )
