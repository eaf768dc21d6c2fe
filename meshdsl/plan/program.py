"""Program: what `lower` recorded, together with the collectives that JAX made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property

from meshdsl.plan.collective import Collective
from meshdsl.plan.jaxpr import from_jaxpr
from meshdsl.plan.record import Op, tag_in
from meshdsl.tensor import notation


class Program:
    """The record of a lowered function.

    Attributes:
      ops: the ops in program order, each with its loop split, moves and source line.
      axis_sizes: the mesh.
    """

    def __init__(self, ops: list[Op], jaxpr, axis_sizes: Mapping[str, int]):
        self.ops = list(ops)
        self.axis_sizes = dict(axis_sizes)
        self._jaxpr = jaxpr

    @cached_property
    def collectives(self) -> list[Collective]:
        """Every collective of one call, forward and backward, as JAX will hand it to the compiler."""
        return from_jaxpr(self._jaxpr, self.axis_sizes)

    def op_of(self, collective: Collective) -> Op | None:
        """The op that a collective belongs to; None for one that nothing recorded explains."""
        return self._by_tag.get(tag_in(collective.scope))

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
            where = f"{os.path.basename(op.source[0])}:{op.source[1]}"
            shown = f"{op.name}{notation(op.dims, op.axes)}" + (f" +{op.waste:.0%} padding" if op.waste else "")
            rows.append((str(op.count), shown, "", "", "", "", where))
            for m in op.moves:
                axes = ", ".join(m.axes)
                rows.append(("", "", f"{m.operation}({axes})", m.backward, f"{m.bytes:,}", m.why, ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
