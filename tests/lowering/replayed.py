"""Holds the record that is made of types to the record that is made by tracing."""

from __future__ import annotations

from itertools import takewhile

import jax

import meshdsl as md
from meshdsl.lowering.local_types import LocalTypes
from meshdsl.tensor import is_tensor

TYPES = LocalTypes()  # one for all tests, as a search has one for all layouts


def assert_replayed(fn, *args, layout: md.Layout) -> None:
    """The ops that types give are those of the trace, with the same moves in the same order.

    When JAX differentiates an op, the rule that some of them have for that (of `softmax`, say)
    moves once more, and the trace writes that down too, after all that the op moves forwards.
    """
    lowered = md.lower(fn, layout)
    lowered.trace(*args)
    assert_alike(lowered.record, lowered.replay(TYPES, *args))


def assert_alike(expected, found) -> None:
    """Two lists of ops are the same."""
    for op, other in zip(expected, found, strict=True):
        assert _row(op) == _row(other), f"{_row(op)} instead of {_row(other)}"
        forwards, derived = op.moves[: len(other.moves)], op.moves[len(other.moves) :]
        assert forwards == other.moves, f"{op}: {forwards} instead of {other.moves}"
        own = f"{op.name} along"
        assert all(m.why.startswith(own) for m in derived), f"{op}: {derived} is missing"


def _row(op) -> tuple:
    of_program = tuple(takewhile(lambda line: line[0] != __file__, op.lines))
    loop = op.dims, op.axes, op.loops, op.waste
    return op.tag, op.name, of_program, *loop, op.kernel, op.needed


def loss(fn, *args):
    """A number that depends on every floating-point Tensor that `fn(*args)` returns."""
    found = jax.tree.leaves(fn(*args), is_leaf=is_tensor)
    tensors = [t for t in found if is_tensor(t) and md_is_float(t)]
    return sum((md.sum(t * t) for t in tensors[1:]), start=md.sum(tensors[0] * tensors[0]))


def md_is_float(t: md.Tensor) -> bool:
    return jax.numpy.issubdtype(t.dtype, jax.numpy.floating)
