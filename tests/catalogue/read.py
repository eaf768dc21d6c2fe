"""What the ops of an example move between devices, by a recording of it under a layout."""

from __future__ import annotations

import jax

import meshdsl as md
from meshdsl.ops.declare import Case, Declaration
from meshdsl.ops.families import FAMILIES, declared
from meshdsl.program.recorder import Move, Op
from meshdsl.tensor import is_tensor


def families() -> dict[str, list[Declaration]]:
    """All declarations of ops, by the title of their family."""
    return {title: declared(title) for title in FAMILIES}


def is_the_ops_own(op: Op, move: Move) -> bool:
    """Whether the op itself asked for a move, and not the law for the op's operands or results."""
    return (
        move.why.startswith((f"{op.name} along", "placed by hand"))
        or move.why == "the op needs it whole"
    )


def own_moves(ops: list[Op]) -> set[str]:
    """The operations of the moves that travel and that ops asked for themselves."""
    free = {"slice", "vary", "hold", "place", "mask"}
    return {m.operation for op in ops for m in op.moves if is_the_ops_own(op, m)} - free


def sums_at_the_end(ops: list[Op]) -> set[str]:
    """`{"psum"}` where a sum was pending and had to be taken, else nothing."""
    moves = [m.operation for op in ops if op.name == "settle" for m in op.moves]
    return {"psum"} & set(moves)


def lowered_moves(case: Case, layout: md.Layout, dims) -> tuple[set[str], bool]:
    """What the ops of an example ask for forward under a layout.

    Returns:
      The operations of these moves, and whether a result leaves a sum pending.
    """
    seen, pending = set(), []

    def run(*args):
        result = case.fn(*args)
        placed = [
            t for t in jax.tree.leaves(result, is_leaf=is_tensor) if is_tensor(t) and t.placement
        ]
        pending.extend(t.pending for t in placed)
        if placed:
            ops = placed[0].placement.scope.recorder.ops
            seen.update(own_moves(ops), sums_at_the_end(ops))
        return result

    md.lower(run, layout, dims=dims).trace(*case.args)
    return seen, any(pending)
