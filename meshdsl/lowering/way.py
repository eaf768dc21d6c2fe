"""The way of an array from one split to another: changes of split, made and written down.

Sums of gradients that are taken in few bits are in `lossy_moves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshdsl.lowering import collectives, lossy_moves
from meshdsl.lowering.moves.gather import GATHER
from meshdsl.lowering.moves.move import NATURAL, Move, nbytes, record
from meshdsl.lowering.moves.turns import Leg, needs_all
from meshdsl.lowering.scope import Orders, Scope
from meshdsl.lowering.window_arrays import resized
from meshdsl.lowering.wires import Wired
from meshdsl.program.collective import crossed
from meshdsl.program.recorder import Op
from meshdsl.splits.changes import SUMS, Change

Why = Callable[[Change], str]  # gives the reason of a change, for the record: a rule, most often


class Way(NamedTuple):
    """The way of an array from one split to another.

    Attributes:
      legs: the legs of the way, with the changes to make.
      why: gives the reason of each change.
      varies: the axes over which the loop of the op is split that asked for the array. The array is
        made to vary over them before anything is gathered. Then the gradient is reduce-scattered
        over the axes of the gather first, and only the part that is left is summed over the other
        axes. The result of a gather varies over the axes of the gather that are among these.
      orders: the orders of parts before and after; by default those of the layout. Where a dim is
        split before and after, in two different orders, its parts exchange blocks before any other
        change. A dim that is whole is in natural order.
      constant: whether the array has no gradient, so that no backward pass is recorded.
      wire: the axes over which sums of the backward pass are taken in few bits.
      wire_of_sums: the same of sums that are taken on the way.
    """

    legs: list[Leg]
    scope: Scope
    why: Why
    varies: frozenset[str] = frozenset()
    orders: tuple[Orders, Orders] | None = None
    constant: bool = False
    wire: Wired = ()
    wire_of_sums: Wired = ()

    @property
    def changes(self) -> list[Change]:
        """All changes, in the order in which they are made."""
        return [change for leg in self.legs for change in leg.changes]

    def go(self, array, op: Op) -> jax.Array:
        """This device's array at the end of the way; the changes are in the record of `op`.

        First the array is made to vary over those axes of `varies` over which it does not yet. The
        axes of slices and sums are left out: it varies over the former afterwards in any case, and
        a sum goes over axes over which it varies already.
        """
        scope, changes = self.scope, self.changes
        free = {a for c in changes if c.operation in ("slice", *SUMS) for a in c.axes}
        missing = scope.in_mesh_order(self.varies - collectives.varying(array) - free)
        before, after = self.orders or (
            scope.orders(self.legs[0].dims, self.legs[0].now),
            scope.orders(self.legs[-1].dims, self.legs[-1].then),
        )
        with jax.named_scope(op.tag):
            if missing and not self.constant:
                reason = "the loop is split over it"
                record(op, scope, "vary", missing, nbytes(array), reason, "psum")
            if not self.constant and lossy_moves.is_lossy(self.wire, missing):
                at = self._last(self.legs[0].now), self.wire, scope, op, "the loop is split over it"
                array = lossy_moves.varied(array, missing, *at)
            array = collectives.vary(array, missing)
            for leg in self.legs:
                array = self._leg(array, leg, before, after, op)
                before = after
        return array

    def _leg(self, array, leg: Leg, before: Orders, after: Orders, op: Op) -> jax.Array:
        """The array at the end of a leg; its parts are in these orders before and after."""
        (dims, now, then, _), scope = leg, self.scope
        axes = list(now)
        order_at = []  # for each dim the order of its parts
        for i, d in enumerate(dims):
            old, new = before.get(d, NATURAL), after.get(d, NATURAL)
            stays_split = scope.parts(now[i]) > 1 < scope.parts(then[i])
            order_at.append(new if stays_split or new is not NATURAL else old)
            if stays_split and old is not new:
                array = self._reordered(array, i, now[i], old, op, into=False)
                array = self._reordered(array, i, now[i], new, op, into=True)
        for change in lossy_moves.exact_first(leg.changes, self.wire_of_sums, self.wire):
            if turn := scope.turn_of(change.axes):
                if change.operation != "slice":
                    raise needs_all(op.name, self.why(change), self.scope)
                array = turn.slice_of(array, change.dim)
                continue
            splits_dim = change.operation in ("slice", "psum_scatter", "all_to_all")
            if splits_dim and not axes[change.dim]:
                size = scope.padded(dims[change.dim], then[change.dim])
                array = resized(array, change.dim, size)
            left = list(axes)  # as they are while the runs are made
            for run in GATHER.in_runs(change, array, self.varies):
                if run.operation == "all_gather":
                    left[run.dim] = left[run.dim][: -len(run.axes)]
                array = self._changed(array, run, order_at, op, left)
            joined = _joined(change)
            if joined is not None:
                axes[joined] = axes[joined][: -len(change.axes)]
                if not axes[joined]:
                    array = resized(array, joined, dims[joined].size)
            if splits_dim:
                axes[change.dim] = (*axes[change.dim], *change.axes)
        return array

    def _reordered(self, array, at: int, axes, order: Move, op: Op, *, into: bool) -> Any:
        """The array after the parts of a dim have exchanged blocks, into an order or back.

        Args:
          at, axes: the position of the dim, and the axes that split it.
          into: from the natural order into `order`; otherwise back.
        """
        if order is NATURAL:
            return array
        scope, reason = self.scope, self.why(Change("ppermute", axes, at, order=axes))
        backward = "" if self.constant else order.backward["ppermute"]

        def send(piece, pairs):
            across = crossed(pairs, axes, scope.sizes)
            record(op, scope, "ppermute", across, nbytes(piece), reason, backward)
            return collectives.ppermute(piece, axes, pairs)

        return order.reordered(array, at, axes, scope.sizes, send, into=into)

    def _changed(
        self, array, change: Change, order_at: list[Move], op: Op, left: list[tuple[str, ...]]
    ) -> jax.Array:
        """The array after one change.

        Args:
          order_at: the order of the parts of each dim.
          left: for each dim the axes that split it; without those of a gather, and before a sum.
        """
        scope, before, axes = self.scope, nbytes(array), change.axes
        crosses, parts = axes, scope.parts(axes)
        if change.operation in ("psum_scatter", "all_to_all"):
            array = order_at[change.dim].cut(array, change.dim, parts)
        backward = ""  # what this change is in the backward pass: a collective, or nothing
        lossy = scope, op, self.why(change)
        match change.operation:
            case "psum" | "psum_scatter" if lossy_moves.is_lossy(self.wire_of_sums, axes):
                last = self._last(left)
                return lossy_moves.summed(array, change, last, self.wire_of_sums, *lossy)
            case "psum":
                array = collectives.psum(array, axes)
            case "psum_scatter":
                array, backward = collectives.psum_scatter(array, axes, change.dim), "all_gather"
            case "all_to_all":
                array = collectives.all_to_all(array, axes, change.dim, change.source)
                backward = "all_to_all"
            case "ppermute":
                pairs = _reordering(change, scope.sizes)
                crosses = crossed(pairs, axes, scope.sizes)
                array, backward = collectives.ppermute(array, axes, pairs), "ppermute"
            case "slice":
                order = order_at[change.dim]
                array, backward = GATHER.own(array, change.dim, axes, scope.sizes, order)
            case "all_gather" if self._sums_lossy(axes):
                last = self._last(left)
                array = lossy_moves.gathered(array, change, last, self.wire, *lossy)
            case "all_gather":
                array, backward = GATHER.whole(array, change.dim, axes, self.varies)
            case unknown:
                raise AssertionError(unknown)
        joined = _joined(change)
        if joined is not None:
            array = order_at[joined].joined(array, joined, parts)
        size = max(before, nbytes(array))
        if change.operation in SUMS:
            size = size // array.dtype.itemsize * collectives.sum_dtype(array.dtype).itemsize
        backward = "" if self.constant else backward
        record(op, scope, change.operation, crosses, size, self.why(change), backward)
        return array

    def _sums_lossy(self, axes: tuple[str, ...]) -> bool:
        """Whether the backward pass of a gather over `axes` is a sum in few bits."""
        varies = not self.constant and not self.varies.isdisjoint(axes)
        return varies and lossy_moves.is_lossy(self.wire, axes)

    def _last(self, split: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The axes of the mesh that split the last dim."""
        return tuple(a for a in split[-1] if a not in self.scope.turns) if split else ()


def _joined(change: Change) -> int | None:
    """The position of the dim whose parts a change joins; None for a change that joins none."""
    return {"all_to_all": change.source, "all_gather": change.dim}.get(change.operation)


def _reordering(change: Change, sizes) -> list[tuple[int, int]]:
    """The pairs (source, target) of devices of a ppermute that changes the order of a dim's axes.

    Devices are counted along the axes in the order that these had before.
    """
    shape = [sizes[a] for a in change.axes]
    blocks = np.arange(math.prod(shape)).reshape([sizes[a] for a in change.order])
    wanted = blocks.transpose([change.order.index(a) for a in change.axes]).ravel()
    return [(int(source), target) for target, source in enumerate(wanted)]
