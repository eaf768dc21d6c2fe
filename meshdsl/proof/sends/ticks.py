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
from typing import Any

import numpy as np

from meshdsl.program.jaxpr import scan_counts
from meshdsl.proof.elements import together
from meshdsl.proof.forms.sums import linear, total
from meshdsl.proof.labels import Part, labelled, size_of
from meshdsl.proof.lemmas import CALLS, ELEMENTS, Walk, lemma
from meshdsl.proof.loops import looped
from meshdsl.proof.moves import gathered, given_out
from meshdsl.proof.sends.alone import on_device, put_together
from meshdsl.proof.sends.followed import Followed, Grid, unknown
from meshdsl.proof.sends.items import axes_of, counted, parts_of
from meshdsl.proof.sends.routes import Atom, Held, Moved, along, in_place, where_from
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, relabelled, unchanging

Cell = tuple[int, int]  # a device, and a tick


@lemma("scan")
def _scan(walk: Walk, eqn, *values: Value) -> list[Value]:
    axis = _handed_along(eqn.params["jaxpr"]) if walk.sends == ELEMENTS else None
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


class Ticks(Followed):
    """A loop in which devices hand on what they carry, of which items are looked for.

    Attributes:
      items: the parts of the dim of the items.
      turns: the parts of a dim of how often each item has come to the first device before.
      work: on which item a device works at a tick, and at which of its turns; an item takes a turn
        at each device, once or more often.

    Raises:
      NotProved: it is not as the text at the top of this file says.
    """

    def __init__(self, walk: Walk, eqn, values: Sequence[Value], axis: str):
        super().__init__(walk, eqn, values, axis)
        self._scan = self._handed_scan()
        count = scan_counts(self.made[self._scan].eqn.params)[1]
        self._afresh = [i for i in range(count) if not self._is_handed(i)]
        self._carried = {(self._scan, i) for i in range(count) if i not in self._afresh}
        self._ticks, self._reverse = self._items()  # of each item, at each of its turns
        self._length = self._ticks.shape[1]
        self.items = parts_of(self._length, len(self.devices))
        self.turns = parts_of(len(self._ticks) // len(self.devices), 1)
        self.work = {
            (turn % len(self.devices), int(tick)): (turn, item)
            for turn, ticks in enumerate(self._ticks)
            for item, tick in enumerate(ticks)
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

    def _is_handed(self, i: int) -> bool:
        """Whether what the loop carries as this number goes on from what it has computed before."""
        eqn, given = self.made[self._scan]
        j = scan_counts(eqn.params)[0] + i
        ids = {int(n) for held in given.values() for n in _ids(held[j])}
        return any(self._source(atom.source) == self._scan for n in ids for atom in self.pieces[n])

    def _before(self, cell: Cell) -> Cell | None:
        """Where and when that is computed from which a device goes on; None for what enters."""
        device, tick = cell
        eqn, given = self.made[self._scan]
        consts, carries = scan_counts(eqn.params)
        found = set()
        for j, x in enumerate(given[tick]):
            carried = consts <= j < consts + carries and j - consts not in self._afresh
            ids = x.ids[[device]] if isinstance(x, Moved) else np.zeros(0, int)
            atoms = (atom for i in np.unique(ids) for atom in self.pieces[int(i)])
            if all(self._source(atom.source) != self._scan for atom in atoms):
                found.update([None] if carried else [])
                continue
            where = where_from(self.pieces, ids)
            whole = carried and in_place(where, where.source.shape, 1)
            if not whole or where.source.number != (self._scan, j - consts):
                raise NotProved("a loop goes on from something else than what was handed on to it")
            found.add((int(where.device.flat[0]), int(where.tick.flat[0])))
        if len(found) != 1:
            raise NotProved("a loop goes on from what was computed in several places")
        return found.pop()

    def _items(self) -> tuple[np.ndarray, bool]:
        """For each turn the tick at which each item takes it; and whether items go backwards.

        Turns are in the order of the devices, round by round, also if items go backwards.

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
            place = before[cell] = self._before(cell)
            if place is not None and place not in before:
                left.add(place)
        after = {place: cell for cell, place in before.items() if place is not None}
        chains = []
        for cell in (cell for cell, place in before.items() if place is None):
            chain = [cell]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            chains.append(chain)
        length = max(map(len, chains), default=0)
        chains = [chain for chain in chains if len(chain) == length]
        orders = {tuple(device for device, _ in chain) for chain in chains}
        forward = tuple(self.devices) * (length // len(self.devices))
        back = tuple(reversed(forward))
        if not length or orders not in ({forward}, {back}):
            raise NotProved("devices do not work on items in their order")
        chains.sort(key=lambda chain: self._enters_from(chain[0]))
        step = 1 if orders == {forward} else -1
        return np.array([[tick for _, tick in chain[::step]] for chain in chains]).T, step < 0

    def _enters_from(self, cell: Cell) -> tuple:
        """A number by which items are sorted: that of the place that they come from."""
        eqn, given = self.made[self._scan]
        handed = min(i for _, i in self._carried)
        first = given[cell[1]][scan_counts(eqn.params)[0] + handed]
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
        elif (number, i) in self._carried:
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
            handed = [j for j in carried if j - consts not in self._afresh]
            values = [self._given(number, j, j in handed) for j in range(len(eqn.invars))]
            if bool(eqn.params["reverse"]) != self._reverse:
                raise NotProved("the rounds of a loop are in the reverse order of its devices")
            around = (*self.turns, Part(len(self.devices), self.axis))
            if any(labelled(around).keys() & values[j].labels.keys() for j in carried):
                raise NotProved("what enters at the first device depends on later turns")
            self._values[number] = self.walk.step(
                eqn, lambda: looped(self.walk, eqn, values, around, self._afresh)
            )
        return self._values[number]

    def _given(self, number: int, j: int, enters: bool = False) -> Value:
        """An operand of an equation, for each item; where it enters, or on each device."""
        eqn, given = self.made[number]
        first = len(self._ticks) - 1 if self._reverse else 0
        turns = [first] if enters else list(range(len(self._ticks)))
        each = [[given[int(tick)][j] for tick in self._ticks[turn]] for turn in turns]
        devices = [turn % len(self.devices) for turn in turns]
        moved = [x for row in each for x in row if isinstance(x, Moved)]
        if not moved:
            table = np.array([[x[d] for x in row] for d, row in zip(devices, each, strict=True)])
            return self._counted(table, eqn.invars[j].aval.dtype)
        if len(moved) < len(turns) * self._length:
            raise NotProved("an operand is known at some ticks alone")
        places = np.repeat(devices, self._length)
        ids = [x.ids[d] for x, d in zip(self.pieces.alike(*moved), places, strict=True)]
        table = np.array(ids).reshape(len(turns), self._length, *ids[0].shape)
        return self._assembled(table, moved[0].shape, turns)

    def _counted(self, table: np.ndarray, dtype: Any) -> Value:
        """Numbers that are known, at each turn of each item."""
        device = Part(len(self.devices), self.axis)
        return counted(self.walk.terms, table, dtype, self.turns, device, self.items)

    def _assembled(self, ids: np.ndarray, shape: tuple[int, ...], turns: Sequence[int]) -> Value:
        """What pieces are together, which are those of each turn for each item."""
        if not ids.any():
            return self._zero(shape)
        where = where_from(self.pieces, ids)
        owner, axis = where.source.owner, self.axis
        place = in_place(where, shape, 2)
        if isinstance(owner, Ticks):
            cells = zip(where.device.flat, where.tick.flat, strict=True)
            found = [owner.work.get((int(device), int(tick))) for device, tick in cells]
            right = [(turns[index[0]], index[1]) for index in np.ndindex(*ids.shape)]
            alike = place and owner._ticks.shape == self._ticks.shape
            if not alike or found != right:
                raise NotProved("devices work on what was computed for other items")
            old, new = (labelled((*loop.turns, *loop.items)) for loop in (owner, self))
            names = dict(zip(old, new, strict=True))
            return relabelled(owner.value(*where.source.number), names)
        value = owner
        if where.tick.max() >= 0:
            raise NotProved("a list has another element for each tick")
        devices = np.array(turns).reshape(-1, *[1] * (ids.ndim - 1)) % len(self.devices)
        own = (where.device == devices).all()
        if len(turns) == 1 and own:
            value = self._on(value, int(devices.flat[0])) or value
        apart = axis in value.labels and not (len(turns) > 1 and own)
        device = where.device if apart else np.zeros_like(where.device)
        if place and not apart:
            return value
        dim, device, _, index = along(where._replace(device=device), shape, 2)
        n, size = where.source.shape[dim], shape[dim]
        rows = np.arange(size)
        right = np.arange(self._length)[:, None] * size + rows
        if (
            not apart
            and (index == np.array(turns)[:, None, None] // len(self.devices) * size + rows).all()
        ):
            parts = self.turns
        elif (device * n + index == right).all():
            parts = self.items
        else:
            raise NotProved("items are not parts in a row")
        if apart:
            value = gathered(value, dim, [(axis, len(self.devices))])
        if value.shape[dim] != size_of(parts) * size:
            raise NotProved("items are only a part of what there is")
        return given_out(value, dim, axes_of(parts))

    def _on(self, value: Value, device: int) -> Value | None:
        """What a device has."""
        return on_device(self.walk.terms, value, Part(len(self.devices), self.axis), device)

    def _zero(self, shape: tuple[int, ...]) -> Value:
        return Value(self.walk.terms.constant(0, ""), (), unchanging(shape))

    # What is there at the end.

    def _at_end(self, x: Held, shape: tuple[int, ...]) -> Value:
        """What each device has after the last tick."""
        if not isinstance(x, Moved):
            return self._counted(x[:, None], x.dtype)
        if not x.ids.any():
            return self._zero(shape)
        if (found := self._summed(x.ids)) is not None:
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
        """What is added up at each tick, to what there is before; None if it is not that.

        If items take several turns at a device, each turn has its own part of a dim. Or each item
        has its part of a dim, to which all turns add something.
        """
        dims, count = [d for d, n in enumerate(ids.shape[1:]) if n > 1], len(self.devices)
        table, rounds = ids.reshape(count, -1), len(self._ticks) // count
        dim, (size, rest) = dims[0] if dims else 0, divmod(table.shape[1], rounds)
        if len(dims) > 1:
            return None
        places = {place: self.pieces[int(i)] for place, i in np.ndenumerate(table)}
        added: list[Value] = []
        for number in sorted({atom.source for atoms in places.values() for atom in atoms}):
            source = self.pieces.sources[number]
            begins = isinstance(source.owner, Value)
            if not begins and (source.owner is not self or source.number in self._carried):
                return None
            own = source.shape[dim] if dims else size
            each = not begins and own != size and own * self._length == table.shape[1]
            if not begins and not each and rest:
                return None
            n = table.shape[1] if begins else own if each else size
            for (device, row), atoms in places.items():
                if each:
                    ticks = sorted(self._ticks[device::count, row // n])
                else:
                    ticks = [-1] if begins else sorted(self._ticks[row // n * count + device])
                at = [row % n if d in dims and m > 1 else -1 for d, m in enumerate(source.shape)]
                right = [Atom(number, device, int(tick), tuple(at)) for tick in ticks]
                if [atom for atom in atoms if atom.source == number] != right:
                    return None
            if begins:
                added.append(source.owner)
                continue
            value, kept, gone = self.value(*source.number), self.turns, self.items
            if each:
                kept, gone = gone, kept
            gone = dict(axes_of(gone))
            value = total(self.walk.terms, value, gone, gone)
            added.append(gathered(value, dim, axes_of(kept)) if each or rounds > 1 else value)
        added, dims = together(added)
        return linear(self.walk.terms, [(1, value) for value in added], dims)

    def _left(self, ids: np.ndarray, shape: tuple[int, ...], share: bool) -> Value | None:
        """What has left the last device, item by item in a row; None if it is not that.

        Args:
          share: whether each device has its part of it; otherwise each has all.
        """
        if not ids.any():
            return self._zero(shape)
        where = where_from(self.pieces, ids)
        source, axis = where.source, self.axis
        if isinstance(source.owner, Value):
            if share or not in_place(where, shape, 1) or where.tick.max() >= 0:
                return None
            return self._on(source.owner, int(where.device.flat[0]))
        last = 0 if self._reverse else len(self._ticks) - 1
        dim, device, tick, index = along(where, shape, 1)
        if source.owner is not self or source.number not in self._carried:
            return None
        cells = zip(device.flat, tick.flat, strict=True)
        work = [self.work.get((int(d), int(t)), (-1, 0)) for d, t in cells]
        item = np.array([item for _, item in work]).reshape(tick.shape)
        size, n = source.shape[dim], shape[dim]
        right = np.arange(len(ids))[:, None] * n + np.arange(n)
        if any(turn != last for turn, _ in work) or (item * size + index != right).any():
            return None
        if right.size != self._length * size:
            return None
        value = gathered(self._run()[source.number[1]], dim, axes_of(self.items))
        return given_out(value, dim, [(axis, len(self.devices))]) if share else value


def _ids(x: Held) -> Iterable[int]:
    return np.unique(x.ids) if isinstance(x, Moved) else ()
