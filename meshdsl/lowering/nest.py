"""What an op states of its loop nest, and what the law says of it.

`Nest` is the statement: the dims of the loop and of the results, and what the local function needs
of them. `Work` is the answer: which axes split each dim, and what becomes of each result. `split`
leads from one to the other. It asks the layout once for all ops that state the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from meshdsl.dims import Dim, Dims
from meshdsl.lowering.exchange import Kept
from meshdsl.lowering.ring import goes_round, ring_axes
from meshdsl.lowering.scope import Scope
from meshdsl.splits.changes import Split

_NOTHING: frozenset = frozenset()


class Nest(NamedTuple):
    """What an op states of its loop nest.

    Attributes:
      loop: every dim of the operands, and any other dim that the work could be split over.
      outs: the dims of each result. A dim that is not in the loop comes out whole.
      unsplit: dims of the loop that the local function needs whole.
      in_order: dims of the loop of which the local function needs consecutive elements, so that a
        layout with order = "zigzag" is no matter of its own: while it runs, their parts are in
        natural order. None for all dims. Of the others it may not ask for the `offset`, nor for
        windows of them, only for the indices of their elements.
      same_split: pairs of a dim that is not in the loop and a dim of the loop that has the same
        split. In an operand the first is brought to that split, in a result it comes out with it.
      same_order: for an op with `choose_splits`, pairs of a dim of the result and the dim of the
        operand whose elements it has, one by one.
      sums: a contracted dim leaves a pending sum. Otherwise the local function has taken care of
        that.
      part_by_part: dims of the loop of which the local function can take one part after the other,
        each with the dims of the operands whose parts go round. A rule with `move = "ring"` lets
        it: where such a rule splits the dim at rest, over axes that the loop gives to other dims,
        these operands come in their parts instead of gathered, and `DeviceLoop.ring` has the way to
        the other parts. The first dim that may come so is the only one.
      visited: dims of the loop whose parts the local function can leave where they are, each with
        the dims of the operands that have it, and with dims of which it sends the elements there. A
        rule with `move = "exchange"` lets it: where such a rule splits the dim at rest, over axes
        that the loop gives to the latter dims if it does not give them to this one, these operands
        come in their parts, and `DeviceLoop.ring` has the way to the other parts.
      term_by_term: dims of the result of which the local function can make one part of a sum after
        the other. A rule with `move = "ring"` lets it: where such a rule splits the dim in the
        result, over axes of a pending sum, and no operand comes in parts, the local function takes
        the sum, by `DeviceLoop.result_ring`, and gives this device's part.
      kept: dims of the loop that rules keep split as they are at rest, before any other rule.
    """

    loop: Dims
    outs: tuple[Dims, ...]
    unsplit: Dims = ()
    in_order: Dims | None = None
    same_split: tuple[tuple[Dim, Dim], ...] = ()
    same_order: tuple[tuple[Dim, Dim], ...] = ()
    sums: bool = True
    part_by_part: tuple[tuple[Dim, tuple[Dims, ...]], ...] = ()
    visited: tuple[tuple[Dim, tuple[Dims, ...], Dims], ...] = ()
    term_by_term: Dims = ()
    kept: tuple[Kept, ...] = ()

    @property
    def ordered(self) -> Dims:
        """The dims of the loop whose parts are in natural order while the op runs."""
        return self.loop if self.in_order is None else self.in_order


class Work(NamedTuple):
    """What the law says of one loop nest.

    Attributes:
      level: whose rules split it.
      axes_of: for each dim of the loop, and each that has the same split, the axes that split it.
      axes: for each dim of the loop the axes that split it.
      zigzag: the dims among these whose parts are in zigzag order.
      loop_axes: all axes over which the loop is split.
      waste: the work on padding, as a fraction of the work on elements.
      why: gives the reason of what is done to an operand.
      results: for each result what becomes of it.
      splits: the answers that `split_of` has given.
      rings: for each dim that comes part by part the axes over which its parts go round.
      result_rings: the same of each dim of which the result is made part by part.
      scope: that of the loop.
    """

    level: str
    axes_of: dict[Dim, tuple[str, ...]]
    axes: Split
    zigzag: frozenset[Dim]
    loop_axes: frozenset[str]
    waste: float
    why: Callable
    results: tuple[Result, ...]
    splits: dict[Dims, Split]
    rings: dict[Dim, tuple[str, ...]]
    result_rings: dict[Dim, tuple[str, ...]]
    scope: Scope

    def split_of(self, dims: Dims) -> Split:
        """The split of the loop, restricted to `dims`, and that of parts that go round."""
        found = self.splits.get(dims)
        if found is None:
            rings = {
                d: axes
                for d, axes in self.rings.items()
                if goes_round(dims, d, axes, self.scope, self.level)
            }
            found = tuple([(*self.axes_of.get(d, ()), *rings.get(d, ())) for d in dims])
            self.splits[dims] = found
        return found


class Result(NamedTuple):
    """What the law says of one result.

    Attributes:
      dims: its dims.
      split: in which it comes out of the loop.
      zigzag: the dims whose parts come out of it in zigzag order.
      varies: the axes over which it differs between devices.
      pending: the axes over which it is a sum.
      reasons: for each axis over which this op makes it a sum the rule behind it.
      target: the split that the law gives its dims.
      then: the dims whose parts are in zigzag order in that split.
      stands: whether it comes out of the loop as the law wants it.
    """

    dims: Dims
    split: Split
    zigzag: frozenset[Dim]
    varies: tuple[str, ...]
    pending: tuple[str, ...]
    reasons: tuple[tuple[str, str], ...]
    target: Split
    then: frozenset[Dim]
    stands: bool


def split(
    scope: Scope,
    nest: Nest,
    level: str,
    pending: tuple[str, ...] = (),
    chosen: tuple[Split, Split] | None = None,
) -> Work:
    """The rules split the loop nest: its dims get the axes of the mesh, and the results theirs.

    Args:
      level: whose rules split it.
      pending: the axes of a pending sum, which are spent on it until it is taken.
      chosen: the splits that the op has chosen for its operand and its result, see `apply_op_many`.
    """
    key = (nest, level, pending, chosen)
    if (known := scope.loops.get(key)) is not None:
        return known
    loop, same_split = nest.loop, dict(nest.same_split)
    free = tuple(d for d in loop if d not in nest.unsplit)
    visits = _visits(scope, level, free, nest.visited, pending) if nest.visited else {}
    free = tuple(d for d in free if d not in visits)
    if chosen is None:
        axes_of = dict(zip(free, without_axes(scope.split(free, level), pending), strict=True))
    else:
        axes_of = dict(zip(loop, chosen[0], strict=True))
    for k in nest.kept:
        axes_of |= dict(zip(axes_of, without_axes(tuple(axes_of.values()), k.axes), strict=True))
        axes_of[k.dim] = k.axes
    axes = tuple(axes_of.get(d, ()) if d.size else () for d in loop)  # no elements, no parts
    axes_of = dict(zip(loop, axes, strict=True))
    axes_of |= {new: axes_of[old] for new, old in same_split.items()}
    zigzag = scope.zigzag(loop, axes).difference(nest.ordered)
    if chosen is not None:
        zigzag -= _torn(
            nest.same_order, axes_of, dict(zip(nest.outs[0], chosen[1], strict=True)), scope
        )
    origin = {**same_split, **dict(nest.same_order)}
    zigzag |= {new for new, old in same_split.items() if old in zigzag}

    rings = visits or _rings(scope, level, axes_of, nest.part_by_part)
    result_rings: _Rings = {}
    results = []
    for dims in nest.outs:
        gone = set(loop).difference(dims, [same_split[d] for d in dims if d in same_split])
        contracted = {a for d in gone for a in axes_of[d]} if nest.sums else _NOTHING
        now = tuple(axes_of.get(d, ()) for d in dims) if chosen is None else chosen[1]
        ordered = frozenset([d for d in dims if origin.get(d, d) in zigzag]) if zigzag else zigzag
        if nest.term_by_term and not rings:
            result_rings = _result_rings(scope, level, dims, axes_of, contracted, nest.term_by_term)
            contracted = contracted.difference(*result_rings.values())
            now = tuple(
                (*axes, *result_rings.get(d, ())) for d, axes in zip(dims, now, strict=True)
            )
            in_parts = tuple(d for d in dims if d in result_rings and d not in nest.ordered)
            ordered |= scope.zigzag(in_parts, tuple(result_rings[d] for d in in_parts))
        waits = scope.in_mesh_order({*contracted, *pending})
        rules = {a: str(scope.rule(loop, level, a)) for a in contracted}
        varies = scope.in_mesh_order(scope.of_mesh((*(a for axes in now for a in axes), *waits)))
        target = without_axes(scope.split(dims, level), waits)
        then = scope.zigzag(dims, target)
        stands = now == target and ordered == then
        of_rules = tuple(rules.items())
        results.append(Result(dims, now, ordered, varies, waits, of_rules, target, then, stands))
    whole = "the op needs it whole" if chosen is None else "no rule splits the result over it"
    because = {a: k.why for k in nest.kept for a in k.axes}
    why = reason_of(scope, free if chosen is None else nest.outs[0], level, whole, because)
    loop_axes = scope.of_mesh(scope.layout.spent.union(*axes))
    in_parts = rings | result_rings
    waste = scope.waste(loop, tuple((*axes_of[d], *in_parts.get(d, ())) for d in loop))
    of_results = tuple(results)
    work = Work(
        level,
        axes_of,
        axes,
        zigzag,
        loop_axes,
        waste,
        why,
        of_results,
        {},
        rings,
        result_rings,
        scope,
    )
    scope.loops[key] = work
    return work


def _torn(same_order: Sequence[tuple[Dim, Dim]], before, after, scope: Scope) -> set[Dim]:
    """The dims of an operand whose parts are not those of the dims that have their elements."""
    same = lambda old, new: (
        before[old] == after[new] and (scope.part(old, before[old]) == scope.part(new, after[new]))
    )
    return {old for new, old in same_order if not same(old, new)}


_Rings = dict[Dim, tuple[str, ...]]


def _rings(
    scope: Scope, level: str, axes_of: Mapping[Dim, tuple[str, ...]], part_by_part
) -> _Rings:
    """The axes of the ring of a dim that comes part by part; see `Nest`."""
    for dim, dims in part_by_part:
        outer = axes_of[dim]
        taken = {a for d, axes in axes_of.items() if d != dim for a in axes}
        axes = ring_axes(dim, dims, taken, scope, level) if dim.size else ()
        if axes and _parts_within_parts(scope, dim, outer, axes):
            return {dim: axes}
    return {}


def _visits(scope: Scope, level: str, free: Dims, visited, pending: tuple[str, ...]) -> _Rings:
    """The axes of a dim whose parts stay where they are; see `Nest`."""
    for dim, carriers, visitors in visited:
        rest = tuple(d for d in free if d != dim)
        axes_of = dict(zip(rest, without_axes(scope.split(rest, level), pending), strict=True))
        taken = {a for d in visitors if d.size for a in axes_of.get(d, ())}
        axes = ring_axes(dim, carriers, taken, scope, level, "exchange") if dim.size else ()
        if axes:
            return {dim: axes}
    return {}


def _result_rings(
    scope: Scope, level: str, dims: Dims, axes_of, summed: Set[str], term_by_term: Dims
) -> _Rings:
    """The axes of the ring of a dim of which a result is made part by part; see `Nest`."""
    rules = scope.layout.taken(dims, level)
    for dim, target in zip(dims, scope.split(dims, level), strict=True):
        outer = axes_of.get(dim, ())
        axes = target[len(outer) :]
        if dim not in term_by_term or not dim.size or target[: len(outer)] != outer:
            continue
        ring = summed >= set(axes) and all(rules[a].move == "ring" for a in axes)
        if ring and scope.parts(axes) > 1 and _parts_within_parts(scope, dim, outer, axes):
            return {dim: axes}
    return {}


def _parts_within_parts(scope: Scope, dim: Dim, outer, axes) -> bool:
    """Whether the parts over all axes lie within those over the outer ones: with their padding."""
    return not outer or scope.padded(dim, outer) == scope.padded(dim, (*outer, *axes))


def without_axes(split: Split, spent: tuple[str, ...]) -> Split:
    """`split` without the axes `spent`."""
    if not spent:
        return split
    return tuple([tuple([a for a in axes if a not in spent]) for axes in split])


def reason_of(
    scope: Scope,
    dims: Dims,
    level: str,
    otherwise="no rule splits the result over it",
    because: Mapping[str, str] = MappingProxyType({}),
):
    """Gives the reason of a change: the rule of `dims` that takes the first of its axes.

    Args:
      because: the reasons over some axes, where they are others.
    """

    def why(change) -> str:
        rule = because.get(change.axes[0]) or scope.rule(dims, level, change.axes[0])
        return str(rule) if rule else otherwise

    return why
