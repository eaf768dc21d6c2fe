"""All entries, and what a lowering of an example moves."""

from __future__ import annotations

import importlib
import pkgutil

import jax

import meshdsl as md
import tests.catalogue
from meshdsl.record.recorder import Move, Op
from meshdsl.tensor import is_tensor
from tests.catalogue import Case, Entry

NOT_FAMILIES = {"__main__", "api", "read"}


def families() -> dict[str, list[Entry]]:
    """The entries of each module of the catalogue."""
    names = sorted(
        m.name for m in pkgutil.iter_modules(tests.catalogue.__path__) if m.name not in NOT_FAMILIES
    )
    return {name: importlib.import_module(f"tests.catalogue.{name}").ENTRIES for name in names}


def is_the_ops_own(op: Op, move: Move) -> bool:
    """Whether the op itself asked for a move, and not the law for the op's operands or results."""
    return (
        move.why.startswith((f"{op.name} along", "placed by hand"))
        or move.why == "the op needs it whole"
    )


def own_moves(ops: list[Op]) -> set[str]:
    """The operations of the moves that travel and that ops asked for themselves."""
    free = {"slice", "vary", "place", "mask"}
    return {m.operation for op in ops for m in op.moves if is_the_ops_own(op, m)} - free


def lowered_moves(case: Case, layout: md.Layout, dims) -> tuple[set[str], bool]:
    """What the ops of an example ask for forward, under a layout, and whether a result leaves a sum pending."""
    seen, pending = set(), []

    def run(*args):
        result = case.fn(*args)
        placed = [t for t in jax.tree.leaves(result, is_leaf=is_tensor) if is_tensor(t) and t.place]
        pending.extend(t.pending for t in placed)
        if placed:
            ops = placed[0].place.scope.recorder.ops
            seen.update(
                own_moves(ops),
                {
                    m.operation
                    for op in ops
                    if op.name == "settle"
                    for m in op.moves
                    if m.operation == "psum"
                },
            )
        return result

    lowered = md.lower(run, layout, dims=dims)
    lowered.trace(*case.args)
    return seen, any(pending)
