"""Checkpoints of any pytree of Tensors, arrays and numbers, without a run of `meshdsl train`."""

import re
from enum import IntEnum

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.tensor import is_tensor
from meshdsl.train import Checkpoints
from meshdsl.train.checkpoints.saved_arrays import verify
from tests.helpers import dims
from tests.train.checkpoints.states import assert_equal

IN, OUT = dims(inner=8, outer=4)
SPLIT = md.Layout(["inner -> x"], mesh={"x": 4})
OTHER = md.Layout(["outer -> y"], optimizer=["inner -> z"], mesh={"y": 2, "z": 4})


def make(key):
    params = {
        "up": md.parameter(jax.random.normal(key, (8, 4)), (IN, OUT), ins=IN),
        "bias": md.parameter(jnp.arange(4, dtype=jnp.bfloat16), OUT),
    }
    return params, optax.adam(1e-2).init(params)


def state(layout=SPLIT, seed=0):
    model = md.init(make, jax.random.key(seed), layout)
    return {
        "model": model,
        "counter": jnp.int32(7 + seed),
        "key": jax.random.key(seed, impl="rbg"),
        "history": np.linspace(0, 1 + seed, 5, dtype=np.float32),
        "phase": jnp.asarray([1 + 2j, 3 - 1j]),
        "rate": 0.1 + seed,
        "epoch": 3 + seed,
    }


def test_every_leaf_comes_back_as_what_it_was(tmp_path):
    saved = state()
    with Checkpoints(tmp_path / "tree", every=2) as checkpoints:
        assert [step for step in range(1, 6) if checkpoints.due(step)] == [2, 4]
        checkpoints.save(4, saved, {"row": 12})
        found, step, data = checkpoints.restore(state(seed=1))
    assert (step, data) == (4, {"row": 12})
    assert found["rate"] == 0.1 and found["epoch"] == 3
    assert isinstance(found["history"], np.ndarray)
    numbers = ("rate", "epoch")
    assert_equal(*({k: v for k, v in one.items() if k not in numbers} for one in (found, saved)))
    assert jax.random.bits(found["key"]) == jax.random.bits(saved["key"])
    assert verify(tmp_path / "tree/4") == ""


@pytest.mark.parametrize("abstract", [True, False])
def test_a_tree_is_read_under_another_layout_and_mesh(tmp_path, abstract):
    saved = state()
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, saved)
    if abstract:
        like = saved | {"model": jax.eval_shape(make, jax.random.key(0))}
        found = checkpoints.restore(like, OTHER).state
    else:
        found = checkpoints.restore(state(OTHER, seed=1)).state
    checkpoints.close()
    for one, two in zip(*(jax.tree.leaves(s["model"]) for s in (found, saved)), strict=True):
        np.testing.assert_array_equal(one, two)
    params, opt_state = found["model"]
    assert params["up"].split == {OUT: ("y",)}
    assert opt_state[0].mu["up"].split == {OUT: ("y",), IN: ("z",)}


@pytest.mark.parametrize("tree", [jnp.arange(3), md.tensor(jnp.ones((8,)), IN)])
def test_a_lone_leaf_is_a_tree_too(tmp_path, tree):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        found = checkpoints.restore(tree).state
    assert_equal(found, tree)
    assert is_tensor(found) == is_tensor(tree)


def like(**changes):
    return lambda: state() | changes


WIDE = md.Dim("outer", 6)
OTHERS = {
    "another shape": (
        like(counter=jnp.zeros(3, jnp.int32)),
        "`counter` is [] int32 there and [3] int32 here",
    ),
    "other dims": (
        like(model=({"up": md.parameter(jnp.zeros((8, 6)), (IN, WIDE))}, None)),
        ("`model.0.up` is [inner=8, outer=4] float32 there and [inner=8, outer=6] float32 here"),
    ),
    "one leaf more": (like(more=jnp.zeros(2)), "`more` is absent there and [2] float32 here"),
    "a number for an array": (
        like(counter=1),
        "`counter` is [] int32 there and a number (int) here",
    ),
}


@pytest.mark.parametrize(("other", "said"), OTHERS.values(), ids=OTHERS)
def test_a_tree_that_does_not_fit_is_an_error_that_names_the_leaf(tmp_path, other, said):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state())
        with pytest.raises(md.MeshDSLError, match=re.escape(said)):
            checkpoints.restore(other())


WRONG = {
    "numbers alone": ({"n": 3}, "save: there is no array in the state"),
    "no array": ({"name": "vit"}, "`name` is 'vit'; a checkpoint holds Tensors, arrays and numb"),
    "a dtype of NumPy alone": ({"x": np.ones(3)}, "`x` is float64, which JAX makes float32 of"),
    "half bytes": ({"x": jnp.ones(3, jnp.int4)}, "`x` is int4; checkpoints hold no dtype of less"),
    "one name twice": (
        {"a.b": jnp.ones(3), "a": {"b": jnp.ones(3)}},
        "two leaves of the tree are called `a.b`",
    ),
    "two meshes": (
        lambda: {
            "x": md.init(make, jax.random.key(0), SPLIT),
            "y": md.init(make, jax.random.key(0), OTHER),
        },
        "`y.0.bias` and `x.0.bias` lie on different devices; a checkpoint is of arrays on one",
    ),
}


@pytest.mark.parametrize(("tree", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_saved_is_an_error(tmp_path, tree, said):
    expected = pytest.raises(md.MeshDSLError, match=f"^{re.escape(said)}")
    with Checkpoints(tmp_path) as checkpoints, expected:
        checkpoints.save(1, tree() if callable(tree) else tree)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("settings", [{"keep": 0}, {"keep_every": 1.5}])
def test_settings_are_whole_numbers(tmp_path, settings):
    (name,) = settings
    with pytest.raises(md.MeshDSLError, match=f"^Checkpoints: `{name}` is a whole number"):
        Checkpoints(tmp_path, **settings)


class Phase(IntEnum):
    WARM = 1
    HOT = 2


def test_numbers_of_other_classes_and_arrays_without_elements_come_back(tmp_path):
    bare = md.Layout(mesh={"x": 4})
    none = md.tensor(jnp.zeros((0, 8)), (md.Dim("rows", 0), IN))
    none = jax.device_put(none, md.shardings(none, SPLIT, md.make_mesh(SPLIT)))
    saved = {"model": state()["model"], "none": none, "rate": np.float64(0.1), "phase": Phase.HOT}
    keys = jax.random.split(jax.random.key(0), 0)
    saved |= {"gone": np.zeros((2, 0), np.int32), "keys": keys}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, saved)
        like = saved | {"rate": np.float64(0), "phase": Phase.WARM}
        found = checkpoints.restore(like).state
        checkpoints.save(2, found)  # what came back is what is wanted the next time too
        again = checkpoints.restore(like, bare).state
    for one in (found, again):
        assert one["phase"] is Phase.HOT and repr(one["rate"]) == repr(saved["rate"])
        assert one["none"].dims == none.dims and one["none"].array.shape == (0, 8)
        assert one["gone"].shape == (2, 0) and one["gone"].dtype == np.int32
        assert one["keys"].dtype == keys.dtype and one["keys"].shape == (0,)
    assert verify(tmp_path / "2") == ""
    nothing = Checkpoints(tmp_path / "nothing")
    with pytest.raises(md.MeshDSLError, match="save: there is no array in the state"):
        nothing.save(1, {"none": jnp.zeros(0)})
