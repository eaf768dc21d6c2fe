"""The record of a lowered function: its ops, its jaxpr and its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from meshdsl.dims import Dims
from meshdsl.layout import Layout
from meshdsl.program.collective import Collective
from meshdsl.program.jaxpr import from_jaxpr
from meshdsl.program.optimizer_state import in_optimizer_state
from meshdsl.program.recorder import Op, source_of, tag_in
from meshdsl.tensor import axes_of, is_tensor, notation


@dataclass(frozen=True)
class Argument:
    """An array that a program is called with.

    Attributes:
      name: its path in the arguments, such as `params.blocks.layer.mlp.up.weight`.
      dims: of a Tensor; empty for an array without names.
      axes: for each of the dims, the axes that split it.
      shape: on one device.
      dtype: NumPy's name.
      bytes: on one device.
      role: `parameter`, `optimizer` for the state of an optimizer, or `value` for anything else.
      frozen: whether it is a parameter that has no gradient.
    """

    name: str
    dims: Dims
    axes: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    role: str = "value"
    frozen: bool = False

    def __str__(self):
        return self.name + (notation(self.dims, self.axes) if self.dims else "")


def arguments_in(tree: Any, name: str, role: str | None = None) -> tuple[Argument, ...]:
    """Describes the arrays of `tree`, in the order in which JAX flattens it.

    Args:
      tree: of arrays and Tensors, or of `ShapeDtypeStruct`s with shardings in their place.
      name: what a lone array is called, which has no path.
      role: of all of them; by default each Tensor tells its own, but for the state of an optimizer
        of optax, which is found by its classes.
    """
    found = []
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor)
    for (path, leaf), is_state in zip(leaves, in_optimizer_state(tree), strict=True):
        path_name = jax.tree_util.keystr(path, simple=True, separator=".") or name
        for array in jax.tree.leaves(leaf):  # none for a Tensor that an optimizer masked out
            sharding = getattr(array, "sharding", None)
            local = sharding.shard_shape(array.shape) if sharding else array.shape
            named = is_tensor(leaf) and tuple(d.size for d in leaf.dims) == tuple(array.shape)
            dims, axes = (leaf.dims, axes_of(leaf)) if named else ((), ())
            parameter = is_tensor(leaf) and leaf.role is not None
            found.append(
                Argument(
                    path_name,
                    dims,
                    axes,
                    tuple(local),
                    array.dtype.name,
                    math.prod(local) * array.dtype.itemsize,
                    role or ("optimizer" if is_state else "parameter" if parameter else "value"),
                )
            )
    return tuple(found)


class Program:
    """The record of a lowered function.

    Attributes:
      ops: the ops in program order, each with the split of its loop nest, its moves and its source.
      layout: the layout that it was recorded under.
      axis_sizes: the mesh, `{axis: size}`.
      jaxpr: the closed jaxpr of one call. Inside of its `shard_map`s is the program of one device.
      arguments: what it is called with, one for each input of the jaxpr.
      donated: for each of the arguments, whether its memory is used for results.
      results: what it returns, one for each output of the jaxpr, where that is known.
    """

    _repr_html_: Callable[[Program], str]  # `meshdsl/__init__.py` gives it, from `meshdsl.tools`

    def __init__(
        self,
        ops: list[Op],
        jaxpr,
        layout: Layout,
        axis_sizes: Mapping[str, int],
        args: tuple = (),
        donated: Collection[int] = (),
        optimizer: Collection[int] = (),
        frozen: Collection[str] = (),
        results: Any = (),
    ):
        """Makes the record of one trace.

        Args:
          args: what the function was traced with.
          donated: positions of the `args` that are donated.
          optimizer: positions of the `args` that are the state of an optimizer.
          frozen: the names of parameters that have no gradient.
          results: what the function returns, as shapes.
        """
        self.ops = list(ops)
        self.layout = layout
        self.axis_sizes = dict(axis_sizes)
        self.jaxpr = jaxpr
        each = [
            arguments_in(arg, f"argument {i}", "optimizer" if i in optimizer else None)
            for i, arg in enumerate(args)
        ]
        self.arguments = tuple(
            replace(argument, frozen=argument.name in frozen) if frozen else argument
            for one in each
            for argument in one
        )
        trees = results if isinstance(results, tuple) else (results,)
        found = [arguments_in(tree, f"result {i}") for i, tree in enumerate(trees)]
        self.results = tuple(result for one in found for result in one)
        self.donated = tuple(i in donated for i, one in enumerate(each) for _ in one)

    def __repr__(self) -> str:
        mesh = ", ".join(f"{a}={n}" for a, n in self.axis_sizes.items()) or "of one device"
        moves = sum(len(op.moves) for op in self.ops)
        return (
            f"<program of {len(self.ops)} ops with {moves} moves, by {self.layout.name} for the "
            f"mesh {mesh}; .table() lists them>"
        )

    @cached_property
    def collectives(self) -> list[Collective]:
        """Every collective of one call, forward and backward, as JAX hands it to the compiler."""
        return from_jaxpr(self.jaxpr, self.axis_sizes)

    def op_of(self, collective: Collective) -> Op | None:
        """The op that a collective belongs to; None for one that belongs to no recorded op."""
        return self.op_tagged(tag_in(collective.scope))

    def op_tagged(self, tag: str | None) -> Op | None:
        """The op with this tag; None if there is none."""
        return self._by_tag.get(tag)

    def pipeline_of(self, op: Op) -> Op | None:
        """The pipeline in whose ticks an op runs; None for an op that is in none."""
        return self._pipelines.get(op.tag)

    @cached_property
    def _pipelines(self) -> dict[str, Op]:
        """For the tag of each op that runs in a pipeline, the op of the pipeline."""
        begun: list[Op] = []
        found = {}
        for op in self.ops:
            for pipeline in reversed(begun):
                assert pipeline.schedule is not None
                around = (*pipeline.loops, ("ticks", pipeline.schedule.ticks))
                if op.loops[: len(around)] == around:
                    found[op.tag] = pipeline
                    break
            if op.schedule is not None:
                begun.append(op)
        return found

    @cached_property
    def _by_tag(self) -> dict[str | None, Op]:
        return {op.tag: op for op in self.ops}

    def table(self, all_ops: bool = True) -> str:
        """A text with a line for each op, and below it a line for each of its moves.

        The line of an op says how often it runs, its split loop nest, and the lines of the user's
        code that it comes from.

        Args:
          all_ops: whether ops that move nothing are listed too.
        """
        rows = [("count", "op", "moves", "backward", "bytes", "why", "source")]
        for op in self.ops:
            if not op.moves and not all_ops:
                continue
            shown = f"{op.name}{notation(op.dims, op.axes)}" + (
                f" +{op.waste:.0%} padding" if op.waste else ""
            )
            rows.append((str(op.count), shown, "", "", "", "", source_of(op)))
            for m in op.moves:
                axes = ", ".join(m.axes)
                times = str(m.count) if m.count > 1 else ""
                rows.append(
                    (times, "", f"{m.operation}({axes})", m.backward, f"{m.bytes:,}", m.why, "")
                )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )
