"""A ring: the parts of a dim that devices pass on to their neighbours, one after the other.

Where a rule with `move = "ring"` splits a dim at rest, and an op needs all of that dim on every
device, the op may take one part after the other instead of gathering them. On turn 0 a device has
its own part, on turn 1 that of the device before it, and so on; while it computes with one part the
next one travels. So no device ever holds the whole, and the network works while the device does.

By `move = "exchange"` the parts stay, and elements of other operands are sent to them (`swap`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl.dims import Dim, Dims
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.derivatives import linear
from meshdsl.lowering.scope import Scope
from meshdsl.record.collective import crossed
from meshdsl.record.recorder import Move, Op


def ring_axes(
    dim: Dim,
    carriers: Sequence[Dims],
    taken: Collection[str],
    scope: Scope,
    level: str,
    move: str = "ring",
) -> tuple[str, ...]:
    """The axes over which the parts of `dim` go round; none where they are gathered.

    They are those over which a rule with this `move` splits `dim` at rest, alike in tensors of all
    the dims of `carriers`, and which other dims of the loop have `taken`.
    """
    found = set()
    for dims in carriers:
        rules = scope.layout.taken(dims, level)
        axes = scope.split(dims, level)[dims.index(dim)]
        found.add(tuple(a for a in axes if a in taken and rules[a].move == move))
    (axes,) = found if len(found) == 1 else ((),)
    return axes if scope.parts(axes) > 1 else ()


def goes_round(dims: Dims, dim: Dim, axes: tuple[str, ...], scope: Scope, level: str) -> bool:
    """Whether the law splits `dim`, in a tensor of these dims, over all `axes` of a ring."""
    return dim in dims and set(axes) <= set(scope.split(dims, level)[dims.index(dim)])


class Ring:
    """The parts of `dim` that go round over `axes`.

    Attributes:
      axes: over which they go round.
      count: how many parts go round, which is also how many devices take part.
      parts: how many there are in all rings of the dim.
      size: of each part, with padding.
      zigzag: whether the parts are in zigzag order.
    """

    def __init__(
        self,
        dim: Dim,
        outer: tuple[str, ...],
        axes: tuple[str, ...],
        scope: Scope,
        level: str,
        op: Op,
        *,
        zigzag: bool = False,
    ):
        """A ring.

        Args:
          outer: the axes over which the loop of the op splits `dim` besides. Each of their parts
            has a ring of its own.
          level: of the op.
          zigzag: the parts are to be in zigzag order, if the layout says so.
        """
        self._dim, self._outer, self._scope, self._level, self._op = dim, outer, scope, level, op
        self.axes = axes
        self.count = scope.parts(axes)
        self.parts = scope.parts((*outer, *axes))
        self.size = scope.part(dim, (*outer, *axes))
        self.zigzag = zigzag and bool(scope.zigzag((dim,), ((*outer, *axes),)))

    def has(self, dims: Dims) -> bool:
        """Whether an operand of these dims comes part by part."""
        return goes_round(dims, self._dim, self.axes, self._scope, self._level)

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

    def swap(self, tree):
        """Every array of `tree` cut in as many pieces as there are parts, one sent to each device.

        The pieces lie along the first position, there and in what arrives, in the order of the
        parts. It is not written down: see `note_swap`.
        """
        with jax.named_scope(self._op.tag):
            return jax.tree.map(lambda x: collectives.all_to_all(x, self.axes, 0, 0), tree)

    def note_swap(self, x, backward: int) -> None:
        """Write down that an array of the shape of `x` is cut and sent in the forward pass.

        Args:
          backward: how often it is so in the backward pass, one or more times.
        """
        size = x.size * jnp.dtype(x.dtype).itemsize
        axes = self._scope.in_mesh_order(self.axes)
        if size:
            self._op.moves.append(Move("all_to_all", axes, size, self._why, "all_to_all"))
        if size and (more := backward - 1):
            self._op.moves.append(Move("follow", axes, size, self._why, "all_to_all", count=more))

    def most(self, x, axes: Collection[str]):
        """The maximum of a number over devices; it has no derivative."""
        over = self._scope.in_mesh_order(axes)
        self._op.moves.append(Move("pmax", over, x.dtype.itemsize, self._why))
        with jax.named_scope(self._op.tag):
            return collectives.pmax(x, over)

    @property
    def _why(self) -> str:
        return str(self._scope.rule((self._dim,), self._level, self.axes[0]))

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
        key = "ring", self._dim, self._outer, self.axes, self.zigzag, at
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
        return resharding.resized(whole, at, self._scope.part(self._dim, self._outer))

    def _taken_apart(self, x, at: int) -> list[jax.Array]:
        x = resharding.resized(x, at, self.size * self.count)
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
        backward = "ppermute" if in_backward else ""
        operation = "follow" if alone else "ppermute"
        move = Move(operation, axes, size, self._why, backward, count=hops)
        self._op.moves.append(move)

    def number(self, turn) -> jax.Array:
        """The number of the part that is here on a turn."""
        return (collectives.position(self.axes) - turn) % self.count

    def runs(self, turn) -> list[tuple[jax.Array, int]]:
        """The runs of elements of the part that is here on a turn: first index and size of each."""
        first = collectives.position(self._outer) * self.count if self._outer else 0
        number = first + self.number(turn)
        if not self.zigzag:
            return [(number * self.size, self.size)]
        block = self.size // 2
        return [(number * block, block), ((2 * self.parts - 1 - number) * block, block)]

    def indices(self, turn) -> jax.Array:
        """The indices in the whole dim of the elements that are here on a turn."""
        runs = [start + jnp.arange(size, dtype=jnp.int32) for start, size in self.runs(turn)]
        return jnp.concatenate(runs) if len(runs) > 1 else runs[0]

    @property
    def padded(self) -> bool:
        """Whether the last parts hold padding."""
        return self.size * self.parts != self._dim.size

    def part_of(self, x, at: int, turn) -> jax.Array:
        """The part, here on a turn, of an array that is not split over the axes of the ring."""
        x = resharding.resized(x, at, self.size * self.count)
        runs = [lax.dynamic_slice_in_dim(x, start, n, at) for start, n in self._runs_within(turn)]
        return jnp.concatenate(runs, at) if len(runs) > 1 else runs[0]

    def _runs_within(self, turn) -> list[tuple[jax.Array, int]]:
        """As `runs`, in an array that the axes of the ring do not split."""
        number = self.number(turn)
        if not self.zigzag:
            return [(number * self.size, self.size)]
        block = self.size // 2
        return [(number * block, block), ((2 * self.count - 1 - number) * block, block)]

    def put(self, x, part, at: int, turn) -> jax.Array:
        """`x` with the elements of `part` in their place: the other way of `part_of`."""
        whole = resharding.resized(x, at, self.size * self.count)
        runs = self._runs_within(turn)
        for (start, _), run in zip(runs, jnp.split(part, len(runs), at), strict=True):
            whole = lax.dynamic_update_slice_in_dim(whole, run, start, at)
        return resharding.resized(whole, at, x.shape[at])
