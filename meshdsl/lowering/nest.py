"""What an op states of its loop nest, and what the law answers.

`Nest` is the statement: the dims of the loop and of the results, and what the local function needs
of these dims. `Work` is the answer: which axes split each dim, and what becomes of each result.
`split_loop` finds the answer to a statement. The scope keeps the answers, so that the layout is
asked once for all ops with the same statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from meshdsl.dims import Dim, Dims
from meshdsl.lowering.moves.move import (
    Axes,
    ByParts,
    Move,
    Rules,
    Stays,
    in_parts,
    without_axes,
)
from meshdsl.lowering.moves.table import TABLE
from meshdsl.lowering.scope import Orders, Scope
from meshdsl.splits.changes import Split


class Nest(NamedTuple):
    """What an op states of its loop nest.

    Attributes:
      loop: every dim of the operands, and any other dim that the work could be split over.
      outs: the dims of each result. A dim that is not in the loop comes out whole.
      unsplit: dims of the loop that the local function needs whole.
      in_order: dims of the loop of which the local function needs consecutive elements: while the
        function runs, the parts of these dims are in natural order, whatever a layout says. None
        for all dims. The function may ask for the indices of the elements of any dim, but for an
        `offset` or a window only of these dims.
      same_split: pairs of a dim that is not in the loop and the dim of the loop that has the same
        split. Operands and results that have the first dim are split along it as the second one
        is. For example, a pooling of `length` into `frames` states `(frames, length)`.
      same_order: for an op with `choose_splits`, pairs of a dim of the result and the dim of the
        operand that has the same elements in the same order. For example, renaming `a` to `b`
        states `(b, a)`.
      sums: whether a contracted dim leaves a pending sum. If not, the local function has combined
        the devices' results itself.
      by_parts: the dims along which the local function can take operands part by part. Of these
        dims at most one comes in parts: the first for which the rules say so. Its parts are in
        `DeviceLoop.in_parts`, or in `DeviceLoop.result_in_parts` if they are parts of a result.
      stays: dims of the loop that keep the split that they have at rest. They get their axes before
        any rule is asked.
    """

    loop: Dims
    outs: tuple[Dims, ...]
    unsplit: Dims = ()
    in_order: Dims | None = None
    same_split: tuple[tuple[Dim, Dim], ...] = ()
    same_order: tuple[tuple[Dim, Dim], ...] = ()
    sums: bool = True
    by_parts: tuple[ByParts, ...] = ()
    stays: tuple[Stays, ...] = ()

    @property
    def ordered(self) -> Dims:
        """The dims of the loop whose parts are in natural order while the op runs."""
        return self.loop if self.in_order is None else self.in_order


class Work(NamedTuple):
    """What the law says of one loop nest.

    Attributes:
      level: the level whose rules split the loop.
      axes_of: the axes that split each dim of the loop, and each other dim of `same_split`.
      axes: the axes that split each dim of the loop, in the order of the dims.
      orders: the order of each dim whose parts are not in natural order.
      loop_axes: all axes over which the loop is split.
      waste: the work on padding, as a fraction of the work on elements.
      why: a function that gives the reason for a change of an operand's split.
      results: what becomes of each result.
      splits: the answers of `split_of` so far.
      in_parts: for each dim along which operands come part by part, the axes of the parts.
      result_in_parts: for each dim along which the result is summed part by part, the axes.
      move: the move that brings the parts of operands, or sums those of the result.
      scope: the scope of the operands.
    """

    level: str
    axes_of: dict[Dim, tuple[str, ...]]
    axes: Split
    orders: Orders
    loop_axes: frozenset[str]
    waste: float
    why: Callable
    results: tuple[Result, ...]
    splits: dict[Dims, Split]
    in_parts: dict[Dim, Axes]
    result_in_parts: dict[Dim, Axes]
    move: Move | None
    scope: Scope

    def split_of(self, dims: Dims) -> Split:
        """The split to which an operand with `dims` is brought: that of the loop for its dims.

        A dim along which the operand comes part by part stays split over the axes of the parts too.
        """
        found = self.splits.get(dims)
        if found is None:
            lies = lambda d: in_parts(dims, d, self.in_parts[d], self.scope, self.level)
            at_rest = {d: axes for d, axes in self.in_parts.items() if lies(d)}
            found = tuple([(*self.axes_of.get(d, ()), *at_rest.get(d, ())) for d in dims])
            self.splits[dims] = found
        return found


class Result(NamedTuple):
    """What the law says of one result.

    Attributes:
      dims: the dims of the result.
      split: the split in which the result comes out of the loop.
      orders: the orders of its parts in `split`, where they are not natural.
      varies: the axes over which the result differs between devices.
      pending: the axes over which the result is a sum that is not taken yet.
      reasons: for each axis over which this op leaves a sum, the rule that split the summed dim.
      target: the split that the law gives the dims of the result.
      then: the orders of its parts in `target`, where they are not natural.
      stands: whether the result is where it belongs: `split` is `target`, and `orders` is `then`.
    """

    dims: Dims
    split: Split
    orders: Orders
    varies: tuple[str, ...]
    pending: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]
    target: Split
    then: Orders
    stands: bool


def split_loop(
    scope: Scope,
    nest: Nest,
    level: str,
    pending: tuple[str, ...] = (),
    chosen: tuple[Split, Split] | None = None,
) -> Work:
    """The rules split the loop nest: which axes split its dims, and what becomes of the results.

    Args:
      level: the level whose rules split the loop.
      pending: the axes of a pending sum of the operands. They split nothing until it is taken.
      chosen: the splits that the op has chosen for its operand and its result, see `apply_op_many`.
    """
    key = (nest, level, pending, chosen)
    if (known := scope.loops.get(key)) is not None:
        return known
    free = tuple(d for d in nest.loop if d not in nest.unsplit)
    rules = Rules(scope, level, pending)
    move, operand_parts = _operand_parts(nest, free, rules) if nest.by_parts else (None, {})
    if move is not None and move.holds_parts:
        free = tuple(d for d in free if d not in operand_parts)
    axes_of = _axes_of(nest, rules.split(free) if chosen is None else chosen[0])
    orders = _orders(nest, axes_of, scope, chosen)
    result_parts: dict[Dim, Axes] = {}
    if nest.by_parts and not operand_parts:
        move, result_parts = _result_parts(nest, axes_of, rules)
    parts = operand_parts | result_parts
    axes = tuple([axes_of[d] for d in nest.loop])
    whole = "the op needs it whole" if chosen is None else "no rule splits the result over it"
    because = {a: stays.why for stays in nest.stays for a in stays.axes}
    work = Work(
        level=level,
        axes_of=axes_of,
        axes=axes,
        orders=orders,
        loop_axes=scope.of_mesh(scope.layout.spent.union(*axes)),
        waste=scope.waste(nest.loop, tuple((*axes_of[d], *parts.get(d, ())) for d in nest.loop)),
        why=reason_of(scope, free if chosen is None else nest.outs[0], level, whole, because),
        results=tuple(
            [_result(nest, d, axes_of, orders, result_parts, rules, chosen) for d in nest.outs]
        ),
        splits={},
        in_parts=operand_parts,
        result_in_parts=result_parts,
        move=move,
        scope=scope,
    )
    scope.loops[key] = work
    return work


def _axes_of(nest: Nest, given: Mapping[Dim, Axes] | Split) -> dict[Dim, Axes]:
    """The axes that split each dim of the loop, and each other dim of `same_split`.

    Args:
      given: the axes that the rules give to each dim that they may split; or the split that the op
        has chosen for the whole loop.
    """
    axes_of = given if isinstance(given, Mapping) else dict(zip(nest.loop, given, strict=True))
    for stays in nest.stays:
        others = without_axes(tuple(axes_of.values()), stays.axes)
        axes_of = {**dict(zip(axes_of, others, strict=True)), stays.dim: stays.axes}
    loop = {d: axes_of.get(d, ()) if d.size else () for d in nest.loop}  # no elements, no parts
    return loop | {new: loop[old] for new, old in nest.same_split}


def _orders(nest: Nest, axes_of: Mapping[Dim, Axes], scope: Scope, chosen) -> Orders:
    """The order of each dim whose parts are not in natural order while the local function runs."""
    found = scope.orders(nest.loop, tuple([axes_of[d] for d in nest.loop]))
    if not found:
        return found
    natural = set(nest.ordered)
    if chosen is not None:
        after = dict(zip(nest.outs[0], chosen[1], strict=True))
        natural |= _split_differently(nest.same_order, axes_of, after, scope)
    found = {d: order for d, order in found.items() if d not in natural}
    return found | {new: found[old] for new, old in nest.same_split if old in found}


def _summed(nest: Nest, dims: Dims, axes_of: Mapping[Dim, Axes]) -> set[str]:
    """The axes over which a result with `dims` is a sum: those that split contracted dims."""
    if not nest.sums:
        return set()
    same_split = dict(nest.same_split)
    contracted = set(nest.loop).difference(dims, [same_split.get(d) for d in dims])
    return {a for d in contracted for a in axes_of[d]}


def _result(
    nest: Nest, dims: Dims, axes_of, orders: Orders, parts: Mapping[Dim, Axes], rules: Rules, chosen
) -> Result:
    """What becomes of the result with `dims`.

    Args:
      orders: the orders of dims of the loop that are not in natural order.
      parts: the dims along which the result is summed part by part, with the axes of the parts.
    """
    scope, level = rules.scope, rules.level
    summed = _summed(nest, dims, axes_of).difference(*parts.values())
    split = tuple([(*axes_of.get(d, ()), *parts.get(d, ())) for d in dims])
    split = split if chosen is None else chosen[1]
    if scope.layout.orders:
        origin = {**dict(nest.same_split), **dict(nest.same_order)}
        orders = {d: orders[origin.get(d, d)] for d in dims if origin.get(d, d) in orders}
        any_order = tuple(d for d in parts if d not in nest.ordered)
        orders |= scope.orders(any_order, tuple(parts[d] for d in any_order))
    pending = scope.in_mesh_order({*summed, *rules.spent})
    target = without_axes(scope.split(dims, level), pending)
    then = scope.orders(dims, target)
    varies = scope.of_mesh((*(a for axes in split for a in axes), *pending))
    return Result(
        dims=dims,
        split=split,
        orders=orders,
        varies=scope.in_mesh_order(varies),
        pending=pending,
        reasons=tuple([(a, str(scope.rule(nest.loop, level, a))) for a in summed]),
        target=target,
        then=then,
        stands=split == target and orders == then,
    )


def _split_differently(
    same_order: Sequence[tuple[Dim, Dim]], before, after, scope: Scope
) -> set[Dim]:
    """Dims of an operand that are split differently from the result's dim with the same elements.

    Args:
      before, after: the axes that split each dim of the operand and of the result.
    """
    same = lambda old, new: (
        before[old] == after[new] and (scope.part(old, before[old]) == scope.part(new, after[new]))
    )
    return {old for new, old in same_order if not same(old, new)}


def _operand_parts(nest: Nest, free: Dims, rules: Rules) -> tuple[Move | None, dict[Dim, Axes]]:
    """The move that brings operands part by part, with the dim and the axes of the parts.

    Without such a move: None, and no dim.
    """
    for fact in nest.by_parts:
        for move in TABLE:
            if axes := move.operand_axes(fact, free, rules):
                return move, {fact.dim: axes}
    return None, {}


def _result_parts(
    nest: Nest, axes_of: Mapping[Dim, Axes], rules: Rules
) -> tuple[Move | None, dict[Dim, Axes]]:
    """The move that sums the result part by part, with the dim and the axes of the parts.

    Without such a move: None, and no dim.
    """
    (dims,) = nest.outs
    summed = _summed(nest, dims, axes_of)
    for fact in nest.by_parts:
        for move in TABLE:
            if axes := move.result_axes(fact, dims, axes_of.get(fact.dim, ()), summed, rules):
                return move, {fact.dim: axes}
    return None, {}


def reason_of(
    scope: Scope,
    dims: Dims,
    level: str,
    otherwise="no rule splits the result over it",
    because: Mapping[str, str] = MappingProxyType({}),
):
    """A function that gives the reason of a change of split, for the record.

    It is the rule that gives the first axis of the change to one of `dims`.

    Args:
      otherwise: the reason where there is no such rule.
      because: reasons that go before that rule, by axes.
    """

    def why(change) -> str:
        rule = because.get(change.axes[0]) or scope.rule(dims, level, change.axes[0])
        return str(rule) if rule else otherwise

    return why
