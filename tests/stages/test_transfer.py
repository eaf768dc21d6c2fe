"""Transfers between meshes: the numbers, the splits and the bytes that cross."""

import threading

import jax
import numpy as np
import optax
import pytest

import meshdsl as md
from tests.helpers import assert_by_law, assert_equal, data, dims, integers, layout, weight

B, D = dims(batch=24, d_model=12)
BYTES = 24 * 12 * 4


def on(rules, first, **sizes):
    """A layout, and its mesh over the devices from `first` on."""
    made = layout(*rules, mesh=sizes)
    return made, md.make_mesh(made, jax.devices()[first : first + int(np.prod([*sizes.values()]))])


DATA = ["batch -> data"]
BOTH = ["batch -> data", "d_model -> model"]
WHOLE = ["heads? -> data"]
# From where to where, the parts that cross, and how often each element does.
CASES = {
    "the same split": ((DATA, 0, dict(data=4)), (DATA, 4, dict(data=4)), 4, 1),
    "another dim": ((DATA, 0, dict(data=4)), (["d_model -> m"], 4, dict(m=4)), 4, 1),
    "gathered there": ((DATA, 0, dict(data=4)), (WHOLE, 4, dict(data=4)), 4, 1),
    "cut before it crosses": ((WHOLE, 0, dict(data=4)), (WHOLE, 4, dict(data=4)), 4, 1),
    "to more devices": ((DATA, 0, dict(data=2)), (BOTH, 2, dict(data=3, model=2)), 6, 1),
    "to fewer devices": ((BOTH, 2, dict(data=3, model=2)), (DATA, 0, dict(data=2)), 2, 1),
    "from one device": ((DATA, 0, dict(data=1)), (BOTH, 2, dict(data=3, model=2)), 6, 1),
    "to one device": ((BOTH, 2, dict(data=3, model=2)), (DATA, 0, dict(data=1)), 1, 1),
    "to meshes without a common divisor": (
        (DATA, 0, dict(data=2)),
        (DATA, 2, dict(data=3)),
        3,
        1,
    ),
    "to copies, from one device": ((DATA, 0, dict(data=1)), (WHOLE, 4, dict(data=4)), 4, 1),
    "to more copies": ((DATA, 0, dict(data=2)), (WHOLE, 4, dict(data=4)), 4, 1),
    "to half as many parts as devices": (
        (DATA, 0, dict(data=4)),
        (["batch -> data"], 2, dict(data=2, model=3)),
        6,
        1,
    ),
    "to a part of the mesh": ((DATA, 0, dict(data=8)), (DATA, 0, dict(data=4)), 4, 3 / 4),
    "on the same devices": ((DATA, 0, dict(data=4)), (["d_model -> m"], 0, dict(m=4)), 4, 1),
    "to where it is": ((DATA, 0, dict(data=4)), (DATA, 0, dict(data=4)), 4, 0),
}


@pytest.mark.parametrize(("source", "target", "parts", "times"), CASES.values(), ids=CASES)
def test_a_transfer_keeps_the_numbers_and_counts_the_bytes_that_cross(source, target, parts, times):
    (first, mesh), (last, other) = on(*source[:2], **source[2]), on(*target[:2], **target[2])
    x, moved = data(B, D), md.Transfers()
    there = md.transfer(md.transfer(x, first, mesh), last, other, transfers=moved)
    assert_equal(there, x, tolerance=0)
    assert_by_law(there, last, other)
    assert [each.parts for each in moved.counts] == [parts]
    # Of "to a part of the mesh" the first device keeps the half that it has of its new part.
    assert moved.bytes == BYTES * times if times != 3 / 4 else moved.bytes <= BYTES


def test_a_transfer_does_not_wait_for_what_it_transfers():
    (first, mesh), (last, other) = on(DATA, 0, data=2), on(BOTH, 2, data=3, model=2)
    go_on, waited = threading.Event(), []

    def wait(x):
        waited.append(go_on.wait(timeout=30))
        return x

    def slow(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x = md.transfer(data(B, D), first, mesh)
    made = jax.jit(slow, out_shardings=x.array.sharding)(x.array)
    there = md.transfer(x.replace(array=made), last, other)
    assert not waited
    go_on.set()
    assert_equal(there, x, tolerance=0)
    assert waited == [True]


def test_a_tree_goes_with_its_parameters_states_arrays_numbers_and_keys():
    params = {"w": weight(B, D, ins=B), "ids": integers(B, below=3)}
    tree = {
        "params": params,
        "state": optax.adam(0.1).init({"w": params["w"]}),
        "masked": optax.masked(optax.adam(0.1), {"w": False}).init({"w": params["w"]}),
        "array": np.arange(3.0, dtype=np.float32),
        "number": 2.5,
        "key": jax.random.key(3),
    }
    how = dict(parameters=["d_model -> model"], mesh={"data": 2, "model": 2})
    there = layout(*DATA, **how)
    mesh, moved = md.make_mesh(there, jax.devices()[4:]), md.Transfers()
    found = md.transfer(tree, there, mesh, name="tree", transfers=moved)
    assert_equal(found["params"], params, tolerance=0)
    assert_by_law(found["params"], there, mesh)
    assert found["params"]["w"].role == params["w"].role
    assert found["state"][0].mu["w"].split == {B: ("data",), D: ("model",)}
    assert found["array"].sharding.is_fully_replicated and found["number"] == 2.5
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(found)} == {mesh}
    assert "tree['params']['w']" in moved.table() and "[batch_data, d_model_model]" in moved.table()
    moved.clear()
    assert moved.bytes == 0 and moved.table().count("\n") == 0
