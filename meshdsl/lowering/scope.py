"""Scope: what the tensors of one lowering share. Tensors carry it; there is no ambient state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax

from meshdsl.dims import Dim, Dims, show
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering import collectives
from meshdsl.lowering.moves.turns import Turn
from meshdsl.program.recorder import Recorder
from meshdsl.rules import Rule
from meshdsl.splits.changes import Split
from meshdsl.tensor import Tensor
from meshdsl.values import other_shape

# The order of each dim whose parts are not in natural order: a `moves.move.Move`.
Orders = Mapping[Dim, Any]
IN_ORDER: Orders = MappingProxyType({})


class WrongGuess(Exception):
    """A parameter was made to vary over an axis over which one of its uses does not vary."""


class Scope:
    """The layout, the sizes of the mesh axes (in mesh order), and the recorder of one program.

    Args:
      platform: of the devices that the program is lowered for: "tpu", "gpu" or "cpu".
      device_kind: what JAX calls these devices, as "TPU v5"; empty where that is not known.
      leaf: a function of a Tensor that gives what JAX gets as its leaf of a pytree, see
        `resharding.leaf`.

    Attributes:
      takes_parts: whether JAX has taken an array out of a Tensor. Such a program is searched for
        operations that are wrong on one device's part of a Tensor, see `leaf_check.check_parts`.
      lossy: the axes over which a gradient was summed in few bits.
    """

    def __init__(
        self,
        layout: Layout,
        sizes: Mapping[str, int],
        name: str,
        *,
        platform: str = "cpu",
        device_kind: str = "",
        leaf: Callable[[Tensor], Tensor] = lambda x: x,
    ):
        self.layout = layout
        self.platform, self.device_kind = platform, device_kind
        self._leaf = leaf
        self.sizes = dict(sizes)
        self.recorder = Recorder(name)
        self.uses: dict[int, frozenset[str]] = {}  # see `note_use`
        self.data_axes: frozenset[str] = frozenset()  # axes that split the data of the program
        self.origins = itertools.count()  # numbers for the parameters that gradients are taken by
        self.guesses: dict[int, frozenset[str]] = {}  # see `gradients.traced`
        self.loops: dict = {}  # the law's answers for loop nests, see `nest.split_loop`
        self.copies: dict = {}  # see `copy_of`
        self.takes_parts = False
        self.lossy: set[str] = set()
        self._remembered: dict = {}
        self.mapped: tuple[tuple[Dim, tuple[str, ...]], ...] = ()  # see `spending`
        self.turns: Mapping[str, Turn] = {}  # see `taking_turns`
        self.rest: Any = None  # of a function whose gradient is taken, see `early.Rest`
        self._splits: dict = {}
        self._padded: dict = {}
        self._parts: dict = {}
        self._wastes: dict = {}
        self._shapes: dict = {}

    def split(self, dims: Dims, level: str = "rules") -> Split:
        """For each of `dims` the axes that split it by the law.

        Parameters, and what is computed from parameters alone, are split as at rest: evenly.
        """
        return self._split(dims, level, at_rest=level != "rules")

    def at_rest(self, dims: Dims, level: str = "rules") -> Split:
        """As `split`, for Tensors that enter or leave the lowering: no dim is ever padded."""
        return self._split(dims, level, at_rest=True)

    def _split(self, dims: Dims, level: str, at_rest: bool) -> Split:
        key = (dims, level, at_rest)
        found = self._splits.get(key)
        if found is None:
            self.layout.check_sizes(dims, self.sizes, level)
            split = (
                self.layout.at_rest(dims, self.sizes, level)
                if at_rest
                else self.layout.split(dims, level)
            )
            found = self._splits[key] = tuple(split.get(d, ()) for d in dims)
        return found

    def padded(self, dim: Dim, axes: tuple[str, ...]) -> int:
        """The elements that all parts of `dim` hold together, see `Layout.padded_size`."""
        key = (dim, axes)
        if key not in self._padded:
            turn = self.turn_of(axes)
            (cut,), (left,) = self.in_turn((dim,), (axes,))
            size = self.layout.padded_size(cut, left, self.sizes)
            self._padded[key] = size * turn.count if turn else size
        return self._padded[key]

    def part(self, dim: Dim, axes: tuple[str, ...]) -> int:
        """The elements of `dim` on each device when `axes` split it, padding included."""
        key = (dim, axes)
        if key not in self._parts:
            self._parts[key] = self.padded(dim, axes) // self.parts(axes)
        return self._parts[key]

    def local_shape(self, dims: Dims, axes: Split) -> tuple[int, ...]:
        """The shape that an array of `dims` has on each device when `axes` split it."""
        key = (dims, axes)
        if key not in self._shapes:
            parts = [self.part(d, a) if a else d.size for d, a in zip(dims, axes, strict=True)]
            self._shapes[key] = tuple(parts)
        return self._shapes[key]

    def orders(self, dims: Dims, axes: Split) -> Orders:
        """The orders of `dims`, split over `axes`, that are not in natural order."""
        named = self.layout.orders
        if not named:
            return IN_ORDER
        pairs = zip(dims, axes, strict=True)
        return {d: named[d.name] for d, a in pairs if d.name in named and self.parts(a) > 1}

    def waste(self, dims: Dims, axes: Split) -> float:
        """The work on padding, as a fraction of the work on elements, of a loop split so."""
        key = (dims, axes)
        if key not in self._wastes:
            self._wastes[key] = (
                math.prod(
                    self.padded(d, a) / d.size
                    for d, a in zip(dims, axes, strict=True)
                    if a and d.size
                )
                - 1
            )
        return self._wastes[key]

    def rule(self, dims: Dims, level: str, axis: str) -> Rule | None:
        """The rule that gives `axis` to one of `dims`."""
        return self.layout.taken(dims, level).get(axis)

    def parts(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes[a] for a in axes)

    def of_mesh(self, axes: Iterable[str]) -> frozenset[str]:
        """Those of `axes` that are axes of the mesh, and not turns of a loop."""
        return frozenset(axes).difference(self.turns)

    @property
    def spent(self) -> frozenset[str]:
        """The axes of the mesh that are spent, see `spending`."""
        return self.of_mesh(self.layout.spent)

    def turn_of(self, axes: Iterable[str]) -> Turn | None:
        """The turn of the loop whose axis is among `axes`; None if there is no such loop."""
        return next((self.turns[a] for a in axes if a in self.turns), None) if self.turns else None

    def in_turn(self, dims: Dims, split: Split) -> tuple[Dims, Split]:
        """`dims` with the sizes of this turn's slices, and `split` without the axes of turns."""
        if not self.turns:
            return dims, split
        turns = [self.turn_of(axes) for axes in split]
        left = tuple(tuple(a for a in axes if a not in self.turns) for axes in split)
        cut = lambda d, turn: Dim(d.name, d.size // turn.count) if turn else d
        return tuple(cut(d, turn) for d, turn in zip(dims, turns, strict=True)), left

    def in_mesh_order(self, axes: Iterable[str]) -> tuple[str, ...]:
        axes = set(axes)
        return tuple(a for a in self.sizes if a in axes)

    def leaf(self, x: Tensor) -> Tensor:
        """`x` as JAX gets it for a leaf of a pytree."""
        self.takes_parts = True
        return self._leaf(x)

    def unleaf(self, x: Tensor) -> Tensor:
        """`x`, which JAX has put together from a leaf, with a type that varies over its axes."""
        if not isinstance(x.stored, jax.Array):
            return x
        axes = self.of_mesh(a for axes in x.placement.axes for a in axes)
        return x.replace(array=collectives.vary(x.stored, axes))

    def remember(self, source, key, result) -> None:
        """Keep `result`, computed from the array `source`, as long as the running trace lasts."""
        entry = self._remembered.setdefault((id(source), key), [])
        entry.append((source, collectives.trace_state(), result))

    def remembered(self, source, key):
        """What `remember` kept under this key in the trace that is running, or None."""
        entry = self._remembered.get((id(source), key))
        if entry is None:
            return None
        state = collectives.trace_state()
        return next((array for _, kept_in, array in entry if kept_in == state), None)

    def note_use(self, origin: Iterable[int], axes: Iterable[str]) -> None:
        """Note that an op which varies over `axes` uses the parameters with the numbers `origin`.

        `uses` then has, for each parameter, the axes over which all ops vary that use it.

        Raises:
          WrongGuess: the guess was that all uses vary over some other axis too, see
            `gradients.traced`.
        """
        for i in origin:
            self.uses[i] = self.uses.get(i, frozenset(axes)) & frozenset(axes)
            if not self.guesses.get(i, frozenset()) <= self.uses[i]:
                raise WrongGuess

    @contextmanager
    def spending(self, axes: tuple[str, ...], dim: Dim):
        """Inside of the `with`, `axes` are spent: they split `dim`, along which `over` maps a body.

        No rule can take a spent axis.
        """
        outer = self.layout, self._splits, self.loops, self.mapped
        self.layout = replace(self.layout, spent=self.layout.spent.union(axes))
        self._splits, self.loops = {}, {}
        self.mapped = (*self.mapped, (dim, axes))
        try:
            with self.recorder.spending(self.layout.spent):
                yield
        finally:
            self.layout, self._splits, self.loops, self.mapped = outer

    @contextmanager
    def taking_turns(
        self, rule: Rule, turn: Turn, unsplit: frozenset[tuple[str, str]] = frozenset()
    ):
        """Inside of the `with`, the dim of `rule` is in turns, of which `turn` is this one.

        The devices' parts of the dim are cut into slices, and each turn works on one slice. To the
        law the turns are an axis like any other, `rule.axis`, below all rules of the layout. So
        Tensors that have the dim are split over it, and those that the body closes over are cut
        where they are used. But no collective runs over it, see `moves.turns`.

        Args:
          rule: a rule that gives its dim to this axis, whose name is that of no axis of the mesh.
          unsplit: dims and axes: by no rule does the axis split the dim, because a slice does not
            divide over it.
        """
        outer = self.layout, self.sizes, self._splits, self.loops, self.turns
        layout = self.layout
        self.layout = replace(layout, turns=(*layout.turns, rule), unsplit=layout.unsplit | unsplit)
        self.sizes = {**self.sizes, rule.axis: turn.count}
        self._splits, self.loops = {}, {}
        self.turns = {**self.turns, rule.axis: turn}
        try:
            with self.recorder.in_turns(rule.axis, turn.count):
                yield
        finally:
            self.layout, self.sizes, self._splits, self.loops, self.turns = outer

    @contextmanager
    def out_of_turns(self, axis: str):
        """Inside of the `with`, nothing is in the turns of `axis`."""
        outer = self.layout, self.sizes, self._splits, self.loops, self.turns
        layout = self.layout
        turns = tuple(rule for rule in layout.turns if rule.axis != axis)
        self.layout = replace(layout, turns=turns, unsplit=frozenset())
        self.sizes = {a: n for a, n in self.sizes.items() if a != axis}
        self._splits, self.loops = {}, {}
        self.turns = {a: turn for a, turn in self.turns.items() if a != axis}
        try:
            yield
        finally:
            self.layout, self.sizes, self._splits, self.loops, self.turns = outer

    def also_in_turns(self, axis: str, dim: Dim, home: tuple[str, ...]) -> None:
        """From now on `dim` is in turns too: `axis` splits it, and slices are cut from its home."""
        homes = self.turns[axis].homes
        if homes.get(dim.name) == home:
            return
        homes[dim.name] = home
        rule = next(rule for rule in self.layout.turns if rule.axis == axis)
        others = [r for r in self.layout.turns if (r.axis, r.dim) != (axis, dim.name)]
        self.layout = replace(self.layout, turns=(*others, replace(rule, dim=dim.name)))
        self._splits, self.loops = {}, {}


def common(name: str, tensors, scope: Scope | None = None) -> Scope | None:
    """The scope that the tensors share; None if no tensor belongs to a lowering.

    Every op asks for the scope of its operands. So this is also where a Tensor is refused whose
    array does not have the shape that its dims say.

    Args:
      scope: the scope that they must have; by default any.

    Raises:
      MeshDSLError: the tensors belong to two lowerings; an array does not have the shape that its
        dims say; or a tensor without a scope, which should be whole, has one device's part.
    """
    free = False
    for t in tensors:
        placement = t.placement
        if placement is None:
            free, expected = True, tuple([d.size for d in t.dims])
        else:
            if placement.scope is not scope:
                if scope is not None:
                    raise MeshDSLError(f"{name}: the operands come from two different lowerings")
                scope = placement.scope
            expected = placement.scope.local_shape(t.dims, placement.axes)
        found = getattr(t.stored, "shape", None)
        if found != expected:
            raise other_shape(name, t, expected, found)
    if free and scope is not None:
        for t in tensors:
            if t.placement is None:
                check_alike(f"{name}: an operand {show(t.dims)}", t.stored, scope)
    return scope


def check_alike(what: str, array, scope: Scope) -> None:
    """Raise a MeshDSLError for an array without a placement that differs between devices."""
    if differs := scope.in_mesh_order(collectives.varying(array) - scope.spent):
        raise MeshDSLError(
            f"{what} is an array that differs between devices along "
            f"{' and '.join(f'`{a}`' for a in differs)}: what a device holds of a "
            "Tensor, a part of it or a term of a sum that is pending; use the Tensor itself, or "
            "md.replicate(x).array, which is settled and whole"
        )


def copy_of(x: Tensor) -> Tensor | None:
    """The copy of the parameter `x` whose values ops use, so that `x` itself need not be gathered.

    Under ZeRO-2 a parameter has two arrays while gradients are taken, see `parameter_copies`: a
    device's part, by which the program is differentiated, and a copy that is less split. The scope
    keeps the copy, under the array of the part.
    """
    if x.placement is None or x.placement.level != "gradients":
        return None
    _, copy = x.placement.scope.copies.get(id(x.stored), (None, None))
    return copy


def with_copy(x: Tensor, copy: Tensor | None = None) -> Tensor:
    """`x`, after noting that `copy` is its copy; with None, `x` as it is."""
    if copy is not None:
        # The scope keeps the array of `x` too, so that its id stays that of this array.
        x.placement.scope.copies[id(x.stored)] = x.stored, copy
    return x
