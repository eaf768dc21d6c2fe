"""`md.verify`: what is proved of a function of Tensors, and how it says so."""

import jax
import pytest

import meshdsl as md
from tests.helpers import data, dims, layout, weight

A, B, C = dims(a=4, b=8, c=6)
X, W = data(A, B), weight(B, C, ins=B)
BOTH = layout("a -> x", "b -> y", mesh={"x": 2, "y": 2})


def product(x, w):
    return md.einsum(x, w, out=(A, C))


def loss(w, x):
    return md.mean(md.relu(product(x, w)) ** 2)


def test_a_function_is_proved():
    found = md.verify(product, X, W, layout=BOTH)
    assert found and found.proved
    assert str(found) == (
        "product\nproved: its result equals that of one device, up to the order of sums"
    )
    assert found.to_dict()["results"] == ("result 0",)


def test_gradients_are_proved():
    found = md.verify(md.value_and_grad(loss), W, X, layout=BOTH)
    assert found.proved
    assert "all 2 results" in str(found)


def test_a_lowered_function_is_proved_as_it_is():
    assert md.verify(md.lower(product, BOTH), X, W).proved


def test_results_whose_dims_the_law_puts_in_another_order():
    turned = lambda x: md.transpose(x, (B, A))
    assert md.verify(turned, X, layout=layout("a -> y", mesh={"y": 2})).proved


def test_no_device_is_needed():
    shapes = md.Tensor(jax.ShapeDtypeStruct((4096, 8), "float32"), (md.Dim("n", 4096), B))
    large = layout("n -> x", mesh={"x": 4096})
    assert md.verify(lambda x: md.sum(md.sin(x)), shapes, layout=large).proved


def test_what_is_not_proved_says_where():
    def wrong(x):
        return md.local(lambda a: a - a.mean(0), x, out=(A, B), name="centred")

    found = md.verify(wrong, X, layout=layout("a -> x", mesh={"x": 2}))
    assert not found
    assert found.unproved == found.results == ("result 0",)
    text = str(found)
    assert "not proved: its result\n" in text
    assert "it computes something else: `reduce_sum` in centred[a_x, b]" in text
    assert f"{__file__}:{wrong.__code__.co_firstlineno + 1}" in text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: md.verify(product, 1, 2, layout=BOTH), "verify: no argument is a Tensor"),
        (lambda: md.verify(product, X, W), "verify: `layout` says how `product` is split"),
    ],
)
def test_errors(call, error):
    with pytest.raises(md.MeshDSLError, match=error):
        call()
