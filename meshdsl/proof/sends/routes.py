"""Where what devices hold in a loop has come from, when they hand it on to each other.

Round by round and device by device it is known what is chosen, moved and written where, as that
depends on the numbers of the device and of the round alone. So what an array holds is followed
without computing it: each of its elements, or of its rows, is a sum of *atoms*, each of which is an
element of an array that the loop was given, or that a device has computed in a round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value


class Source(NamedTuple):
    """An array that elements come from.

    Attributes:
      owner: the loop in which it is computed; or what it means, if the loop was given it.
      number: of the equation that computes it, and of the result; or of what the loop was given.
      shape: of the array of a device, in a round.
    """

    owner: Any
    number: tuple[int, ...]
    shape: tuple[int, ...]


class Atom(NamedTuple):
    """An element of an array, or several in a row.

    Attributes:
      source: the array, by its place in `Pieces.sources`.
      device, tick: where and when; a tick of -1 stands for all.
      index: along each dim; -1 stands for all indices, or for the only one.
    """

    source: int
    device: int
    tick: int
    index: tuple[int, ...]


class Moved(NamedTuple):
    """What each device has of an array.

    Attributes:
      ids: which piece, with a first dim of devices. A dim of size 1 has the whole dim as one piece.
      shape: of the array of a device.
    """

    ids: np.ndarray
    shape: tuple[int, ...]


Held = Moved | np.ndarray  # numbers that are known, for each device


class Pieces:
    """All pieces of arrays, each of which is a sum of atoms; number 0 is the sum of none."""

    def __init__(self):
        self._all: list[tuple[Atom, ...]] = [()]
        self._known: dict[tuple[Atom, ...], int] = {(): 0}
        self.sources: list[Source] = []
        self._places: dict[tuple, int] = {}
        self._made: dict[tuple, tuple[Any, Sequence[Value], int]] = {}

    def __getitem__(self, number: int) -> tuple[Atom, ...]:
        return self._all[number]

    def number(self, atoms: Iterable[Atom]) -> int:
        key = tuple(sorted(atoms))
        if key not in self._known:
            self._known[key] = len(self._all)
            self._all.append(key)
        return self._known[key]

    def source(self, owner: Any, number: tuple[int, ...], shape: tuple[int, ...]) -> int:
        name = (owner.term, owner.places) if isinstance(owner, Value) else id(owner)
        key = name, number
        if key not in self._places:
            self._places[key] = len(self.sources)
            self.sources.append(Source(owner, number, shape))
        return self._places[key]

    def note(self, value: Value, made: tuple[Any, Sequence[Value], int]) -> None:
        """Notes how a value was made: by an equation, of what, and as which of its results."""
        self._made[value.term, value.places] = made

    def made(self, value: Value) -> tuple[Any, Sequence[Value], int] | None:
        """How a value was made, if that was noted."""
        return self._made.get((value.term, value.places))

    def of(self, source: int, devices: Sequence[int], tick: int) -> Moved:
        """The whole of an array on each device."""
        shape = self.sources[source].shape
        atoms = [Atom(source, device, tick, (-1,) * len(shape)) for device in devices]
        ids = np.array([self.number([atom]) for atom in atoms])
        return Moved(ids.reshape(-1, *[1] * len(shape)), shape)

    def each(self, x: Moved, dims: Iterable[int]) -> Moved:
        """The same array with a piece for each index along some dims."""
        ids = x.ids
        for dim in dims:
            n = x.shape[dim]
            if ids.shape[dim + 1] == n:
                continue
            found, where = np.unique(ids, return_inverse=True)
            at = lambda atom, i, d=dim: atom._replace(
                index=(*atom.index[:d], i, *atom.index[d + 1 :])
            )
            rows = np.array(
                [[self.number(at(atom, i) for atom in self[p]) for i in range(n)] for p in found]
            )
            ids = np.moveaxis(rows[where.reshape(ids.shape)], -1, dim + 1)[
                (slice(None),) * (dim + 2) + (0,)
            ]
        return Moved(ids, x.shape)

    def alike(self, *given: Moved) -> list[Moved]:
        """Arrays of one shape that are cut into pieces alike."""
        dims = range(len(given[0].shape))
        cut = [d for d in dims if any(x.ids.shape[d + 1] != 1 for x in given)]
        return [self.each(x, cut) for x in given]

    def added(self, x: Moved, y: Moved) -> Moved:
        x, y = self.alike(x, y)
        pairs = np.stack(np.broadcast_arrays(x.ids, y.ids), -1)
        found, where = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        sums = np.array([self.number([*self[a], *self[b]]) for a, b in found])
        return Moved(sums[where.reshape(pairs.shape[:-1])], x.shape)


def zeros(devices: int, shape: tuple[int, ...]) -> Moved:
    return Moved(np.zeros((devices, *[1] * len(shape)), int), shape)


def exchanges(eqn: Any, axis: str) -> bool:
    """Whether an equation, or one in its parameters, moves something along an axis."""

    def names(x: Any) -> bool:
        return x == axis if isinstance(x, str) else isinstance(x, tuple) and any(map(names, x))

    def inside(x: Any) -> bool:
        x = getattr(x, "jaxpr", x)
        if isinstance(x, (tuple, list)):
            return any(map(inside, x))
        return any(exchanges(each, axis) for each in getattr(x, "eqns", ()))

    params = eqn.params.values()
    moves = eqn.primitive.name not in ("axis_index", "pvary")
    return (moves and any(map(names, params))) or any(map(inside, params))


def live(pieces: Pieces, ids: Iterable[np.ndarray], sources: Collection[int]) -> set:
    """Where and when that is computed of which some pieces consist."""
    found = {int(i) for each in ids for i in np.unique(each)}
    atoms = (atom for i in found for atom in pieces[i])
    return {(atom.device, atom.tick) for atom in atoms if atom.source in sources}


class Where(NamedTuple):
    """Where elements come from, all of which are of one array; see `Atom`."""

    source: Source
    device: np.ndarray
    tick: np.ndarray
    index: np.ndarray  # with a last dim for the dims of the source


def where_from(pieces: Pieces, ids: np.ndarray) -> Where:
    """Where some pieces come from.

    Raises:
      NotProved: they come from several arrays, or some are sums.
    """
    found, places = np.unique(ids, return_inverse=True)
    atoms = [pieces[int(i)] for i in found]
    sources = {atom.source for each in atoms for atom in each}
    if len(sources) != 1 or any(len(each) != 1 for each in atoms):
        raise NotProved("what is computed is put together from several arrays")
    one = [atom for (atom,) in atoms]
    of = lambda table: np.array(table)[places.reshape(ids.shape)]
    return Where(
        pieces.sources[sources.pop()],
        of([atom.device for atom in one]),
        of([atom.tick for atom in one]),
        of([atom.index for atom in one]),
    )


def _same(index: np.ndarray, n: int, dim: int) -> bool:
    """Whether elements along a dim have the index there that they had."""
    right = np.arange(n).reshape([-1 if d == dim else 1 for d in range(index.ndim)])
    return bool((index < 0).all()) or (index.shape[dim] == n and bool((index == right).all()))


def in_place(where: Where, shape: tuple[int, ...], lead: int) -> bool:
    """Whether pieces are whole arrays, as they were.

    Args:
      lead: how many dims there are before those of the array.
    """
    each = range(len(shape))
    alike = all(
        (
            x == x.reshape(*x.shape[:lead], -1)[..., :1].reshape(*x.shape[:lead], *[1] * len(shape))
        ).all()
        for x in (where.device, where.tick)
    )
    same = all(_same(where.index[..., d], shape[d], lead + d) for d in each)
    return alike and same and where.source.shape == shape


def along(
    where: Where, shape: tuple[int, ...], lead: int
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """The one dim along which pieces are parts of other arrays in a row.

    Returns:
      The dim; and for each of its elements the device, the tick, and the index.
    """
    source, ranks = where.source.shape, range(len(shape))
    moved = [
        d
        for d in ranks
        if source[d] != shape[d] or not _same(where.index[..., d], shape[d], lead + d)
    ]
    if len(moved) > 1 or not shape:
        raise NotProved("elements have moved along several dims")
    dim = moved[0] if moved else 0
    found = []
    for x in (where.device, where.tick, where.index[..., dim]):
        x = np.moveaxis(x, lead + dim, lead)
        x = x.reshape(*x.shape[: lead + 1], -1)
        if (x != x[..., :1]).any():
            raise NotProved("elements have moved along several dims")
        x = np.maximum(x[..., 0], 0)
        if x.shape[lead] not in (1, shape[dim]):
            raise NotProved("elements have moved along several dims")
        found.append(np.broadcast_to(x, (*x.shape[:lead], shape[dim])))
    if where.index.shape[lead + dim] == 1 < shape[dim]:
        found[2] = found[2] + np.arange(shape[dim])
    return dim, *found
