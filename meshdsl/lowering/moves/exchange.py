"""`move = "exchange"`: the parts of a dim stay on their devices, and other elements travel to them.

Two kinds of ops can take operands by this move.

A lookup: an embedding's table is split at rest by `d_model -> data`, and `batch -> data` splits the
indices. By the law the table would be gathered. With `{ rule = "d_model -> data", move = "exchange"
}` its vectors stay split: each device gets the indices of all devices, looks them up in its part of
every vector, and the law brings the result from `d_model` to `batch`, by one all_to_all. In the
backward pass that is an all_to_all of the cotangents, and the gradient of the table needs no sum
over `data`.

Experts: rows are sent to the devices that have their experts, and back (`ops.routed_exchange`). It
is an all_to_all each way, in the backward pass too.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims, without
from meshdsl.lowering import collectives
from meshdsl.lowering.moves.move import Axes, ByParts, Move, Parts, Rules, Stays
from meshdsl.lowering.scope import copy_of
from meshdsl.program import recorder
from meshdsl.tensor import Tensor


class Visited(Parts):
    """Parts that stay on their devices, while elements of other operands are sent there."""

    def swap(self, tree):
        """The pieces that other devices send to this one: an all_to_all of every array of `tree`.

        Each array is cut along its first position into one piece for each part, in the order of the
        parts, and the pieces that arrive are joined along that position in the same order. The
        all_to_all is not written in the record: `note_swap` does that.
        """
        with jax.named_scope(self._op.tag):
            return jax.tree.map(lambda x: collectives.all_to_all(x, self.axes, 0, 0), tree)

    def note_swap(self, x, backward: int) -> None:
        """Write down one `swap` of an array of the shape of `x` in the forward pass.

        Args:
          backward: how many swaps of such an array there are in the backward pass; at least one.
        """
        size = x.size * jnp.dtype(x.dtype).itemsize
        axes = self._scope.in_mesh_order(self.axes)
        note = lambda operation, **count: self._op.moves.append(
            recorder.Move(
                operation, axes, size, self._why, Exchange.backward["all_to_all"], **count
            )
        )
        if size:
            note("all_to_all")
        if size and backward > 1:
            note("follow", count=backward - 1)

    def most(self, x, axes: Collection[str]):
        """The maximum of a number over devices; it has no derivative."""
        over = self._scope.in_mesh_order(set(axes) - self._scope.spent)
        self._op.moves.append(recorder.Move("pmax", over, x.dtype.itemsize, self._why))
        with jax.named_scope(self._op.tag):
            return collectives.pmax(x, over)


class Exchange(Move):
    """The move by which the parts of an operand stay, and elements of others go there."""

    name = "exchange"
    words = "its parts are exchanged"
    view = Visited
    holds_parts = True
    backward = MappingProxyType({"all_to_all": "all_to_all"})

    def operand_axes(self, fact: ByParts, free: Dims, rules: Rules) -> Axes:
        if not fact.sent or not fact.dim.size:
            return ()
        axes_of = rules.split(without(free, (fact.dim,)))
        taken = {a for d in fact.sent if d.size for a in axes_of.get(d, ())}
        return rules.parts_at_rest(self.name, fact.dim, fact.operands, taken)

    def staying(self, operand: Tensor, other: Tensor, dim: Dim) -> tuple[Stays, ...]:
        """See `Move`. Axes that another dim of the operand takes by the law are not available.

        An operand with a whole copy (`copy_of`) is looked up in that copy, and nothing stays split.
        """
        at_rest, given = operand.placement, other.placement
        if at_rest is None or given is None or given.scope is not at_rest.scope:
            return ()
        if given.level != "rules" or operand.pending or copy_of(operand) is not None:
            return ()
        if not operand.size or not other.size:
            return ()
        scope, found = at_rest.scope, []
        loop = tuple(dict.fromkeys((*operand.dims, *other.dims)))
        law = dict(zip(loop, scope.split(loop, "rules"), strict=True))
        for d, axes in zip(operand.dims, at_rest.axes, strict=True):
            if d == dim or d in other.dims or not set(law[d]) <= set(axes):
                continue
            spent = {a for e in operand.dims if e != d for a in law[e]}
            rules = {a: scope.rule(operand.dims, at_rest.level, a) for a in axes}
            stays = {
                a: str(rule)
                for a, rule in rules.items()
                if rule and rule.move == self.name and rule.dim == d.name and a not in spent
            }
            split = tuple(a for a in axes if a in stays or a in law[d])
            if split != law[d]:
                found.append(Stays(d, split, "; ".join(dict.fromkeys(stays.values()))))
        return tuple(found)
