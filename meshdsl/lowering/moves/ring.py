"""`move = "ring"`: the parts of a dim go round the devices, and travel while these compute.

Where a rule with `move = "ring"` splits a dim at rest, and an op needs all of that dim on every
device, the op may take one part after the other instead of gathering them. On turn 0 a device has
its own part, on turn 1 the part of the device before it, and so on. So no device ever holds the
whole dim. Where the result is a sum over devices that the law would scatter over the dim, it is the
sums of the parts that go round: each device adds its own terms of a part when the sum of that part
comes by. In the backward pass a hop to the next device is a hop to the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives
from meshdsl.lowering.derivatives import linear
from meshdsl.lowering.moves.move import Axes, ByParts, Move, Parts, Rules
from meshdsl.lowering.window_arrays import resized
from meshdsl.program import recorder
from meshdsl.program.collective import crossed


class Ring(Parts):
    """Parts that go round the devices along `axes`."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (source, target) of a hop, as positions along the axes."""
        return [(i, (i + 1) % self.count) for i in range(self.count)]

    def hop(self, tree, *, back: bool = False):
        """Every array of `tree`, sent to the next device, or `back` to the one before.

        The hop is not written in the record: `note` does that.
        """
        pairs = [pair[::-1] for pair in self.pairs] if back else self.pairs
        with jax.named_scope(self._op.tag):
            return jax.tree.map(lambda x: collectives.ppermute(x, self.axes, pairs), tree)

    @property
    def ways(self) -> list[tuple[bool, list[int]]]:
        """The two ways round the ring: of each whether it goes back, and the turns of its parts.

        Parts travel both ways at the same time, each by the shorter way to a device. The turns are
        in the order in which their parts arrive.
        """
        ahead = self.count // 2
        return [
            (False, list(range(1, ahead + 1))),
            (True, list(range(self.count - 1, ahead, -1))),
        ]

    def arriving(self, x, at: int) -> tuple[list[jax.Array], jax.Array]:
        """All parts, in the order of their turns; and all of them put together as one array.

        A second call for the same array gives the same parts, which have then travelled once.

        Args:
          x: this device's own part.
          at: the position of the dim.
        """
        key = "ring", self._dim, self._outer, self.axes, self.order.name, at
        found = self._scope.remembered(x, key)
        if found is None:
            parts = {0: x}
            for back, turns in self.ways:
                here = x
                for turn in turns:
                    here = parts[turn] = self.hop(here, back=back)
            self.note(x, self.count - 1, in_backward=True)
            in_order = [parts[turn] for turn in range(self.count)]
            found = in_order, self.put_together(in_order, at)
            self._scope.remember(x, key, found)
        return found

    def summed(self, terms: Sequence[jax.Array]) -> jax.Array:
        """This device's part of a sum over devices: the transpose of `arriving`.

        The sum of each part goes round, and every device adds its own term of that part.

        Args:
          terms: this device's term of each part, in the order of the turns on which the parts of an
            operand would be here.
        """
        total = terms[0]
        self.note(total, self.count - 1, in_backward=True)
        for back, turns in self.ways:
            if turns:
                travelling = terms[turns[-1]]
                for turn in reversed(turns[:-1]):
                    travelling = self.hop(travelling, back=not back) + terms[turn]
                total = total + self.hop(travelling, back=not back)
        return total

    def put_together(self, parts: Sequence[jax.Array], at: int) -> jax.Array:
        """The whole dim, from the parts in the order of their turns."""
        return linear(
            lambda parts: self._put_together(parts, at), lambda x: self._taken_apart(x, at), parts
        )

    def taken_apart(self, x, at: int) -> list[jax.Array]:
        """The parts in the order of their turns, cut from an array that has all of them."""
        return linear(
            lambda x: self._taken_apart(x, at), lambda parts: self._put_together(parts, at), x
        )

    def _put_together(self, parts: Sequence[jax.Array], at: int) -> jax.Array:
        shape = list(parts[0].shape)
        shape[at] = self.size * self.count
        whole = collectives.vary(
            lax.empty(tuple(shape), parts[0].dtype), collectives.varying(parts[0]) | set(self.axes)
        )
        for turn, part in enumerate(parts):
            whole = self.put(whole, part, at, turn)
        return resized(whole, at, self._scope.part(self._dim, self._outer))

    def _taken_apart(self, x, at: int) -> list[jax.Array]:
        x = resized(x, at, self.size * self.count)
        return [self.part_of(x, at, turn) for turn in range(self.count)]

    def note(self, x, hops: int, *, in_backward: bool, alone: bool = False, dtype=None) -> None:
        """Write down that an array of the shape of `x` makes this number of hops.

        Args:
          in_backward: whether it makes them in the backward pass too.
          alone: whether it makes them in the backward pass alone.
          dtype: the dtype of the array; by default that of `x`.
        """
        size = x.size * jnp.dtype(dtype or x.dtype).itemsize
        if not size or not hops:
            return
        axes = crossed(self.pairs, self.axes, self._scope.sizes)
        backward = ByRing.backward["ppermute"] if in_backward else ""
        operation = "follow" if alone else "ppermute"
        move = recorder.Move(operation, axes, size, self._why, backward, count=hops)
        self._op.moves.append(move)

    def number(self, turn) -> jax.Array:
        """The number of the part that is here on a turn."""
        return (collectives.position(self.axes) - turn) % self.count

    def runs(self, turn) -> list[tuple[jax.Array, int]]:
        """The runs of the part that is here on a turn: of each run the first index and the size."""
        first = collectives.position(self._outer) * self.count if self._outer else 0
        return self.order.runs(first + self.number(turn), self.all_parts, self.size)

    def indices(self, turn) -> jax.Array:
        """The indices, in the whole dim, of the elements of the part that is here on a turn."""
        runs = [start + jnp.arange(size, dtype=jnp.int32) for start, size in self.runs(turn)]
        return jnp.concatenate(runs) if len(runs) > 1 else runs[0]

    @property
    def padded(self) -> bool:
        """Whether the last parts hold padding."""
        return self.size * self.all_parts != self._dim.size

    def part_of(self, x, at: int, turn) -> jax.Array:
        """From an array that has all parts: the part that is here on a turn."""
        whole = resized(x, at, self.size * self.count)
        return self.order.taken(whole, at, self.number(turn), self.count)

    def put(self, x, part, at: int, turn) -> jax.Array:
        """`x`, which has all parts, with `part` in its place: the inverse of `part_of`."""
        whole = resized(x, at, self.size * self.count)
        runs = self.order.runs(self.number(turn), self.count, self.size)
        for (start, _), run in zip(runs, jnp.split(part, len(runs), at), strict=True):
            whole = lax.dynamic_update_slice_in_dim(whole, run, start, at)
        return resized(whole, at, x.shape[at])


class ByRing(Move):
    """The move by which the parts of operands, or the sums of the parts of a result, go round."""

    name = "ring"
    words = "its parts go round a ring"
    backward = MappingProxyType({"ppermute": "ppermute"})
    view = Ring
    only_rules = "is gathered or summed as a whole"

    def operand_axes(self, fact: ByParts, free: Dims, rules: Rules) -> Axes:
        if fact.sent or not fact.dim.size:
            return ()
        axes_of = rules.split(free)
        taken = {a for d, axes in axes_of.items() if d != fact.dim and d.size for a in axes}
        axes = rules.parts_at_rest(self.name, fact.dim, fact.operands, taken)
        outer = axes_of.get(fact.dim, ())
        return axes if axes and _within(rules, fact.dim, outer, axes) else ()

    def result_axes(
        self, fact: ByParts, dims: Dims, now: Axes, summed: Collection[str], rules: Rules
    ) -> Axes:
        dim, scope = fact.dim, rules.scope
        if not fact.terms or dim not in dims or not dim.size:
            return ()
        law = scope.split(dims, rules.level)[dims.index(dim)]
        axes, named = law[len(now) :], scope.layout.taken(dims, rules.level)
        if law[: len(now)] != now or not set(axes) <= set(summed) or scope.parts(axes) == 1:
            return ()
        rings = all(named[a].move == self.name for a in axes)
        return axes if rings and _within(rules, dim, now, axes) else ()


def _within(rules: Rules, dim: Dim, outer: Axes, axes: Axes) -> bool:
    """Whether cutting the parts over `outer` again over `axes` needs no further padding."""
    scope = rules.scope
    return not outer or scope.padded(dim, outer) == scope.padded(dim, (*outer, *axes))
