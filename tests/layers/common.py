"""Dims, data and layouts of the tests of layers, and models compared with themselves lowered."""

from __future__ import annotations

import jax

import meshdsl as md
from meshdsl.tensor import is_tensor
from tests.helpers import assert_same, data, dims, layout

BATCH, LENGTH, SOURCE, D_MODEL, D_SOURCE = dims(batch=4, length=8, source=6, d_model=8, d_source=12)
HEADS, GROUP, HEAD_DIM, D_FF, VOCAB = dims(heads=4, group=2, head_dim=4, d_ff=16, vocab=16)
X = data(BATCH, LENGTH, D_MODEL)
OTHER = data(BATCH, SOURCE, D_SOURCE, seed=1)

# Rules are optional, because not every layer has all dims.
LAYOUTS = {
    "fsdp": layout("batch? -> p", mesh={"p": 4}, parameters=["d_model?, d_ff? -> p"]),
    "tensor": layout(
        "batch? -> d", "heads?, d_ff?, vocab? -> m", "length? -> m", mesh={"d": 2, "m": 4}
    ),
    "context": layout(
        "length?, memory?, source?, height? -> c", "batch? -> d", mesh={"d": 2, "c": 2}
    ),
}


def assert_tree_same(fn, tree, *, layout: md.Layout, **how):
    """`fn(tree)` is the same lowered, with the gradient by every Tensor of floats in the tree."""
    tensors, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    run = lambda *tensors: fn(jax.tree.unflatten(structure, tensors))
    return assert_same(run, *tensors, layout=layout, **how)
