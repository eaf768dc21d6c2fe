"""A run meets a trace of faults: how long it takes, and what its time went into."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from meshdsl.errors import MeshDSLError
from meshdsl.rehearsal.faults import Event, Trace
from meshdsl.rehearsal.leg import Leg
from meshdsl.rehearsal.run import Option, Run

CAUSES: tuple[str, ...] = (
    "start",
    "down",
    "lost steps",
    "checkpoints",
    "waiting",
    "fewer machines",
)
"""What takes time from the steps.

`start`: the first start. `down`: from a fault until steps go on, without the wait for machines.
`lost steps`: those that were done and had to be done again. `checkpoints`: for which steps wait.
`waiting`: for a slice that is gone. `fewer machines`: what steps take longer without it.
"""
_HOPELESS = 50.0  # a run that takes so many times its undisturbed time is given up


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
      seconds: from its begin to its end.
      work: seconds that its steps take, each once and with all machines.
      losses: the other seconds, by their causes.
      faults: how often it had to start again because of one.
    """

    seconds: float
    work: float
    losses: dict[str, float]
    faults: int

    @property
    def goodput(self) -> float:
        """The share of the time that went into steps that count."""
        return self.work / self.seconds


def simulate(run: Run, option: Option, trace: Trace) -> Outcome:
    """Run to the end, whatever the trace brings.

    Raises:
      MeshDSLError: faults come so often that there is no end of it.
    """
    return _Simulation(run, option, trace.events(run.slices + option.spares)).to_end()


class _Simulation:
    """The state of a run at one time, and what it has spent so far.

    Attributes:
      now: seconds since it began.
      step: steps that are done and not lost.
      saved: the step of the newest complete checkpoint.
      writing: a checkpoint that is not complete yet: its step, and when it will be.
      risk: the chance that the next fault, before new copies are there, takes the last copy of what
        the one before took. It is 0 while all copies are there, and 1 where there are none.
      up, used: the slices that are there, and those that the run has.
      stepped: whether it has taken a step, so that programs are compiled.
      getting_going: seconds until it takes steps, when the slices are there.
    """

    def __init__(self, run: Run, option: Option, events: Iterable[Event]):
        self.run, self.option = run, option
        self.events = iter(events)
        self.event = next(self.events, None)
        self.now, self.step, self.saved = 0.0, 0, 0
        self.writing: tuple[int, float] | None = None
        self.risk = 0.0 if option.memory else 1.0
        self.up = set(range(run.slices + option.spares))
        self.used: set[int] = set()
        self.losses = dict.fromkeys(CAUSES, 0.0)
        self.faults = 0
        self.stepped, self.getting_going = False, run.restart.first
        self.limit = _HOPELESS * (run.work(run.steps) + run.restart.first)

    def to_end(self) -> Outcome:
        run, cause = self.run, "start"
        while self.step < run.steps:
            if self.now > self.limit:
                raise MeshDSLError(
                    "with so many faults the run hardly comes further: after "
                    f"{_HOPELESS:g} times its undisturbed time {self.step:,} of {run.steps:,} "
                    "steps are done"
                )
            self.wait_for_slices()
            began = self.now
            event = self.until(began + self.getting_going)
            self.now = event.seconds if event else began + self.getting_going
            self.losses[cause] += self.now - began
            if event:
                self.after(event, running=False)
                continue
            cause, self.stepped = "down", True
            event = self.steps()
            if event:
                self.after(event, running=True)
        return Outcome(self.now, run.work(run.steps), self.losses, self.faults)

    # -- machines ------------------------------------------------------------------------------

    def until(self, seconds: float) -> Event | None:
        """The next event until then that the run cannot overlook; None where there is none."""
        while self.event and self.event.seconds <= seconds:
            event, self.event = self.event, next(self.events, None)
            if event.kind == "lost":
                self.up.discard(event.slice)
            elif event.kind == "back":
                self.up.add(event.slice)
            if self.matters(event):
                return event
        return None

    def matters(self, event: Event) -> bool:
        if event.kind == "fault":  # of any host, also of a slice that is gone
            return event.chance * self.run.slices < len(self.used)
        if event.kind == "lost":
            return event.slice in self.used
        return self.option.fewer and len(self.used) < self.run.slices

    def wait_for_slices(self) -> None:
        """Take the slices that are there, and wait until they are enough."""
        needed = 1 if self.option.fewer else self.run.slices
        while True:
            self.used &= self.up
            idle = sorted(self.up - self.used)
            self.used.update(idle[: self.run.slices - len(self.used)])
            if len(self.used) >= needed:
                return
            assert self.event  # of a slice that comes back
            began, self.now = self.now, max(self.now, self.event.seconds)
            self.losses["waiting"] += self.now - began
            event = self.until(self.event.seconds)
            if event and event.kind != "back":
                self.after(event, running=False)

    # -- steps ---------------------------------------------------------------------------------

    def steps(self) -> Event | None:
        """Take steps until something happens, or to the end of the run."""
        run = self.run
        ends, new = run.ends, run.new
        while self.step < run.steps:
            which = bisect_right(ends, self.step)
            slower = run.slices / len(self.used)
            copies = self.option.memory[which] if self.option.memory else 0
            copying = run.handover / copies if copies else 0.0
            leg = Leg(
                start=self.step,
                end=ends[which],
                step=run.stretches[which].seconds * slower + copying,
                every=self.option.every[which],
                handover=run.handover,
                write=run.write,
                last=ends[which] == run.steps,
                new=new,
            )
            began = self.now
            event = self.until(began + leg.seconds)
            self.now = event.seconds if event else began + leg.seconds
            self.account(leg, event, self.now - began, slower, copying, copies)
            if event:
                return event
            new = 0.0
        return None

    def account(
        self,
        leg: Leg,
        event: Event | None,
        seconds: float,
        slower: float,
        copying: float,
        copies: int,
    ) -> None:
        """Go to the step that is kept of a leg that took so long, and say where its time went."""
        if self.writing and (self.writing[1] <= self.now or not event):
            self.saved = self.writing[0]
        self.writing = None
        self.saved = leg.saved(seconds) or self.saved
        done = leg.done(seconds) if event else leg.end
        if event is None:
            kept = leg.end
            if leg.writing:
                self.writing = leg.writing[0], self.now - seconds + leg.writing[1]
        elif event.kind == "back":  # it is told to end, and saves the step that runs
            kept = int(done)
        else:
            kept = self.kept(leg, event, seconds, copies)
        stepping = (done - leg.start) * leg.step
        copied = (done - leg.start) * copying
        work = self.run.work(kept) - self.run.work(leg.start)
        fewer = max(0.0, work) * (slower - 1)
        self.losses["checkpoints"] += seconds - stepping + copied
        self.losses["fewer machines"] += fewer
        self.losses["lost steps"] += stepping - copied - work - fewer
        self.step = kept

    def kept(self, leg: Leg, event: Event, seconds: float, copies: int) -> int:
        """The step that the run goes on from after a fault in a leg."""
        if not copies:
            return self.saved
        if seconds > self.run.copy:
            self.risk = 0.0  # new copies are there
        if not self.copied(event):
            return self.saved
        newest = int(leg.done(max(0.0, seconds - self.run.copy))) // copies * copies
        return max(newest, leg.start, self.saved)

    # -- after a fault -------------------------------------------------------------------------

    def copied(self, event: Event) -> bool:
        """Whether copies outlive a fault."""
        if self.risk >= 1:
            return False
        if event.kind == "fault":
            share = event.chance * self.run.slices / len(self.used)
            others = self.run.hosts * len(self.used) // self.run.slices - 1
        else:
            share, others = event.chance, len(self.used) - 1
        return others > 0 and share >= self.risk

    def after(self, event: Event, running: bool) -> None:
        """What follows from an event, for a run that took steps or was about to."""
        run, parts = self.run, self.run.restart
        begin = parts.start + parts.compile if self.stepped else parts.first
        from_memory = self.copied(event)
        if event.kind == "back":
            if running:  # it is told to end, and saves before it does
                self.losses["checkpoints"] += run.handover + run.write
                self.now += run.handover + run.write
                self.saved = self.step
            from_memory = self.risk < 1 and not running
        else:
            self.faults += 1
            begin += parts.detect + (parts.replace if event.kind == "fault" else 0.0)
            if from_memory:
                others = len(self.used) - 1 if event.kind == "lost" else run.hosts - 1
                self.risk = max(self.risk, 1 / others)
            elif self.option.memory:
                self.risk = 1.0
                self.losses["lost steps"] += run.work(self.step) - run.work(self.saved)
                self.step = self.saved
        reading = run.fetch if from_memory else run.restore
        self.getting_going = begin + (reading if self.step else 0.0)
