"""What the law says of one loop nest: which axes split its dims, and what becomes of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from meshdsl.dims import Dim, Dims
from meshdsl.lowering.exchange import Kept
from meshdsl.lowering.ring import goes_round, ring_axes
from meshdsl.lowering.scope import Scope
from meshdsl.splits.changes import Split

_NO_DIMS: Mapping[Dim, Dim] = MappingProxyType({})
_NOTHING: frozenset = frozenset()


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
    loop: Dims,
    outs: tuple[Dims, ...],
    level: str,
    pending: tuple[str, ...] = (),
    unsplit: Dims = (),
    in_order: Dims = (),
    same_split: Mapping[Dim, Dim] = _NO_DIMS,
    same_order: Mapping[Dim, Dim] = _NO_DIMS,
    sums: bool = True,
    chosen: tuple[Split, Split] | None = None,
    carriers: tuple[tuple[Dim, tuple[Dims, ...]], ...] = (),
    kept: tuple[Kept, ...] = (),
) -> Work:
    """The rules split the loop nest: its dims get the axes of the mesh, and the results theirs.

    Axes of a pending sum are spent on it until it is taken.
    """
    same = tuple(same_split.items()) if same_split else ()
    order = tuple(same_order.items()) if same_order else ()
    key = (loop, outs, level, pending, unsplit, in_order, same, order, sums, chosen, carriers, kept)
    if (known := scope.loops.get(key)) is not None:
        return known
    free = tuple(d for d in loop if d not in unsplit)
    if chosen is None:
        axes_of = dict(zip(free, without_axes(scope.split(free, level), pending), strict=True))
    else:
        axes_of = dict(zip(loop, chosen[0], strict=True))
    for k in kept:
        axes_of |= dict(zip(axes_of, without_axes(tuple(axes_of.values()), k.axes), strict=True))
        axes_of[k.dim] = k.axes
    axes = tuple(axes_of.get(d, ()) if d.size else () for d in loop)  # no elements, no parts
    axes_of = dict(zip(loop, axes, strict=True))
    axes_of |= {new: axes_of[old] for new, old in same_split.items()}
    zigzag = scope.zigzag(loop, axes).difference(in_order)
    if chosen is not None:
        zigzag -= _torn(same_order, axes_of, dict(zip(outs[0], chosen[1], strict=True)), scope)
    origin = {**same_split, **same_order}
    zigzag |= {new for new, old in same_split.items() if old in zigzag}

    results = []
    for dims in outs:
        gone = set(loop).difference(dims, [same_split[d] for d in dims if d in same_split])
        contracted = {a for d in gone for a in axes_of[d]} if sums else _NOTHING
        now = tuple(axes_of.get(d, ()) for d in dims) if chosen is None else chosen[1]
        waits = scope.in_mesh_order({*contracted, *pending})
        rules = {a: str(scope.rule(loop, level, a)) for a in contracted}
        varies = (*(a for axes in now for a in axes), *waits)
        target = without_axes(scope.split(dims, level), waits)
        ordered = frozenset([d for d in dims if origin.get(d, d) in zigzag]) if zigzag else zigzag
        then = scope.zigzag(dims, target)
        stands = now == target and ordered == then
        of_rules = tuple(rules.items())
        results.append(Result(dims, now, ordered, varies, waits, of_rules, target, then, stands))
    whole = "the op needs it whole" if chosen is None else "no rule splits the result over it"
    because = {a: k.why for k in kept for a in k.axes}
    why = reason_of(scope, free if chosen is None else outs[0], level, whole, because)
    loop_axes = scope.layout.spent.union(*axes)
    rings = _rings(scope, level, axes_of, carriers)
    waste = scope.waste(loop, tuple((*axes_of[d], *rings.get(d, ())) for d in loop))
    of_results = tuple(results)
    work = Work(level, axes_of, axes, zigzag, loop_axes, waste, why, of_results, {}, rings, scope)
    scope.loops[key] = work
    return work


def _torn(same_order: Mapping[Dim, Dim], before, after, scope: Scope) -> set[Dim]:
    """The dims of an operand whose parts are not those of the dims that have their elements."""
    same = lambda old, new: (
        before[old] == after[new] and (scope.part(old, before[old]) == scope.part(new, after[new]))
    )
    return {old for new, old in same_order.items() if not same(old, new)}


def _rings(scope: Scope, level: str, axes_of: Mapping[Dim, tuple[str, ...]], carriers):
    """The axes of the ring of each dim that comes part by part; see `apply_op_many`."""
    found = {}
    for dim, dims in carriers:
        outer = axes_of[dim]
        taken = {a for d, axes in axes_of.items() if d != dim for a in axes}
        axes = ring_axes(dim, dims, taken, scope, level) if dim.size else ()
        # Parts within parts: the padding of both has to agree.
        if axes and (not outer or scope.padded(dim, outer) == scope.padded(dim, (*outer, *axes))):
            found[dim] = axes
    return found


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
