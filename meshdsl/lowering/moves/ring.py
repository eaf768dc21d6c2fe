"""`move = "ring"`: the parts of a dim go round, and the next one travels while a device computes.

Where a rule with `move = "ring"` splits a dim at rest, and an op needs all of that dim on every
device, the op may take one part after the other instead of gathering them. On turn 0 a device has
its own part, on turn 1 that of the device before it, and so on. So no device ever holds the whole.
Where the result is a sum that the law would scatter over the dim, the terms are made part by part,
and the sum of each part goes round instead. A hop is a hop back in the backward pass.
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
    """Parts that go round over `axes`."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Who sends to whom, as positions along the axes."""
        return [(i, (i + 1) % self.count) for i in range(self.count)]

    def hop(self, tree, *, back: bool = False):
        """Every array of `tree` sent to the next device, or back to the one before it.

        It is not written down: see `note`.
        """
        pairs = [pair[::-1] for pair in self.pairs] if back else self.pairs
        with jax.named_scope(self._op.tag):
            return jax.tree.map(lambda x: collectives.ppermute(x, self.axes, pairs), tree)

    @property
    def ways(self) -> list[tuple[bool, list[int]]]:
        """The two ways round, both gone at once: for each whether it goes back, and its turns.

        A part comes by the shorter way. The turns are in the order in which their parts come.
        """
        ahead = self.count // 2
        return [
            (False, list(range(1, ahead + 1))),
            (True, list(range(self.count - 1, ahead, -1))),
        ]

    def arriving(self, x, at: int) -> tuple[list[jax.Array], jax.Array]:
        """The parts by their turns, of `x`, this device's own; and all of them put together.

        They come both ways round. Whoever asks for those of the same array gets the same parts.

        Args:
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
        """This device's part of the sum over devices of terms.

        It is the other way of `arriving`: the sum of each part comes round, and every device adds
        what it has of it.

        Args:
          terms: for each turn the term of the part that would be here on that turn.
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
        """The parts of all turns, each in its place."""
        return linear(
            lambda parts: self._put_together(parts, at), lambda x: self._taken_apart(x, at), parts
        )

    def taken_apart(self, x, at: int) -> list[jax.Array]:
        """The parts of all turns, of an array that the axes of the ring do not split."""
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
        """Write down that an array of the shape of `x` makes so many hops.

        Args:
          in_backward: it makes them in the backward pass, and unless it does so `alone` in the
            forward pass too.
          dtype: of the array, where it is not that of `x`.
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
        """The runs of elements of the part that is here on a turn: first index and size of each."""
        first = collectives.position(self._outer) * self.count if self._outer else 0
        return self.order.runs(first + self.number(turn), self.all_parts, self.size)

    def indices(self, turn) -> jax.Array:
        """The indices in the whole dim of the elements that are here on a turn."""
        runs = [start + jnp.arange(size, dtype=jnp.int32) for start, size in self.runs(turn)]
        return jnp.concatenate(runs) if len(runs) > 1 else runs[0]

    @property
    def padded(self) -> bool:
        """Whether the last parts hold padding."""
        return self.size * self.all_parts != self._dim.size

    def part_of(self, x, at: int, turn) -> jax.Array:
        """The part, here on a turn, of an array that is not split over the axes of the ring."""
        whole = resized(x, at, self.size * self.count)
        return self.order.taken(whole, at, self.number(turn), self.count)

    def put(self, x, part, at: int, turn) -> jax.Array:
        """`x` with the elements of `part` in their place: the other way of `part_of`."""
        whole = resized(x, at, self.size * self.count)
        runs = self.order.runs(self.number(turn), self.count, self.size)
        for (start, _), run in zip(runs, jnp.split(part, len(runs), at), strict=True):
            whole = lax.dynamic_update_slice_in_dim(whole, run, start, at)
        return resized(whole, at, x.shape[at])


class ByRing(Move):
    """Operands whose parts come one after the other, and results whose sums do."""

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
    """Whether the parts over all axes lie within those over the outer ones: with their padding."""
    scope = rules.scope
    return not outer or scope.padded(dim, outer) == scope.padded(dim, (*outer, *axes))
