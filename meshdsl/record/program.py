"""Program: what `lower` recorded, together with the collectives that JAX made of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from meshdsl.dims import Dims
from meshdsl.later import imported
from meshdsl.layout import Layout
from meshdsl.record.collective import Collective
from meshdsl.record.jaxpr import from_jaxpr
from meshdsl.record.recorder import Op, tag_in, where
from meshdsl.tensor import axes_of, is_tensor, notation


@dataclass(frozen=True)
class Argument:
    """An array that a program is called with.

    Attributes:
      name: its path in the arguments, `params.blocks.layer.mlp.up.weight`.
      dims, axes: of a Tensor, with the axes that split each dim; empty for an array without names.
      shape: on one device.
      dtype: numpy's name.
      bytes: on one device.
      role: `parameter`, `optimizer` for the state of an optimizer, or `value` for anything else.
    """

    name: str
    dims: Dims
    axes: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    role: str = "value"

    def __str__(self):
        return self.name + (notation(self.dims, self.axes) if self.dims else "")


def arguments(tree: Any, name: str, role: str | None = None) -> tuple[Argument, ...]:
    """The arrays of `tree` (`ShapeDtypeStruct`s with shardings will do), in the order in which JAX
    flattens it.

    Args:
      name: of a lone array, which has no path.
      role: of all of them; by default each Tensor tells its own.
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor):
        path_name = jax.tree_util.keystr(path, simple=True, separator=".") or name
        for array in jax.tree.leaves(leaf):  # none for a Tensor that an optimizer masked out
            local = (
                array.sharding.shard_shape(array.shape)
                if getattr(array, "sharding", None)
                else array.shape
            )
            named = is_tensor(leaf) and tuple(d.size for d in leaf.dims) == tuple(array.shape)
            dims, axes = (leaf.dims, axes_of(leaf)) if named else ((), ())
            size = math.prod(local) * array.dtype.itemsize
            own = role or ("parameter" if is_tensor(leaf) and leaf.role is not None else "value")
            dtype = array.dtype.name
            found.append(Argument(path_name, dims, axes, tuple(local), dtype, size, own))
    return tuple(found)


class Program:
    """The record of a lowered function.

    Attributes:
      ops: the ops in program order, each with its loop split, moves and source line.
      layout: under which it was recorded.
      axis_sizes: the mesh.
      jaxpr: the closed jaxpr of one call. What stands in its `shard_map`s is the program of one device.
      arguments: what it is called with, one for each input of the jaxpr.
      donated: as many flags: the memory of such an argument is used for results.
    """

    def __init__(
        self,
        ops: list[Op],
        jaxpr,
        layout: Layout,
        axis_sizes: Mapping[str, int],
        args: tuple = (),
        donated: Collection[int] = (),
        optimizer: Collection[int] = (),
    ):
        """`args` are those that it was traced with; `donated` and `optimizer` are positions: of
        those that are donated, and of those that are the state of an optimizer.
        """
        self.ops = list(ops)
        self.layout = layout
        self.axis_sizes = dict(axis_sizes)
        self.jaxpr = jaxpr
        role = lambda i: "optimizer" if i in optimizer else None  # noqa: E731
        each = [arguments(arg, f"argument {i}", role(i)) for i, arg in enumerate(args)]
        self.arguments = tuple(argument for one in each for argument in one)
        self.donated = tuple(i in donated for i, one in enumerate(each) for _ in one)

    def __repr__(self) -> str:
        mesh = ", ".join(f"{a}={n}" for a, n in self.axis_sizes.items()) or "of one device"
        moves = sum(len(op.moves) for op in self.ops)
        return (
            f"<program of {len(self.ops)} ops with {moves} moves, by {self.layout.name} for the "
            f"mesh {mesh}; .table() lists them>"
        )

    def _repr_html_(self) -> str:
        """What `explain` says of it, as a notebook draws it."""
        return imported("meshdsl.report.explain", "explain")(self)._repr_html_()

    @cached_property
    def collectives(self) -> list[Collective]:
        """Every collective of one call, forward and backward, as JAX will hand it to the compiler."""
        return from_jaxpr(self.jaxpr, self.axis_sizes)

    def op_of(self, collective: Collective) -> Op | None:
        """The op that a collective belongs to; None for one that nothing recorded explains."""
        return self.op_tagged(tag_in(collective.scope))

    def op_tagged(self, tag: str | None) -> Op | None:
        """The op with this tag; None where there is none."""
        return self._by_tag.get(tag)

    @cached_property
    def _by_tag(self) -> dict[str | None, Op]:
        return {op.tag: op for op in self.ops}

    def table(self, all_ops: bool = True) -> str:
        """One line per op: how often it runs, the op with its split loop nest, its moves, and the user's line.

        Args:
          all_ops: also the ops that move nothing.
        """
        rows = [("count", "op", "moves", "backward", "bytes", "why", "source")]
        for op in self.ops:
            if not op.moves and not all_ops:
                continue
            shown = f"{op.name}{notation(op.dims, op.axes)}" + (
                f" +{op.waste:.0%} padding" if op.waste else ""
            )
            rows.append((str(op.count), shown, "", "", "", "", where(op)))
            for m in op.moves:
                axes = ", ".join(m.axes)
                rows.append(
                    ("", "", f"{m.operation}({axes})", m.backward, f"{m.bytes:,}", m.why, "")
                )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )
