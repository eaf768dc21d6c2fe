"""`move = "exchange"`: the vectors that are looked up travel, and the table stays where it is."""

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    dims,
    every,
    in_a_row,
    integers,
    layout,
    weight,
)

EVEN = dims(batch=8, length=4, vocab=16, d_model=8)
UNEVEN = dims(batch=5, length=3, vocab=11, d_model=8)
X, BOTH = {"x": 4}, {"x": 2, "y": 4}


def exchanged(rule="d_model -> x"):
    return {"rule": rule, "move": "exchange"}


LAYOUTS = {
    "fsdp": (EVEN, layout("batch -> x", mesh=X, parameters=[exchanged()])),
    "hybrid": (EVEN, layout("batch -> y, x", mesh=BOTH, parameters=[exchanged()])),
    "minor": (EVEN, layout("batch -> x, y", mesh=BOTH, parameters=[exchanged()])),
    "two axes": (
        EVEN,
        layout("batch -> x, y", mesh=BOTH, parameters=[exchanged("d_model -> x, y")]),
    ),
    "two axes of one": (
        EVEN,
        layout("batch -> x, y", mesh=BOTH, parameters=["d_model -> x", exchanged("d_model -> y")]),
    ),
    "sequence": (
        EVEN,
        layout("batch -> x", "vocab -> y", "length -> y", mesh=BOTH, parameters=[exchanged()]),
    ),
    "the axis is another's": (
        EVEN,
        layout("vocab -> x", "batch -> x, y", mesh=BOTH, parameters=[exchanged("d_model -> x, y")]),
    ),
    "whole indices": (EVEN, layout("length -> y", mesh=BOTH, parameters=[exchanged()])),
    "of values": (EVEN, md.Layout(["batch -> x", exchanged("d_model -> x")], mesh=X)),
    "uneven": (
        UNEVEN,
        layout(
            "batch -> x",
            "vocab -> y",
            "length -> y",
            mesh=BOTH,
            parameters=[exchanged()],
            uneven="pad",
        ),
    ),
}


def operands(sizes=EVEN):
    """A table, indices of which some are none, and indices that share a dim with another table."""
    batch, length, vocab, d_model = sizes
    ids = integers(length, batch, below=vocab.size + 2)
    return weight(vocab, d_model), ids, weight(vocab, length, d_model, seed=2)


def lookups(table, ids, other):
    return md.sin(md.take(table, ids, "vocab")), md.cos(md.take(other, ids, "vocab"))


@every(LAYOUTS, "two axes", "of values", "hybrid")
def test_what_is_found_is_the_same(sizes, rules):
    program, _ = assert_same(lookups, *operands(sizes), layout=rules)
    assert all(in_a_row(program, c) for c in program.collectives if c.bytes > 4)


def loss(table, ids):
    return md.sum(md.sin(md.take(table, ids, "vocab")))


def test_indices_are_gathered_and_vectors_exchanged_forwards_and_backwards():
    """The gradient of the table needs no sum over the axis, and no device has the whole table."""
    table, ids, _ = operands()
    both_ways = {("all_gather", ("x",)): 1, ("all_to_all", ("x",)): 2}
    sums = {
        "fsdp": {("psum", ("x",)): 1},  # of the loss
        "hybrid": {("psum", ("x", "y")): 1, ("psum", ("y",)): 1},  # and of the gradient
    }
    for name, expected in sums.items():
        found = collectives(md.value_and_grad(loss), table, ids, layout=LAYOUTS[name][1])
        assert found == both_ways | expected


def test_the_record_says_which_rule_keeps_the_table():
    table, ids, _ = operands()
    program = md.lower(loss, LAYOUTS["fsdp"][1]).program(table, ids)
    (op,) = (op for op in program.ops if op.name == "take")
    moves = {m.operation: m for m in op.moves if m.operation != "vary"}
    assert moves["all_gather"].bytes == 4 * ids.size
    assert moves["all_gather"].why == "layout, parameters rule 1: d_model -> x"
    assert moves["all_to_all"].bytes == 4 * ids.size * 8 // 4


def test_a_gradient_is_added_up_in_the_dtype_of_sums():
    """In bfloat16, 1,024 equal terms would come to 256."""
    batch, vocab, d_model = dims(batch=1024, vocab=4, d_model=8)
    ids = md.tensor(jnp.zeros(1024, jnp.int32), (batch,))
    rules = layout("batch -> x", mesh={"x": 8}, parameters=[exchanged()])
    run = md.value_and_grad(
        lambda table, ids: md.sum(md.take(table, ids, vocab)), compute="bfloat16", reduce="float32"
    )
    _, gradient = md.lower(run, rules)(weight(vocab, d_model), ids)
    assert (gradient.array[0] == 1024).all() and not gradient.array[1:].any()


def test_a_table_that_is_gathered_once_per_step_is_not_exchanged():
    table, ids, _ = operands()
    rules = layout("batch -> x", mesh=X, parameters=[exchanged()], gather="step")
    found = collectives(md.value_and_grad(loss), table, ids, layout=rules)
    assert not [key for key in found if key[0] == "all_to_all"]


@pytest.mark.parametrize("empty", ["batch", "vocab", "d_model"])
def test_nothing_is_exchanged_of_nothing(empty):
    sizes = tuple(md.Dim(d.name, 0) if d.name == empty else d for d in EVEN)
    table, ids, _ = operands(sizes)
    rules = LAYOUTS["fsdp"][1]
    fn = lambda table, ids: md.take(table, ids, "vocab")
    found = md.lower(fn, rules)(table, ids)
    assert_equal(found, jax.jit(fn)(table, ids))
