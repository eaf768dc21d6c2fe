"""The rounds of an elastic run: which hosts train together, and when that ends.

The first one of the largest group of hosts that reach each other begins a round (`members` says who
is there): it writes which hosts take part, and each of these starts its processes, which go on from
the newest checkpoint. A round is over when a host is lost or one of its processes dies (then all
processes are killed), or when a host comes (then they are told to save and end). The next round
follows.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from meshdsl.commands.members import Member, Members, answers
from meshdsl.commands.processes import free_port
from meshdsl.parsing import parse_json, write_json

_FIRST, _SETTLED = 5.0, 1.0  # seconds without a new host or a lost one before a round begins
_STARTING = 5.0  # seconds in which all hosts of a round have started their processes
_TAKEN = 10.0  # seconds that a round lasts at least before it ends because a host comes
_CUT = 2  # so many knocks in vain at the first host of a round, and this host is cut off


class Round(NamedTuple):
    """Processes that train together.

    Attributes:
      key: its name.
      members: the names of the hosts, in the order of their processes.
      places: the number of the first process of each of them.
      total: how many processes there are.
      coordinator: `host:port`, where process 0 listens.
      keepers: the addresses and secrets of the keepers of the hosts.
      ends: why it is to end: `lost`, `joined`, or empty.
    """

    key: str
    members: list[str]
    places: list[int]
    total: int
    coordinator: str
    keepers: list[str]
    ends: str = ""


@dataclass
class Hosts:
    """What this host does about rounds, in a thread: `tick` is called again and again.

    Args:
      folder: in which the hosts meet.
      me: this host.
      least, most: how many hosts a round has.
      fits: whether the run can use so many devices.
    """

    folder: Path
    me: Member
    least: int
    most: int
    fits: Callable[[int], bool]
    say: Callable[[str], Any]
    answers: Callable[[str], bool] = answers
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.members = Members(self.folder / "members", self.answers, self.clock)
        self.signal = 0  # that the processes of this host should get
        self._begun: Round | None = None  # that this host is to take part in, or takes part in
        self._began = self._changed = self._knocked = self.clock()
        self._names: tuple[str, ...] = ()
        self._left = ""  # the round that this host took part in before
        self._in_vain = 0
        self._said = ""
        self._lock = threading.Lock()

    @property
    def round(self) -> Round | None:
        """The round that this host takes part in, or is to; None while there is none."""
        return self._begun

    def ended(self) -> None:
        """Say that the processes of this host have ended."""
        with self._lock:
            self._left = self.me.runs
            self.me = replace(self.me, runs="", follows="")
            self._begun, self.signal = None, 0
            self._changed = self.clock()
            self.members.write(self.me)

    def leave(self) -> None:
        """Say that this host takes part no more."""
        with self._lock:
            self.members.leave(self.me.name)

    def tick(self) -> None:
        """Write a sign of life and look at the others; begin, enter or end a round."""
        with self._lock, suppress(OSError):  # a file system may be away for a while
            self.me = replace(self.me, beat=self.me.beat + 1)
            self.members.write(self.me)
            now = self._read()
            if self._begun:
                self._watch(now, self._begun)
            elif now and not now.ends and now.key != self._left and self.me.name in now.members:
                self._enter(now)
            else:
                self._gather(now)

    # -- while this host takes part in a round ----------------------------------------------------

    def _enter(self, now: Round) -> None:
        self._begun, self._began, self._in_vain = now, self.clock(), 0
        self.me = replace(self.me, runs=now.key, follows=now.members[0])
        self.members.write(self.me)

    def _watch(self, now: Round | None, mine: Round) -> None:
        if now and now.key == mine.key and now.ends == "joined":
            self.signal = signal.SIGTERM
        elif now and (now.key != mine.key or now.ends):
            self.signal = signal.SIGKILL
        elif mine.members[0] == self.me.name:
            self._lead(mine)
        elif self._cut_off(mine):
            self.signal = signal.SIGKILL

    def _lead(self, mine: Round) -> None:
        """End the round where a host is lost, or one has come."""
        there, age = self.members.there(), self.clock() - self._began
        still = [name for name in mine.members if name in there and there[name].runs == mine.key]
        if len(still) < len(mine.members) and (
            age > _STARTING or any(name not in there for name in mine.members)
        ):
            lost = sorted(set(mine.members) - set(still))
            self.say(f"{_hosts(lost)} of this round no more; all begin again from what is saved")
            self._write(mine._replace(ends="lost"))
        elif age > _TAKEN and self._larger(there, mine):
            self.say("a host has come; the run saves its step and goes on with it")
            self._write(mine._replace(ends="joined"))

    def _larger(self, there: dict[str, Member], mine: Round) -> bool:
        """Whether a round of all hosts that follow this one would have more of them."""
        group = [each for each in there.values() if each.follows == self.me.name]
        count = len(mine.members)
        return len(group) > count and len(self._of_group(group)) > count

    def _cut_off(self, mine: Round) -> bool:
        """Whether the first host of the round is gone or out of it, or is not reached any more."""
        first = mine.members[0]
        there = self.members.there([first])
        if not there or there[first].runs != mine.key:
            return True
        if self.clock() - self._knocked > 1.0:
            self._in_vain = 0 if self.answers(there[first].address) else self._in_vain + 1
            self._knocked = self.clock()
        return self._in_vain >= _CUT

    # -- while it does not ------------------------------------------------------------------------

    def _gather(self, now: Round | None) -> None:
        """Follow the first host that is reached; begin a round, where that is this one.

        The first host of a round that runs comes before all others, so that it takes in this one.
        """
        there = self.members.there()
        if tuple(there) != self._names:
            self._names, self._changed = tuple(there), self.clock()
        leads = lambda each: bool(each.runs) and each.follows == each.name
        order = sorted(there.values(), key=lambda each: (not leads(each), each.name))
        reached = (
            each.name for each in order if each.name == self.me.name or self.answers(each.address)
        )
        first = next(reached, "")
        if first != self.me.follows:
            self.me, self._changed = replace(self.me, follows=first), self.clock()
            self.members.write(self.me)
            return
        if first == self.me.name:
            self._begin(now, there)

    def _begin(self, now: Round | None, there: dict[str, Member]) -> None:
        """Begin a round with the hosts that follow this one, if they are the largest group."""
        others = there.values()
        if any(each.runs or not each.follows for each in others):
            return
        groups = Counter(each.follows for each in others)
        if min(groups, key=lambda name: (-groups[name], name)) != self.me.name:
            return
        group = [each for each in others if each.follows == self.me.name]
        taken = self._of_group(group)
        quiet = self.clock() - self._changed
        if len(taken) < self.most and quiet < (_SETTLED if now else _FIRST):
            return
        if not taken:
            what = f"{len(group)} host{'s' * (len(group) != 1)} here, at least {self.least} needed"
            if what != self._said:
                self.say(f"{what}; waiting for others")
            self._said = what
            return
        places = [sum(each.processes for each in taken[:i]) for i in range(len(taken) + 1)]
        number = int(now.key.partition("-")[0]) + 1 if now else 1
        host = self.me.address.rpartition(":")[0]
        names = [each.name for each in taken]
        began = Round(
            f"{number}-{self.me.name}",
            names,
            places[:-1],
            places[-1],
            f"{host}:{free_port()}",
            [f"{each.address}/{each.secret}" for each in taken],
        )
        devices = sum(each.devices for each in taken)
        self.say(f"round {number}: {len(names)} host{'s' * (len(names) > 1)}, {devices} devices")
        self._said = ""
        self.members.forget()
        self._enter(began)
        self._write(began)

    def _of_group(self, group: Sequence[Member]) -> list[Member]:
        """As many hosts of a group, the first ones, as the run can use; none, if too few."""
        for count in range(min(len(group), self.most), self.least - 1, -1):
            if self.fits(sum(each.devices for each in group[:count])):
                return list(group[:count])
        return []

    def _read(self) -> Round | None:
        with suppress(OSError, ValueError, TypeError):
            return Round(**parse_json((self.folder / "round.json").read_text("utf-8")))
        return None

    def _write(self, value: Round) -> None:
        write_json(self.folder / "round.json", value._asdict())


def _hosts(names: Sequence[str]) -> str:
    short = [re.sub(r"^\d{20}-", "", name) for name in names]
    return f"host{'s' * (len(short) > 1)} {', '.join(short)} {'is' if len(short) == 1 else 'are'}"
