"""Tensor: an array with names, a pytree, and its way to and from the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.tensor import Parameter
from tests.helpers import data, dims, layout, weight

A, B, C = dims(a=4, b=8, c=2)
X = data(A, B)
SPLIT = layout("a -> data", "b -> model", mesh={"data": 2, "model": 4})


def test_a_tensor_is_an_array_with_names():
    t = md.tensor(np.zeros((4, 8), np.int8), (A, B))
    assert (t.dims, t.dtype, t.size, t.role, t.split, t.pending) == (
        (A, B),
        jnp.int8,
        32,
        None,
        {},
        (),
    )
    assert t.dim("b") == B
    assert md.tensor([1.0, 2.0], C).dims == (C,)
    assert md.tensor(3, ()).item() == 3


def test_a_parameter_knows_what_it_contracts():
    assert weight(A, B, C, ins=(A, "c")).role == Parameter(("a", "c"), ("b",))
    assert weight(A).role == Parameter((), ())


def test_a_tensor_is_a_pytree_with_one_leaf_and_a_name():
    tree = {"w": weight(A, B, ins=(A,))}
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(tree)
    assert jax.tree_util.keystr(path) == "['w'].array" and leaf is tree["w"].array
    same = jax.tree.map(lambda a: a * 2, tree)["w"]
    assert same.dims == (A, B) and same.role == tree["w"].role
    assert jax.eval_shape(lambda t: t, tree)["w"].array.shape == (4, 8)


def kept(x, rules):
    return md.lower(lambda x: x, rules, dims=["a", "b"])(x)


LARGE = data(*dims(b=8, l=16))
SHOWN = {
    "large": (lambda: LARGE, "Tensor[b, l] float32 (8, 16)"),
    "split": (lambda: kept(LARGE, SPLIT), "Tensor[b_model, l] float32 (8, 16)"),
    "two axes": (
        lambda: kept(LARGE, layout("b -> data, model", mesh={"data": 2, "model": 4})),
        "Tensor[b_data_model, l] float32 (8, 16)",
    ),
    "no dims": (lambda: md.tensor(np.int32(7), ()), "Tensor[] int32 () 7"),
    "small": (lambda: md.tensor(np.arange(4.0), A), "Tensor[a] float32 (4,) [0. 1. 2. 3.]"),
    "of two dims": (
        lambda: md.tensor([[1, 2], [3, 4]], dims(p=2, q=2)),
        "Tensor[p, q] int32 (2, 2)\n[[1 2]\n [3 4]]",
    ),
    "small and split": (
        lambda: kept(md.tensor(np.arange(4), A), SPLIT),
        "Tensor[a_data] int32 (4,) [0 1 2 3]",
    ),
    "without values": (lambda: jax.eval_shape(lambda: X), "Tensor[a, b] float32 (4, 8)"),
    "keys": (
        lambda: md.tensor(jax.random.split(jax.random.key(0), 4), A),
        "Tensor[a] key<fry> (4,)",
    ),
}


@pytest.mark.parametrize("make, text", SHOWN.values(), ids=SHOWN)
def test_repr_shows_the_split_and_the_values_of_small_tensors(make, text):
    assert repr(make()) == text


def test_repr_of_what_is_traced_or_gone_shows_no_values():
    shown = []
    jax.jit(lambda x: shown.append(repr(md.sum(x))) or x.array)(X)
    gone = md.tensor(jnp.ones(4), A)
    gone.array.delete()
    assert [*shown, repr(gone)] == ["Tensor[] float32 ()", "Tensor[a] float32 (4,) (deleted)"]


def test_inside_a_lowering_repr_shows_what_is_pending():
    shown = []
    md.lower(lambda x: shown.append(repr(md.sum(x, A))) or x, SPLIT)(X)
    assert shown == ["Tensor[b_model] float32 (8,) pending(data)"]


def test_shards_make_the_whole_again():
    whole = md.lower(lambda x: x * 2.0, SPLIT)(X)
    shards = whole.local_shards()
    assert len(shards) == 8 and all(part.shape == (2, 2) for _, part in shards)
    mesh = md.make_mesh(SPLIT)
    again = md.from_local(shards, (A, B), mesh, {"a": "data", B: ("model",)})
    assert np.array_equal(again.array, X.array * 2) and again.split == whole.split
    assert again.array.sharding.is_equivalent_to(whole.array.sharding, 2)


def test_shards_of_one_device_are_the_tensor():
    ((device, part),) = X.local_shards()
    assert device == jax.devices()[0] and np.array_equal(part, X.array)


def test_a_tensor_without_dims_is_a_truth_value_outside_a_lowering():
    assert md.tensor(True, ()) and not md.all(X > 5.0)
    with pytest.raises(md.MeshDSLError, match="no truth value"):
        md.lower(lambda x: x if md.sum(x) > 0 else -x, SPLIT)(X)
