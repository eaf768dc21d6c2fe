"""Holds the record that is made from types to the record that a trace makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.lowering.local_types import LocalTypes
from meshdsl.record.recorder import Op
from meshdsl.tensor import is_tensor

TYPES = LocalTypes()  # one for all tests, as there would be one for many layouts


def assert_recorded_alike(fn, *args, layout: md.Layout) -> None:
    """The ops that types give are those of the trace, with the same moves in the same order."""
    lowered = md.lower(fn, layout)
    lowered.trace(*args)
    assert_alike(lowered.record, lowered.record_from_types(TYPES, *args))


def assert_alike(traced: Sequence[Op], found: Sequence[Op]) -> None:
    """Two lists of ops are the same.

    When JAX differentiates an op, the rule that some of them have for that (that of `softmax`, say)
    moves once more. The trace writes that down too, after all that the op moves forwards.
    """
    for op, other in zip(traced, found, strict=True):
        assert _row(op) == _row(other), f"{_row(op)} instead of {_row(other)}"
        forwards, derived = op.moves[: len(other.moves)], op.moves[len(other.moves) :]
        assert forwards == other.moves, f"{op}: {forwards} instead of {other.moves}"
        of_rule = f"{op.name} along"
        assert all(m.why.startswith(of_rule) for m in derived), f"{op}: {derived} is missing"


def _row(op: Op) -> tuple:
    of_program = tuple(takewhile(lambda line: line[0] != __file__, op.lines))
    loop = op.dims, op.axes, op.loops, op.waste
    return op.tag, op.name, of_program, *loop, op.kernel, op.needed, op.lacks


def with_gradient(fn, args: Sequence):
    """`fn`, and a number that depends on all its results differentiated by all floats of `args`.

    Returns None where there is no such number.
    """
    by = [i for i, x in enumerate(args) if _is_float(x)]

    def loss(floats, args):
        args = list(args)
        for i, x in zip(by, floats, strict=True):
            args[i] = x
        found = filter(_is_float, jax.tree.leaves(fn(*args), is_leaf=is_tensor))
        squares = [md.sum(t * t) for t in found]
        return sum(squares[1:], start=squares[0])

    def run(*args):
        return md.value_and_grad(loss)([args[i] for i in by], args)

    return run if by else None


def _is_float(x) -> bool:
    return is_tensor(x) and jnp.issubdtype(x.dtype, jnp.floating)
