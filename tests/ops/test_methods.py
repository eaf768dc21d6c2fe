"""Methods of Tensors are the ops of `md`."""

import inspect

import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.methods import METHODS
from tests.helpers import assert_same, data, dims, layout

A, B, C = dims(a=4, b=8, c=2)
X = data(A, B)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_op_of_its_name(name):
    assert inspect.getattr_static(md.Tensor, name) is getattr(md, name)
    first = next(iter(inspect.signature(getattr(md, name)).parameters))
    assert first in ("x", "operands"), "the Tensor is the first argument"


def test_methods_follow_one_another():
    found = X.square().sum("b").rename("a", "rows").max()
    np.testing.assert_allclose(found.array, np.square(np.asarray(X.array)).sum(1).max(), rtol=1e-6)


def test_methods_are_the_same_lowered():
    run = lambda x: (x.transpose(("b", "a")).cumsum("b").softmax("b"), x.mean(), x.take(IDS, "b"))
    assert_same(run, X, layout=layout("a -> m", "b -> n", mesh={"m": 2, "n": 4}))


IDS = md.tensor(np.array([3, 0]), C)


def test_a_method_has_the_errors_of_its_op():
    with pytest.raises(md.MeshDSLError, match=r"^max: no dim `c` in \[a=4, b=8\]; known: `a`, `b`"):
        X.max("c")


def test_what_was_there_stays_what_it_is():
    assert X.split == {} and X.size == 32 and X.shape == (4, 8)
    assert not set(METHODS) & set(vars(md.tensor(0, ()).__class__.__mro__[1]))


def test_functions_of_numpy_take_tensors_as_arrays():
    x = np.asarray(X.array)
    for fn in (np.sum, np.max, np.mean, np.var, np.argmax, np.transpose, np.cumsum, np.sort):
        np.testing.assert_array_equal(fn(X), fn(x))
    np.testing.assert_array_equal(np.sum(X, axis=0), x.sum(0))
    np.testing.assert_array_equal(np.concatenate([X, x]), np.concatenate([x, x]))
    np.testing.assert_array_equal(np.where(X > 0, X, 0.0), np.where(x > 0, x, 0.0))
