"""Copies of the state in the memory of hosts, so that a lost host costs a few steps.

Every so many steps each process sends its share of the state to the keeper of its own host and to
that of the next one (`keeper`). So one host may be lost, or several of which no two follow each
other, and all shares are still there. Then the run goes on from there, under any layout: each
process fetches the cells that its devices need (`shares`), and digests say, as they do for a
checkpoint on disk, whether the arrays are those that were kept.

A file in the folder of the run says which copies the run may go on from: those of the course that
the newest start began, or the one that it began from. Others are of steps that the run has since
then done otherwise, and a host that was away may still have them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.managers import RemoteError
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshdsl import hosts
from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.figures import byte_words
from meshdsl.parsing import parse_json, write_json
from meshdsl.train.checkpoints import manifest
from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.keeper import KEEPER, Label, Shared, reach
from meshdsl.train.checkpoints.manifest import Damaged, Manifest
from meshdsl.train.checkpoints.places import zeros_as
from meshdsl.train.checkpoints.shares import Grid, assembled, cells_of, grid_of
from meshdsl.train.checkpoints.tree_leaves import Leaf

_UNREACHED = (OSError, EOFError, KeyError, AuthenticationError, RemoteError)
_AT_ONCE = 8  # cells that a process fetches at a time, and hosts that are asked at a time
TIMES = 5  # a host has two copies of its own share and of another, and one on its way


def copies_of(record: Path, every: int, report: Callable[[str], Any]) -> Copies | None:
    """The copies of a run; None where none are wanted, or no launcher is there that keeps them.

    Args:
      record: the file that says which copies the run may go on from.
      every: steps between two of them; 0: there are none.
    """
    address = os.environ.get(KEEPER)
    if not (every and address):
        return None
    shared = reach(address).round()
    return Copies(shared, record, every, report) if shared else None


class Copies:
    """The copies that are made of the state of a run. All processes call the methods, in order.

    Args:
      shared: what the processes of a round know of its hosts.
      record, every: as for `copies_of`.
      report: called with a line where copies cannot be made.
    """

    def __init__(self, shared: Shared, record: Path, every: int, report: Callable[[str], Any]):
        self._shared, self._record, self._every, self._report = shared, record, every, report
        self._starts = 0
        self._before: Label | None = None  # the copy that is complete when the next one is begun
        self._pool = ThreadPoolExecutor(1, "copies")
        self._sending: Future[str] | None = None
        mine = sum(place <= jax.process_index() for place in shared.places) - 1
        count = len(shared.keepers)
        self._to = sorted({mine, (mine + 1) % count}, key=lambda host: host != mine)
        self.processes_here = (*shared.places, jax.process_count())[mine + 1] - shared.places[mine]

    @property
    def _course(self) -> str:
        return f"{self._shared.course}.{self._starts}"

    def due(self, step: int) -> bool:
        """Whether to make a copy after `step`."""
        return step % self._every == 0

    def check_room(self, arrays: dict[str, Any]) -> None:
        """Raise a MeshDSLError where this host has not the memory for copies of such arrays.

        Not where copies of an earlier round are there, in whose place these come.
        """
        if _kept_by(self._shared.keepers[self._to[0]]):
            return
        share = 0
        for array in arrays.values():
            if array.size:
                grid, mine = _grid(tuple(array.shape), array.sharding)
                share += array.size * array.dtype.itemsize * len(mine) // len(grid.owners)
        needed, free = TIMES * share * self.processes_here, _free_memory()
        if needed > free:
            raise MeshDSLError(
                f"elastic.memory_every: copies take up to {byte_words(needed)} of the memory of a "
                f"host, and {byte_words(free)} are free"
            )

    def keep(
        self, step: int, leaves: dict[str, Leaf], arrays: dict[str, jax.Array], data: Any
    ) -> None:
        """Begin to send a copy; returns when the arrays are copied and may be overwritten.

        Args:
          leaves, data: as for `manifest.made`.
        """
        self.finish()
        label = Label(self._course, step)
        # Once a process has these, all have called this, and so the copy before is complete.
        computed = digests(arrays)
        held = list(_held({name: array for name, array in arrays.items() if array.size}))
        names, before = list(arrays), self._before
        grids = {n: _grid(tuple(x.shape), x.sharding)[0] for n, x in arrays.items() if x.size}

        def send() -> str:
            values = dict(zip(names, map(int, np.asarray(computed)), strict=True))
            about = _about(manifest.made(step, leaves, values, data), grids)
            try:
                self._send(label, before, held, about)
            except _UNREACHED as error:
                return f"the copy of step {step} is not whole: {error}"
            return ""

        self._before = label
        self._sending = self._pool.submit(send)

    def _send(
        self,
        label: Label,
        before: Label | None,
        held: list[tuple[str, int, np.ndarray]],
        about: str,
    ) -> None:
        process, processes = jax.process_index(), jax.process_count()
        for host in self._to:
            keeper = _keeper(self._shared.keepers[host])
            keeper.begin(label, process, processes, before)
            for name, cell, part in held:
                keeper.add(label, process, name, cell, part.tobytes())
            keeper.complete(label, process, about if process == 0 else "")

    def finish(self) -> None:
        """Wait until what was begun is sent; what went wrong is reported."""
        if self._sending:
            failed, self._sending = self._sending.result(), None
            if failed:
                self._report(failed)

    def newest(self) -> Copy | None:
        """The newest whole copy that the run may go on from; None where there is none."""
        self.finish()
        found = hosts.first_does(self._look)
        if not found:
            return None
        return Copy(Label(*found["label"]), found["about"], found["hosts"], self._shared.keepers)

    def _look(self) -> dict[str, Any] | None:
        """On process 0: where the shares of the newest copy are, and what describes it."""
        allowed = self._allowed()
        shares: dict[Label, dict[int, list[int]]] = {}
        wanted: dict[Label, int] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for host, kept in enumerate(pool.map(_kept_by, self._shared.keepers)):
                for label, process, processes in kept:
                    shares.setdefault(label, {}).setdefault(process, []).append(host)
                    wanted[label] = processes
        for label in sorted(shares, key=lambda each: -each.step):
            if len(shares[label]) < wanted[label] or not allowed(label):
                continue
            for host in shares[label][0]:
                with suppress(*_UNREACHED):
                    about = _keeper(self._shared.keepers[host]).about(label)
                    at = [shares[label][process] for process in range(wanted[label])]
                    return {"label": label, "about": about, "hosts": at}
        return None

    def _allowed(self) -> Callable[[Label], bool]:
        """Whether the run may go on from a copy, by its label."""
        try:
            found = parse_json(self._record.read_text(encoding="utf-8"))
            course, begun = found["course"], found["from"] and Label(*found["from"])
        except (OSError, ValueError, TypeError, KeyError):
            return lambda label: False
        return lambda label: label.course == course or label == begun

    def go_on(self, copy: Copy | None) -> None:
        """Say that the run goes on from a copy, or from elsewhere; then no other copy counts."""
        self.finish()
        self._starts += 1
        self._before = copy.label if copy else None
        if hosts.first():
            with system_errors_say(str(self._record)):
                write_json(self._record, {"course": self._course, "from": self._before})

    def close(self) -> None:
        """Wait until everything is sent."""
        self.finish()
        self._pool.shutdown()


class Copy:
    """A whole copy of the state in the memory of hosts.

    Args:
      about: what describes it, as process 0 sent it.
      hosts: for each process that had a share, the numbers of the hosts that keep it.
      keepers: the addresses of the keepers of the hosts.
    """

    def __init__(self, label: Label, about: str, hosts: list[list[int]], keepers: list[str]):
        self.label, self.step = label, label.step
        self.words = f"copy of step {self.step} in memory"
        found = json.loads(about)
        self._manifest, self._grid_of = found["manifest"], found["grid_of"]
        self._grids = [Grid(*map(tuple, each)) for each in found["grids"]]
        self._hosts, self._keepers = hosts, keepers

    def manifest(self) -> Manifest:
        return self._manifest

    def read(self, leaves: dict[str, Leaf], like: dict[str, Any]) -> dict[str, jax.Array]:
        """Fetch the arrays that `like` names, each into its sharding.

        Raises:
          Damaged: a part of an array cannot be fetched.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return {
                name: self._array(pool, name, leaves[name], target) for name, target in like.items()
            }

    def _array(self, pool: ThreadPoolExecutor, name: str, leaf: Leaf, target: Any) -> jax.Array:
        shape, dtype = tuple(leaf["shape"]), leaf["dtype"]
        if name not in self._grid_of:  # it has no elements
            return zeros_as(jax.ShapeDtypeStruct(shape, dtype, sharding=target.sharding))
        grid = self._grids[self._grid_of[name]]
        indices = target.sharding.addressable_devices_indices_map(shape).values()
        cells = sorted({cell for index in indices for cell in cells_of(shape, grid.counts, index)})
        fetch = lambda cell: self._cell(name, cell, grid.owners[cell])
        found = dict(zip(cells, pool.map(fetch, cells), strict=True))

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # JAX calls this for devices of this process only
            try:
                return assembled(shape, dtype, grid.counts, index, found.__getitem__)
            except ValueError:
                raise Damaged(f"a part of `{name}` has another size") from None

        return jax.make_array_from_callback(shape, target.sharding, part)

    def _cell(self, name: str, cell: int, owner: int) -> bytes:
        for host in self._hosts[owner]:
            with suppress(*_UNREACHED):
                return _keeper(self._keepers[host]).block(self.label, owner, name, cell)
        raise Damaged(f"a part of `{name}` cannot be fetched")


@cache
def _keeper(address: str) -> Any:
    return reach(address)


def _kept_by(address: str) -> list[tuple[Label, int, int]]:
    with suppress(*_UNREACHED):
        return _keeper(address).kept()
    return []


@cache
def _grid(shape: tuple[int, ...], sharding: Any) -> tuple[Grid, dict[int, Any]]:
    """How an array is divided, and of the cells in the share of this process their devices."""
    grid, devices = grid_of(shape, sharding)
    here = jax.process_index()
    return grid, {cell: devices[cell] for cell, at in enumerate(grid.owners) if at == here}


def _held(arrays: dict[str, jax.Array]) -> Iterator[tuple[str, int, np.ndarray]]:
    """The share of this process: for each cell the array, its number and its elements."""
    mine: list[tuple[str, int, jax.Array]] = []
    for name, array in arrays.items():
        parts = {shard.device: shard.data for shard in array.addressable_shards}
        _, cells = _grid(tuple(array.shape), array.sharding)
        mine += [(name, cell, parts[device]) for cell, device in cells.items()]
    for _, _, part in mine:
        part.copy_to_host_async()
    for name, cell, part in mine:
        found = np.asarray(part)
        # On CPUs it may be the memory of the device, which the next step overwrites.
        yield name, cell, found.copy() if found.base is not None else found


def _about(content: Manifest, grids: dict[str, Grid]) -> str:
    """What describes a copy: its manifest, and how its arrays are divided."""
    numbers = {grid: number for number, grid in enumerate(dict.fromkeys(grids.values()))}
    grid_of = {name: numbers[grid] for name, grid in grids.items()}
    return json.dumps({"manifest": content, "grids": list(numbers), "grid_of": grid_of})


def _free_memory() -> int:
    """The bytes of memory of this machine that are free, or that the system can make free."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
