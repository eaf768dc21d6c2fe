"""Copies of a state in the memory of hosts: what a launcher keeps, and how others reach it.

A process cannot keep them itself, because all processes of a run start again when a host is lost.
Their launcher goes on, so it is the launcher's memory that they are in. A *share* is the part of a
state that one process has. Each launcher keeps the shares of its own processes, and those of the
processes of the host before it in the round.

Launcher and processes talk by `multiprocessing.managers`: over TCP, without encryption, and with
a secret that stands in the folder of the run, without which nobody is answered.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from typing import Any, NamedTuple

KEEPER = "MESHDSL_KEEPER"  # the variable of the environment with the address of one's own keeper
_METHODS = ("round", "kept", "begin", "add", "complete", "about", "block")


class Label(NamedTuple):
    """Which state a share is of.

    Attributes:
      course: the steps that follow from each other without a start between them, by a name.
      step: after which the state was.
    """

    course: str
    step: int


class Shared(NamedTuple):
    """What processes of a round have to know to send shares to hosts.

    Attributes:
      course: the name of the round.
      keepers: the addresses of the keepers of all hosts, in the order of their processes.
      places: the number of the first process of each host.
    """

    course: str
    keepers: list[str]
    places: list[int]


@dataclass
class _Share:
    processes: int  # that have shares of this state
    blocks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    about: str = ""
    complete: bool = False


class Keeper:
    """The shares that a launcher keeps. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self.shared: Shared | None = None
        self._lock = threading.Lock()
        self._states: dict[Label, dict[int, _Share]] = {}

    def round(self) -> Shared | None:
        """The round of the processes of this host; None where there is none."""
        return self.shared

    @property
    def newest(self) -> int:
        """The last step of which there is a whole share; 0 where there is none."""
        return max((label.step for label, *_ in self.kept()), default=0)

    def kept(self) -> list[tuple[Label, int, int]]:
        """The whole shares: of which state, of which process, and how many processes have some."""
        with self._lock:
            return [
                (label, process, share.processes)
                for label, shares in self._states.items()
                for process, share in shares.items()
                if share.complete
            ]

    def begin(self, label: Label, process: int, processes: int, before: Label | None) -> None:
        """Begin to take the share of a process, and drop what is no longer of use.

        Args:
          processes: how many have a share.
          before: the state whose shares all are where they belong, if there is one. With that of
            `label` it is the only one that is still of use.
        """
        with self._lock:
            for each in [each for each in self._states if each not in (before, label)]:
                del self._states[each]
            self._states.setdefault(label, {})[process] = _Share(processes)

    def add(self, label: Label, process: int, name: str, cell: int, data: bytes) -> None:
        """Take a part of an array, by the name of the array and the number of the part."""
        with self._lock:
            self._states[label][process].blocks[name, cell] = data

    def complete(self, label: Label, process: int, about: str) -> None:
        """Say that all of a share has come. `about` describes the state, in that of process 0."""
        with self._lock:
            share = self._states[label][process]
            share.about, share.complete = about, True

    def about(self, label: Label) -> str:
        """What describes a state; empty unless the share of process 0 is here."""
        with self._lock:
            shares = self._states.get(label, {})
            return shares[0].about if 0 in shares else ""

    def block(self, label: Label, process: int, name: str, cell: int) -> bytes:
        """A part of an array.

        Raises:
          KeyError: it is not here.
        """
        with self._lock:
            return self._states[label][process].blocks[name, cell]


class _Reaching(BaseManager):
    pass


_Reaching.register("keeper", exposed=_METHODS)


def serve(keeper: Keeper) -> tuple[int, str]:
    """Let others reach a keeper, in a thread, until this program ends.

    Returns: the port, and the secret.
    """
    secret = secrets.token_hex(16)
    serving = type("Serving", (BaseManager,), {})  # each has its own table
    serving.register("keeper", callable=lambda: keeper, exposed=_METHODS)
    server = serving(("", 0), secret.encode()).get_server()
    thread = threading.Thread(target=server.serve_forever, name="meshdsl keeper", daemon=True)
    thread.start()
    address: Any = server.address
    return address[1], secret


def reach(address: str) -> Any:
    """A keeper whose methods are called there.

    Args:
      address: `host:port/secret`.

    Raises:
      OSError, EOFError: it is not reached.
      multiprocessing.AuthenticationError: the secret is wrong.
    """
    where, _, secret = address.partition("/")
    host, _, port = where.rpartition(":")
    manager = _Reaching((host.strip("[]"), int(port)), secret.encode())
    manager.connect()
    return manager.keeper()  # pyright: ignore[reportAttributeAccessIssue]
