"""The layout: the one place that says how tensors are split over a mesh.

A layout is an ordered list of rules `dim -> axis`. For any set of dims, walk the rules from the
top: a rule splits its dim over its axis if the set has that dim and no earlier rule took that
axis. `Layout.split` is that sentence, and everything else in meshdsl follows from it.

There are four lists. `rules` split every tensor and every op. `parameters` comes below it for
parameters at rest, and what is computed from parameters alone (FSDP, ZeRO-3); `gradients` comes
below both for gradients while the backward pass makes them (ZeRO-2), and `optimizer` below all
for what an optimizer gets and keeps (ZeRO-1). The *level* of a tensor is the name of the last list
that may split it: "rules" for a value, "parameters" for a parameter, and so on.

A dim that does not divide over its axes is an error, unless `uneven = "pad"` (of the layout, or
of one rule) lets its parts be padded while values are split over them. What is at rest is never
padded, see `Layout.at_rest`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import meshdsl.layouts as layouts
from meshdsl.dims import Dim, Dims
from meshdsl.errors import LayoutDoesNotFit, MeshDSLError, either, nearest, quote
from meshdsl.parsing import parse_toml
from meshdsl.rules import (
    ATTRIBUTES,
    DEFAULTS,
    LEVELS,
    UNEVEN,
    Rule,
    check_keys,
    check_orders,
    check_word,
    parsed_line,
)

GATHER = ("layer", "step")
SUM = ("step", "layer")
_BY_SIZE = re.compile(r"dim\d+_\d+")  # what `md.from_jax` calls a dim without a name


@dataclass(frozen=True)
class Layout:
    """Rules, and the sizes of the mesh axes that they name.

    Args:
      rules, parameters, gradients, optimizer: lines such as `"heads, d_ff -> model"`, from the top;
        see docs/layouts.md. `dim?` marks a dim that a model may lack. A line may be a table,
        `{"rule": "vocab -> model", "uneven": "pad"}`.
      mesh: size of each axis, major first; one of them may be `"rest"`: as many devices as are
        left.
      dcn: axes of `mesh`, its most major ones, that go across slices or nodes, over the data
        centre's network; the others lie within.
      strict: raise an error where two dims of a tensor or an op want one axis, instead of letting
        the upper rule win.
      gather: when parameters that only `parameters` splits are gathered: "layer": where an op uses
        them, or "step": once, before gradients are taken; then the "gradients" level passes over
        `parameters`.
      uneven: what becomes of a dim that does not divide over its axes: "error", or "pad": its last
        parts are padded.
      name: what error messages call this layout.
      sum: when gradients are summed over the axes that do not split them: "step": once, when all
        are there, or "layer": each where it is made, while the backward pass goes on. Gradients of
        microbatches are summed once per step in any case.
      spent: axes that no rule can take any more, see `Scope.spending`.
      turns: rules below all `rules` whose axes are turns of a loop, see `Scope.taking_turns`.
      unsplit: dims and axes: no rule gives the axis to the dim, see `Scope.taking_turns`.
    """

    rules: Sequence[str | Mapping[str, Any]] = ()
    parameters: Sequence[str | Mapping[str, Any]] = ()
    optimizer: Sequence[str | Mapping[str, Any]] = ()
    mesh: Mapping[str, int | str] = field(default_factory=dict)
    gradients: Sequence[str | Mapping[str, Any]] = ()
    gather: str = "layer"
    dcn: Sequence[str] = ()
    strict: bool = False
    uneven: str = "error"
    name: str = "layout"
    sum: str = "step"
    spent: frozenset[str] = frozenset()
    turns: tuple[Rule, ...] = ()
    unsplit: frozenset[tuple[str, str]] = frozenset()

    def __post_init__(self):
        if not isinstance(self.name, str):
            raise MeshDSLError(f"layout: its name is what messages call it, not {quote(self.name)}")
        check_mesh(self.mesh, f"{self.name}, mesh")
        if not isinstance(self.dcn, (list, tuple)) or not all(
            isinstance(axis, str) for axis in self.dcn
        ):
            raise MeshDSLError(f"{self.name}, mesh.dcn: a list of axes, not {quote(self.dcn)}")
        if tuple(self.mesh)[: len(self.dcn)] != tuple(self.dcn):
            raise MeshDSLError(
                f"{self.name}, mesh.dcn: axes across slices, [{', '.join(self.dcn)}], stand "
                f"first in the mesh, which is [{', '.join(self.mesh)}]"
            )
        if not isinstance(self.strict, bool):
            raise MeshDSLError(f"{self.name}: strict is true or false, not {quote(self.strict)}")
        check_word(self.name, "uneven", self.uneven, UNEVEN)
        check_word(self.name, "gather", self.gather, GATHER)
        check_word(self.name, "sum", self.sum, SUM)
        _ = self.parsed  # a malformed rule is an error here, not where it is first used

    @classmethod
    def load(cls, path: str | Path) -> Layout:
        """Read a layout file (TOML), or by its name one that comes with meshdsl: `load("fsdp")`.

        A file of that name in the working directory goes before the one that comes with meshdsl.

        Raises:
          MeshDSLError: there is no such file and no such name, the file cannot be read, is not
            TOML, has an unknown key or a malformed rule.
        """
        path = _found(path)
        try:
            data = parse_toml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as e:
            raise MeshDSLError(
                f"layout {path}: cannot be read: {getattr(e, 'strerror', None) or e}"
            ) from None
        except ValueError as e:
            raise MeshDSLError(f"layout {path}: not valid TOML: {e}") from None
        return cls.from_dict(data, name=f"layout {path.name}")

    @classmethod
    def from_dict(cls, data: Mapping, name: str = "layout") -> Layout:
        """A layout from the two tables of a layout file, `mesh` and `layout`."""
        check_keys(name, "", data, ("mesh", "layout"))
        body = data.get("layout", {})
        check_keys(name, "layout.", body, (*LEVELS, "gather", "sum", "strict", "uneven"))
        mesh = data.get("mesh", {})
        across = (
            mesh["dcn"]
            if isinstance(mesh, Mapping) and isinstance(mesh.get("dcn"), Mapping)
            else {}
        )
        within = {axis: size for axis, size in mesh.items() if axis != "dcn"} if across else mesh
        for axis in across:
            if axis in within:
                raise MeshDSLError(
                    f"{name}, mesh.dcn: axis `{axis}` is in [mesh] too; an axis goes across "
                    "slices or lies within them"
                )
        return cls(
            **body, mesh={**across, **within} if across else mesh, dcn=tuple(across), name=name
        )

    @property
    def mesh_table(self) -> dict[str, Any]:
        """The table `mesh` of a layout file."""
        table: dict[str, Any] = {
            axis: size for axis, size in self.mesh.items() if axis not in self.dcn
        }
        return table | ({"dcn": {axis: self.mesh[axis] for axis in self.dcn}} if self.dcn else {})

    def with_mesh(self, sizes: Mapping[str, int | str]) -> Layout:
        """The same rules on a mesh of other sizes; axes of `dcn` that are not in it are dropped."""
        return replace(self, mesh=sizes, dcn=tuple(axis for axis in self.dcn if axis in sizes))

    @cached_property
    def parsed(self) -> tuple[Rule, ...]:
        """Every rule of the four lists, from the top, one dim and one axis each."""
        found = []
        for level in LEVELS:
            lines = getattr(self, level)
            if not isinstance(lines, (list, tuple)) or not all(
                isinstance(line, (str, Mapping)) for line in lines
            ):
                raise MeshDSLError(
                    f'{self.name}, {level}: a list of strings such as ["batch -> data"], not '
                    f"{quote(lines)}"
                )
            how = {"name": self.name, "mesh": self.mesh, "uneven": self.uneven}
            for i, line in enumerate(lines):
                found += parsed_line(line, level, i + 1, **how)
        check_orders(found)
        return (*found, *self.turns)

    def at(self, level: str) -> tuple[Rule, ...]:
        """The rules that hold at `level`, from the top."""
        return self._by_level[level]

    @cached_property
    def _by_level(self):
        above = {level: LEVELS[: i + 1] for i, level in enumerate(LEVELS)}
        if self.gather == "step":
            above["gradients"] = ("rules", "gradients")
        return {level: tuple(r for r in self.parsed if r.level in above[level]) for level in LEVELS}

    def taken(self, dims: Iterable[Dim], level: str = "rules") -> dict[str, Rule]:
        """The law: for each axis, the rule that took it among `dims`."""
        names = {d.name for d in dims}
        taken: dict[str, Rule] = {}
        for rule in self.at(level):
            if rule.dim not in names or rule.axis in self.spent:
                continue
            if (rule.dim, rule.axis) in self.unsplit:
                continue
            first = taken.setdefault(rule.axis, rule)
            if self.strict and first.dim != rule.dim:
                raise MeshDSLError(
                    f"{rule}: `{rule.dim}` and `{first.dim}` both want axis `{rule.axis}` among "
                    f"[{', '.join(sorted(names))}], and strict = true; {first} comes first"
                )
        return taken

    def split(self, dims: Dims, level: str = "rules") -> dict[Dim, tuple[str, ...]]:
        """The axes over which each of `dims` is split, major first; others are left out."""
        by_name = {d.name: d for d in dims}
        split: dict[Dim, tuple[str, ...]] = {}
        for axis, rule in self.taken(dims, level).items():
            dim = by_name[rule.dim]
            split[dim] = (*split.get(dim, ()), axis)
        return split

    @cached_property
    def padded(self) -> frozenset[str]:
        """The names of dims that are padded where they do not divide, because a rule says so."""
        return frozenset(r.dim for r in self.parsed if r.pads)

    @cached_property
    def by_parts(self) -> frozenset[str]:
        """The names of dims of which rules bring operands part by part, where ops can take them."""
        return frozenset(r.dim for r in self.parsed if r.move != DEFAULTS["move"])

    @cached_property
    def orders(self) -> dict[str, Any]:
        """The order of each dim, by name, whose parts are not in natural order."""
        orders = ATTRIBUTES["order"]
        return {r.dim: orders[r.order] for r in self.parsed if r.order != DEFAULTS["order"]}

    @cached_property
    def rounds(self) -> dict[str, int]:
        """How often microbatches go round the stages along a dim, where that is more than once."""
        return {r.dim: r.rounds for r in self.parsed if r.rounds > 1}

    def blocks(self, dim: Dim, axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
        """Into how many equal blocks `dim` is cut when `axes` split it.

        Each part is one block, two in zigzag order, or one for each round of a pipeline.
        """
        parts = math.prod(sizes[a] for a in axes)
        if parts > 1 and dim.name in self.orders:
            return self.orders[dim.name].blocks * parts
        return parts * self.rounds.get(dim.name, 1) if parts > 1 else parts

    @cached_property
    def value_axes(self) -> dict[str, tuple[str, ...]]:
        """For each dim all axes over which a value that has it may be split."""
        rules = [rule for rule in self.at("rules") if rule not in self.turns]
        return {r.dim: tuple(dict.fromkeys(q.axis for q in rules if q.dim == r.dim)) for r in rules}

    def padded_size(self, dim: Dim, axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
        """The elements that all parts of `dim` hold together, with padding, when `axes` split it.

        A dim that may be padded is made a multiple of all axes that its rules name, so that its
        splits nest and no move between them needs the whole, as long as that adds at most an
        eighth; else a multiple of the axes at hand.
        """
        if not axes:
            return dim.size
        up = lambda names: -(-dim.size // (n := self.blocks(dim, names, sizes))) * n
        every = self.value_axes.get(dim.name, ())
        nests = (
            dim.name in self.padded and set(axes) <= set(every) and 8 * up(every) <= 9 * dim.size
        )
        return up(every) if nests else up(axes)

    def at_rest(
        self, dims: Dims, sizes: Mapping[str, int], level: str = "rules"
    ) -> dict[Dim, tuple[str, ...]]:
        """The split of what outlives a lowering: arguments, results and the state of training.

        The law's, but never padded, so that arrays and checkpoints have their logical size, and
        the optimizer sees every element and no other: an axis over which its dim does not divide
        goes to the largest other dim that it divides, and is left out where there is none.
        """
        split, free = {}, []
        for dim, axes in self.split(dims, level).items():
            even = max(
                n
                for n in range(len(axes) + 1)
                if self.padded_size(dim, axes[:n], sizes) == dim.size
            )
            split[dim] = axes[:even]
            free += [(dim, a) for a in axes[even:]]
        for uneven, axis in free:
            for dim in sorted(dims, key=lambda d: -d.size):
                axes = (*split.get(dim, ()), axis)
                if dim != uneven and self.padded_size(dim, axes, sizes) == dim.size:
                    split[dim] = axes
                    break
        return {d: split[d] for d in split if split[d]}

    def check_sizes(self, dims: Dims, sizes: Mapping[str, int], level: str = "rules") -> None:
        """Raise a LayoutDoesNotFit unless every dim divides over its axes, or may be padded."""
        split, taken = self.split(dims, level), self.taken(dims, level)
        for dim, axes in split.items():
            if dim.size % self.blocks(dim, axes, sizes) and dim.name not in self.padded:
                unequal = self._unequal(dim, axes, sizes)
                raise LayoutDoesNotFit(f'{taken[axes[-1]]}: {unequal}, or uneven = "pad"')

    def _unequal(self, dim: Dim, axes: tuple[str, ...], sizes: Mapping[str, int]) -> str:
        """That a dim does not divide over axes, in its order or its rounds, and what would."""
        over = " x ".join(f"`{a}`={sizes[a]}" for a in axes)
        blocks, order = self.blocks(dim, axes, sizes), self.orders.get(dim.name)
        each = order.blocks if order else 1
        divides = lambda n: dim.size % (each * n if n > 1 else 1) == 0
        legal = either([str(n) for n in range(1, dim.size + 1) if divides(n)][:8])
        if rounds := self.rounds.get(dim.name):
            return (
                f"`{dim.name}`={dim.size} does not divide into {blocks} chunks, {rounds} for each "
                f"part over {over}; use stages and rounds whose product is {legal}"
            )
        advice = f"use a `{axes[-1]}` of {legal}"
        if len(axes) > 1:
            advice = f"use axes whose product{f', times {each},' if order else ''} divides it"
        if order:
            over = f'{each} for each part over {over}, which order = "{order.name}" takes'
        into = f"into {blocks} blocks, {over}" if order else f"over {over}"
        return f"`{dim.name}`={dim.size} does not divide {into}; {advice}"

    def check_dims(self, known: Iterable[str], what: str = "this model") -> None:
        """Raise a LayoutDoesNotFit for a rule whose dim is not `known`; one of `dim?` may be."""
        known = set(known)
        for rule in self.parsed:
            if rule.dim not in known and not rule.optional:
                raise LayoutDoesNotFit(
                    f"{rule.where}: no dim `{rule.dim}` in {what}{_nearest_dim(rule.dim, known)}"
                )
            if rule.microbatches and rule.dim in known and rule.microbatches[0] not in known:
                name = rule.microbatches[0]
                raise LayoutDoesNotFit(
                    f"{rule.where}: no dim `{name}` in {what} to cut into microbatches"
                    f"{_nearest_dim(name, known)}"
                )

    def check_axes(self, axes: Iterable[str]) -> None:
        """Raise a MeshDSLError for a rule whose axis is not among `axes`."""
        axes = list(axes)
        for rule in self.parsed:
            if rule.axis not in axes:
                raise MeshDSLError(
                    f"{rule.where}: no axis `{rule.axis}` in the mesh{nearest(rule.axis, axes)}"
                )


def _nearest_dim(word: str, known: Iterable[str]) -> str:
    """`nearest` of the dims that a user can name; those inside of an op have two underscores."""
    shown = {name for name in known if "__" not in name}
    said = nearest(word, shown)
    if "known" in said and any(_BY_SIZE.fullmatch(name) for name in shown):
        said += "; dims without a name in names= of md.from_jax are called by their sizes"
    return said


def shipped() -> dict[str, Path]:
    """The layout files that come with meshdsl, by name."""
    return {path.stem: path for path in sorted(Path(layouts.__path__[0]).glob("*.toml"))}


def _found(path: str | Path) -> Path:
    """The file that `path` means: the one that is there, else the shipped one of that name."""
    if not isinstance(path, (str, Path)):
        raise MeshDSLError(
            f"layout: a file, or the name of a shipped layout such as 'fsdp', not {quote(path)}"
        )
    known = shipped()
    if isinstance(path, Path) or path.endswith(".toml") or Path(path).is_file():
        return Path(path)
    if path not in known:
        raise MeshDSLError(
            f"layout {path}: no such file, and no shipped layout of that name{nearest(path, known)}"
        )
    return known[path]


def check_mesh(sizes: Mapping[str, int | str], where: str) -> None:
    """Raise a MeshDSLError unless each axis has a whole number, or one of them "rest"."""
    if not isinstance(sizes, Mapping):
        raise MeshDSLError(
            f'{where}: a size for each axis, such as {{"data": 4}}, not {quote(sizes)}'
        )
    for axis, count in sizes.items():
        if not isinstance(axis, str):
            raise MeshDSLError(f"{where}: an axis has a name such as 'data', not {quote(axis)}")
        if not (isinstance(count, str) and count == "rest") and (
            not isinstance(count, int) or isinstance(count, bool) or count < 1
        ):
            raise MeshDSLError(
                f'{where}: the size of axis `{axis}` is a whole number of at least 1 or "rest", '
                f"not {quote(count)}"
            )
    if list(sizes.values()).count("rest") > 1:
        raise MeshDSLError(f'{where}: only one axis can be "rest", not {dict(sizes)}')
