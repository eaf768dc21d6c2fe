"""Loops whose devices hand on what they carry: pipelines, as loops over devices.

At each *tick* of such a loop a device runs a `scan` on what the device before has handed on to it
at the tick before. On one *item*, which enters at the first device and leaves from the last one,
all of these scans together are one, over the devices and then over the rounds of each. And items
are a dim like any other: what one tick does for one of them, all ticks do for all.

    tick       0 1 2 3          x[s + 1, i] = scan(x[s, i]) for each device s and each item i,
    device 0   0 1 2 .          whatever the ticks at which that is computed
    device 1   . 0 1 2

Which device works on which item when, and what it takes from where, follows from numbers that are
known. No schedule is taken for granted: the ticks are gone through (`followed`), and where the
elements of each array come from is looked up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshdsl.program.jaxpr import scan_counts
from meshdsl.proof.alone import on_device, put_together
from meshdsl.proof.elements import together
from meshdsl.proof.followed import Followed, Grid, unknown
from meshdsl.proof.lemmas import CALLS, Walk, lemma
from meshdsl.proof.loops import looped
from meshdsl.proof.moves import Axes, gathered, given_out
from meshdsl.proof.routes import Held, Moved, Source
from meshdsl.proof.sums import linear, total
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import (
    Part,
    Parts,
    Value,
    fresh,
    relabelled,
    size_of,
    unchanging,
)

Cell = tuple[int, int]  # a device, and a tick


@lemma("scan")
def _scan(walk: Walk, eqn, *values: Value) -> list[Value]:
    axis = _handed_along(eqn.params["jaxpr"])
    return looped(walk, eqn, values) if axis is None else Ticks(walk, eqn, values, axis).results()


def _handed_along(jaxpr: Any) -> str | None:
    """The axis along which a program hands something on, outside of its loops."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, axes = eqn.primitive.name, eqn.params.get("axis_name")
        if name in CALLS and (found := _handed_along(eqn.params[CALLS[name]])):
            return found
        if name == "ppermute":
            axes = axes if isinstance(axes, tuple) else (axes,)
            return axes[0] if len(axes) == 1 else None
    return None


class Where(NamedTuple):
    """Where elements come from, all of which are of one array; see `Atom`."""

    source: Source
    device: np.ndarray
    tick: np.ndarray
    index: np.ndarray  # with a last dim for the dims of the source


class Ticks(Followed):
    """A loop in which devices hand on what they carry, of which items are looked for.

    Attributes:
      items: the parts of the dim of the items.
      item: which of them a device works on at a tick.

    Raises:
      NotProved: it is not as the text at the top of this file says.
    """

    def __init__(self, walk: Walk, eqn, values: Sequence[Value], axis: str):
        super().__init__(walk, eqn, values, axis)
        self._scan = self._handed_scan()
        self._carries = scan_counts(self.made[self._scan].eqn.params)[1]
        self._ticks, self._reverse = self._items()  # for each device that of each item
        self._length = self._ticks.shape[1]
        self.items = _parts(self._length, len(self.devices))
        self.item = {
            (device, int(tick)): item
            for device in self.devices
            for item, tick in enumerate(self._ticks[device])
        }
        self._values: dict[int, Sequence[Value]] = {}

    def results(self) -> list[Value]:
        """What is carried after all ticks, and what else they make.

        What has no other form is a value of which nothing is known.
        """
        found = []
        for x, var in zip(self.last, self.eqn.outvars, strict=False):
            try:
                found.append(self._at_end(x, var.aval.shape))
            except NotProved:
                found.append(unknown(self.walk, var.aval.shape))
        for held, var in zip(self.each, self.eqn.outvars[len(found) :], strict=True):
            found.append(Grid(self.axis, held, var.aval.shape[1:]).value(self.walk))
        return found

    @property
    def _axes(self) -> Axes:
        return [(label, size) for size, label in self.items if label is not None]

    # Which scan, and which items.

    def _handed_scan(self) -> int:
        """The equation that computes what is handed on to itself."""
        found = []
        for number, (_, given) in enumerate(self.made):
            ids = {int(i) for held in given.values() for x in held for i in _ids(x)}
            own = {self._source(atom.source) for i in ids for atom in self.pieces[i]}
            if number in own:
                found.append(number)
        if len(found) != 1 or self.made[found[0]].eqn.primitive.name != "scan":
            raise NotProved("what devices hand on to each other is not what one loop makes")
        return found[0]

    def _source(self, number: int) -> int | None:
        """The equation of this loop that computes an array."""
        source = self.pieces.sources[number]
        return source.number[0] if source.owner is self else None

    def _before(self, cell: Cell) -> Cell | None:
        """Where and when that is computed from which a device goes on; None for what enters."""
        device, tick = cell
        eqn, given = self.made[self._scan]
        consts, carries = scan_counts(eqn.params)
        found = set()
        for j, x in enumerate(given[tick]):
            carried = consts <= j < consts + carries
            ids = x.ids[[device]] if isinstance(x, Moved) else np.zeros(0, int)
            atoms = (atom for i in np.unique(ids) for atom in self.pieces[int(i)])
            if all(self._source(atom.source) != self._scan for atom in atoms):
                found.update([None] if carried else [])
                continue
            where = self._where(ids)
            whole = carried and _in_place(where, where.source.shape, 1)
            if not whole or where.source.number != (self._scan, j - consts):
                raise NotProved("a loop goes on from something else than what was handed on to it")
            found.add((int(where.device.flat[0]), int(where.tick.flat[0])))
        if len(found) != 1:
            raise NotProved("a loop goes on from what was computed in several places")
        return found.pop()

    def _items(self) -> tuple[np.ndarray, bool]:
        """For each device the tick at which it works on each item; and whether the last one begins.

        An item that no result of the loop depends on is none, and neither is one that does not come
        to the last device.
        """
        left = {
            (atom.device, atom.tick)
            for x in self.last
            for i in _ids(x)
            for atom in self.pieces[int(i)]
            if self._source(atom.source) == self._scan
        }
        before: dict[Cell, Cell | None] = {}
        while left:
            cell = left.pop()
            before[cell] = self._before(cell)
            if before[cell] is not None and before[cell] not in before:
                left.add(before[cell])
        after = {place: cell for cell, place in before.items() if place is not None}
        chains = []
        for cell in (cell for cell, place in before.items() if place is None):
            chain = [cell]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            chains.append(chain)
        chains = [chain for chain in chains if len(chain) == len(self.devices)]
        orders = {tuple(device for device, _ in chain) for chain in chains}
        forward, back = tuple(self.devices), tuple(reversed(self.devices))
        if orders not in ({forward}, {back}):
            raise NotProved("devices do not work on items in their order")
        chains.sort(key=lambda chain: self._enters_from(chain[0]))
        return np.array([[tick for _, tick in sorted(chain)] for chain in chains]).T, orders == {
            back
        }

    def _enters_from(self, cell: Cell) -> tuple:
        """A number by which items are sorted: that of the place that they come from."""
        eqn, given = self.made[self._scan]
        first = given[cell[1]][scan_counts(eqn.params)[0]]
        atoms = self.pieces[int(first.ids[cell[0]].flat[0])] if isinstance(first, Moved) else ()
        return *((atom.device, atom.index) for atom in atoms), cell

    # What that means.

    def value(self, number: int, i: int) -> Value:
        """A result of an equation, on each device for each item.

        Raises:
          NotProved: it is what the scan carries on, which is known only from the last device.
        """
        eqn = self.made[number].eqn
        if number != self._scan:
            if number not in self._values:
                values = [self._given(number, j) for j in range(len(eqn.invars))]
                self._values[number] = self.walk.step(eqn, lambda: self.walk.applied(eqn, values))
        elif i < self._carries:
            raise NotProved("what a device hands on is used in another way too")
        else:
            self._run()
        return self._values[number][i]

    def _run(self) -> Sequence[Value]:
        """The results of the scan over all devices."""
        eqn, number = self.made[self._scan].eqn, self._scan
        if number not in self._values:
            consts, carries = scan_counts(eqn.params)
            carried = range(consts, consts + carries)
            values = [self._given(number, j, j in carried) for j in range(len(eqn.invars))]
            if bool(eqn.params["reverse"]) != self._reverse:
                raise NotProved("the rounds of a loop are in the reverse order of its devices")
            if any(self.axis in values[j].labels for j in carried):
                raise NotProved("what enters at the first device depends on others")
            around = (Part(len(self.devices), self.axis),)
            self._values[number] = self.walk.step(
                eqn, lambda: looped(self.walk, eqn, values, around)
            )
        return self._values[number]

    def _given(self, number: int, j: int, enters: bool = False) -> Value:
        """An operand of an equation, for each item; where it enters, or on each device."""
        eqn, given = self.made[number]
        first = len(self.devices) - 1 if self._reverse else 0
        devices = [first] if enters else list(self.devices)
        each = [[given[int(t)][j] for t in self._ticks[d]] for d in devices]
        moved = [x for row in each for x in row if isinstance(x, Moved)]
        if not moved:
            table = np.array([[x[d] for x in row] for d, row in zip(devices, each, strict=True)])
            return self._counted(table, eqn.invars[j].aval.dtype, devices)
        if len(moved) < len(devices) * self._length:
            raise NotProved("an operand is known at some ticks alone")
        places = np.repeat(devices, self._length)
        ids = [x.ids[d] for x, d in zip(self.pieces.alike(*moved), places, strict=True)]
        table = np.array(ids).reshape(len(devices), self._length, *ids[0].shape)
        return self._assembled(table, moved[0].shape, devices)

    def _counted(self, table: np.ndarray, dtype: Any, devices: Sequence[int]) -> Value:
        """Numbers that are known, for each device and item."""
        terms, begin = self.walk.terms, table[0, 0]
        first = Value(terms.constant(begin, dtype), (), ())
        if (table == begin).all():
            return first
        if table.dtype == bool or len(devices) < len(self.devices):
            raise NotProved("numbers do not count devices and items")
        table = table.astype(int) - int(begin)
        step, of_items = table[1, 0], table[0, -1] // max(1, self._length - 1)
        counts = [np.arange(n) for n in table.shape]
        if (table != step * counts[0][:, None] + of_items * counts[1]).any():
            raise NotProved("numbers do not count devices and items")
        pairs = [(1, first)]
        of_devices = (Part(len(self.devices), self.axis),)
        for factor, parts in ((step, of_devices), (of_items, self.items)):
            if factor:
                count = Value(terms.iota(size_of(parts)), (parts,), ())
                pairs.append((int(factor), count))
        return linear(terms, pairs, ())

    def _assembled(self, ids: np.ndarray, shape: tuple[int, ...], devices: Sequence[int]) -> Value:
        """What pieces are together, which are those of each device for each item."""
        if not ids.any():
            return self._zero(shape)
        where = self._where(ids)
        owner, axis = where.source.owner, self.axis
        own = np.array(devices).reshape(-1, *[1] * (ids.ndim - 1))
        place = _in_place(where, shape, 2)
        if isinstance(owner, Ticks):
            cells = zip(where.device.flat, where.tick.flat, strict=True)
            items = [owner.item.get((int(d), int(t))) for d, t in cells]
            own_item = np.broadcast_to(
                np.arange(self._length).reshape(-1, *[1] * len(shape)), ids.shape
            )
            same = place and owner._length == self._length
            if not same or (where.device != own).any() or items != list(own_item.flat):
                raise NotProved("devices work on what was computed for other items")
            pairs = zip(owner.items, self.items, strict=True)
            names = {old.label: new.label for old, new in pairs}
            return relabelled(owner.value(*where.source.number), names)
        value = owner
        if where.tick.max() >= 0:
            raise NotProved("a list has another element for each tick")
        own = (where.device == own).all()
        if len(devices) == 1 and own:
            value = self._on(value, devices[0]) or value
        apart = axis in value.labels and not (len(devices) > 1 and own)
        device = where.device if apart else np.zeros_like(where.device)
        if place and not apart:
            return value
        dim, device, _, index = _along(where._replace(device=device), shape, 2)
        n, size = where.source.shape[dim], shape[dim]
        right = np.arange(self._length)[:, None] * size + np.arange(size)
        if (device * n + index != right).any():
            raise NotProved("items are not parts in a row")
        if apart:
            value = gathered(value, dim, [(axis, len(self.devices))])
        if value.shape[dim] != self._length * size:
            raise NotProved("items are only a part of what there is")
        return given_out(value, dim, self._axes)

    def _where(self, ids: np.ndarray) -> Where:
        """Where pieces come from.

        Raises:
          NotProved: they come from several arrays, or some are sums.
        """
        found, places = np.unique(ids, return_inverse=True)
        atoms = [self.pieces[int(i)] for i in found]
        sources = {atom.source for each in atoms for atom in each}
        if len(sources) != 1 or any(len(each) != 1 for each in atoms):
            raise NotProved("what is computed is put together from several arrays")
        one = [atom for (atom,) in atoms]
        of = lambda table: np.array(table)[places.reshape(ids.shape)]
        return Where(
            self.pieces.sources[sources.pop()],
            of([atom.device for atom in one]),
            of([atom.tick for atom in one]),
            of([atom.index for atom in one]),
        )

    def _on(self, value: Value, device: int) -> Value | None:
        """What a device has."""
        return on_device(self.walk.terms, value, Part(len(self.devices), self.axis), device)

    def _zero(self, shape: tuple[int, ...]) -> Value:
        return Value(self.walk.terms.constant(0, ""), (), unchanging(shape))

    # What is there at the end.

    def _at_end(self, x: Held, shape: tuple[int, ...]) -> Value:
        """What each device has after the last tick."""
        if not isinstance(x, Moved):
            return self._counted(x[:, None], x.dtype, list(self.devices))
        if not x.ids.any():
            return self._zero(shape)
        if x.ids[0].size == 1 and (found := self._summed(x.ids.reshape(-1))):
            return found
        with contextlib.suppress(NotProved):
            if found := self._left(x.ids, shape, share=True):
                return found
        each = [self._left(x.ids[[device]], shape, share=False) for device in self.devices]
        kept = [value for value in each if value is not None]
        if len(kept) < len(each):
            raise NotProved("what is left at the end has no other form")
        kept, dims = together(kept)
        return put_together(self.walk.terms, kept, Part(len(each), self.axis), dims)

    def _summed(self, ids: np.ndarray) -> Value | None:
        """What is added up at each tick, to what there is before; None if it is not that."""
        added: list[Value] = []
        atoms = [self.pieces[int(i)] for i in ids]
        for number in sorted({atom.source for each in atoms for atom in each}):
            source = self.pieces.sources[number]
            each = [[atom for atom in of if atom.source == number] for of in atoms]
            ticks = [[atom.tick for atom in of] for of in each]
            flat = [(device, atom) for device, of in enumerate(each) for atom in of]
            if any(
                atom.device != device or max(atom.index, default=-1) >= 0 for device, atom in flat
            ):
                return None
            of_scan = source.owner is self and source.number[0] == self._scan
            if source.owner is self and ticks == [sorted(map(int, of)) for of in self._ticks]:
                if of_scan and source.number[1] < self._carries:
                    return None
                value = self.value(*source.number)
                value = total(self.walk.terms, value, dict(self._axes), dict(self._axes))
            elif isinstance(source.owner, Value) and all(of == [-1] for of in ticks):
                value = source.owner
            else:
                return None
            added.append(value)
        added, dims = together(added)
        return linear(self.walk.terms, [(1, value) for value in added], dims)

    def _left(self, ids: np.ndarray, shape: tuple[int, ...], share: bool) -> Value | None:
        """What has left the last device, item by item in a row; None if it is not that.

        Args:
          share: whether each device has its part of it; otherwise each has all.
        """
        if not ids.any():
            return self._zero(shape)
        where = self._where(ids)
        source, axis = where.source, self.axis
        if isinstance(source.owner, Value):
            if share or not _in_place(where, shape, 1) or where.tick.max() >= 0:
                return None
            return self._on(source.owner, int(where.device.flat[0]))
        last = 0 if self._reverse else len(self.devices) - 1
        dim, device, tick, index = _along(where, shape, 1)
        of_scan = source.owner is self and source.number[0] == self._scan
        if not of_scan or source.number[1] >= self._carries or (device != last).any():
            return None
        item = np.vectorize(lambda t: self.item.get((last, int(t)), -1))(tick)
        size, n = source.shape[dim], shape[dim]
        right = np.arange(len(ids))[:, None] * n + np.arange(n)
        if (item < 0).any() or (item * size + index != right).any():
            return None
        if right.size != self._length * size:
            return None
        value = gathered(self._run()[source.number[1]], dim, self._axes)
        return given_out(value, dim, [(axis, len(self.devices))]) if share else value


def _parts(count: int, devices: int) -> Parts:
    """A dim of items: a part for the devices that may share them, and others of prime sizes."""
    shared = count % devices == 0
    found, rest = ([devices], count // devices) if shared else ([], count)
    for prime in range(2, rest + 1):
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
    return tuple(Part(size, fresh()) for size in found)


def _ids(x: Held) -> Iterable[int]:
    return np.unique(x.ids) if isinstance(x, Moved) else ()


def _same(index: np.ndarray, n: int, dim: int) -> bool:
    """Whether elements along a dim have the index there that they had."""
    right = np.arange(n).reshape([-1 if d == dim else 1 for d in range(index.ndim)])
    return bool((index < 0).all()) or (index.shape[dim] == n and bool((index == right).all()))


def _in_place(where: Where, shape: tuple[int, ...], lead: int) -> bool:
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


def _along(
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
