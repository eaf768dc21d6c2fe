"""Where programs that are not proved differ in numbers: on how few devices, and by how much."""

import re

from jax import lax

import meshdsl as md
from meshdsl.proof import counterexample
from tests.helpers import data, dims, layout

A, B = dims(a=4, b=8)
X = data(A, B)
BOTH = layout("a -> x", "b -> y", mesh={"x": 4, "y": 2})


def verified(fn, name="wrong"):
    return md.verify(lambda x: md.local(fn, x, out=(A, B), name=name), X, layout=BOTH)


def test_two_devices_along_the_axis_that_is_at_fault():
    found = verified(lambda v: v - v.mean(1, keepdims=True))
    assert not found
    number = r"-?[\d.e-]+"
    assert re.fullmatch(
        rf"on x=1 y=2, with random arguments, `result 0`\[\d, \d\] is {number}, and {number} on "
        "one device",
        found.numbers,
    )
    assert str(found).endswith(found.numbers)


def test_what_no_lemma_is_there_for_is_the_same_in_numbers():
    turned = lambda v: lax.while_loop(lambda v: v[0, 0] > 9, lambda v: v - 3, v)
    found = verified(turned)
    assert not found and found.why == "there is no lemma for `while`"
    assert found.numbers == "with random arguments all results are the same on x=2 y=2"


def test_what_is_too_large_is_not_run(monkeypatch):
    monkeypatch.setattr(counterexample, "_LARGEST", 31)
    assert verified(lambda v: v - v.mean(0)).numbers == ""
