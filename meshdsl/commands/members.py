"""The hosts of an elastic run: which of them are there, and which of them reach each other.

Each host writes a small file into a folder that all of them see, again and again. It says how many
signs of life it has written, and at which address it listens. A host whose file stands still is
gone. What is counted is how long this host has seen no change, so no two clocks are compared.

That a file changes does not say that a host can be reached. So a host names in its file the first
one of those that are there, by their names, which it reaches by the network: the one that it
follows. Hosts that follow one are a group, and so the part of a network that is cut off is another
group.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshdsl.parsing import parse_json, write_json

_LATE, _GONE = 1.5, 20.0  # seconds without a sign of life; a host that is late is knocked at
_KNOCK = 1.0  # seconds that a host has to answer


@dataclass(frozen=True)
class Member:
    """What a host says of itself.

    Attributes:
      name: of the host; those that came first sort first.
      address: `host:port`, where its keeper answers, also those who only knock.
      secret: that its keeper asks for.
      processes: how many it starts.
      devices: that these have together.
      beat: how many signs of life it has written.
      follows: the name of the host that it follows; empty while it looks for one.
      runs: the round in which its processes run; empty where none run.
    """

    name: str
    address: str
    secret: str
    processes: int
    devices: int
    beat: int = 0
    follows: str = ""
    runs: str = ""


class Members:
    """The hosts whose files are in a folder, as this one sees them.

    Args:
      answers: whether somebody answers at an address.
    """

    def __init__(
        self,
        folder: Path,
        answers: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._answers, self._clock = folder, answers, clock
        self._seen: dict[str, tuple[Member, float]] = {}  # and since when it has not changed
        self._gone: dict[str, int] = {}  # the last sign of life of those that do not answer

    def write(self, member: Member) -> None:
        """Write the file of this host: at once, or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / f"{member.name}.json", asdict(member))

    def leave(self, name: str) -> None:
        """Remove the file of a host."""
        with suppress(OSError):
            (self._folder / f"{name}.json").unlink()

    def forget(self) -> None:
        """Remove the files of hosts that are gone; one that comes back after all writes its own."""
        for name, beat in self._gone.items():
            member = self._read(name)
            if member and member.beat == beat:
                self.leave(name)

    def there(self, names: Iterable[str] | None = None) -> dict[str, Member]:
        """The hosts that are there, in the order of their names.

        Args:
          names: those to look at; by default all.
        """
        found: dict[str, Member] = {}
        for name in sorted(self._names() if names is None else names):
            member = self._read(name)
            if member and self._alive(member):
                found[name] = member
        return found

    def _names(self) -> list[str]:
        with suppress(OSError):
            return [path.stem for path in self._folder.glob("*.json")]
        return []

    def _read(self, name: str) -> Member | None:
        with suppress(OSError, ValueError, TypeError):
            return Member(**parse_json((self._folder / f"{name}.json").read_text("utf-8")))
        return None

    def _alive(self, member: Member) -> bool:
        now = self._clock()
        before, since = self._seen.get(member.name, (None, now))
        if before is None or before.beat != member.beat:
            since = now
        self._seen[member.name] = member, since
        if self._gone.get(member.name) == member.beat:
            return False
        silent = now - since
        alive = silent < _GONE and (silent < _LATE or self._answers(member.address))
        if not alive:
            self._gone[member.name] = member.beat
        return alive


def answers(address: str) -> bool:
    """Whether the host at `host:port` answers within a second."""
    host, _, port = address.rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK) as connection,
    ):
        return bool(connection.recv(1))  # its keeper speaks first
    return False
