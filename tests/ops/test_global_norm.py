"""The global norm of a tree of Tensors, and gradients clipped to it."""

import jax
import numpy as np
import optax
import pytest

import meshdsl as md
from tests.helpers import assert_equal, data, dims, weight

A, B, C = dims(a=8, b=4, c=2)
TREE = {"x": data(A, B), "y": [weight(B, C, seed=2), data(A, seed=3)]}
LAYOUT = md.Layout(["a -> p", "c -> q"], ["b -> p"], mesh={"p": 4, "q": 2})


def test_the_norm_is_that_of_whole_tensors():
    expected = optax.tree.norm(TREE)
    lowered = md.lower(md.global_norm, LAYOUT)
    np.testing.assert_allclose(md.global_norm(TREE).array, expected, rtol=1e-6)
    np.testing.assert_allclose(lowered(TREE).array, expected, rtol=1e-6)
    found = [(c.operation, c.axes) for c in lowered.program(TREE).collectives]
    assert sorted(found) == [("psum", ("p",)), ("psum", ("p", "q"))]


@pytest.mark.parametrize("most", [0.5, 1e3])
def test_clipping_is_that_of_optax(most):
    ours, theirs = md.clip_by_global_norm(most), optax.clip_by_global_norm(most)
    expected, _ = theirs.update(TREE, theirs.init(TREE))
    clip = lambda tree: ours.update(tree, ours.init(tree))[0]
    assert_equal(clip(TREE), expected)
    assert_equal(md.lower(clip, LAYOUT)(TREE), expected)


def test_what_an_optimizer_masks_out_does_not_count():
    mask = {"x": True, "y": [False, True]}
    optimizer = optax.masked(md.clip_by_global_norm(0.5), mask)
    found, _ = optimizer.update(TREE, optimizer.init(TREE))
    rest = {"x": TREE["x"], "y": TREE["y"][1]}
    np.testing.assert_allclose(
        jax.tree.leaves(found)[0], TREE["x"].array * 0.5 / optax.tree.norm(rest), rtol=1e-5
    )
    assert found["y"][0] is TREE["y"][0]
