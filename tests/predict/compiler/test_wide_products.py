"""Products that were meant to be in few bits are looked up in what the compiler made of them."""

import pytest

import meshdsl as md
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.wide_products import wide_products
from tests.helpers import data, dims, layout, weight

A, B, D, F = dims(a=4, b=8, d=16, f=32)
X, W = data(A, B, D), weight(D, F, ins="d")


@pytest.fixture(scope="module")
def compiled():
    """A product in int8 with its gradients: what was recorded, and the compiler's text."""
    rules = layout("a -> p", mesh={"p": 4})

    def loss(weight, x):
        y = md.quantized_dot(x, weight)
        return md.sum(y * y)

    lowered = md.lower(md.value_and_grad(loss), rules, md.make_mesh(rules))
    traced, program = lowered.trace_program(W, X)
    return program, traced.lower().compile().as_text()


def test_a_product_that_is_cast_first_is_named(compiled):
    """On CPUs the operands of a weight's gradient are of int32, see `ops.precision.products`."""
    program, text = compiled
    (line,) = wide_products(Module(text), program)
    assert line.startswith("quantized_dot (test_wide_products.py:")
    assert line.endswith("), backward: in int32, not int8")


def test_each_phase_has_a_line(compiled):
    program, text = compiled
    found = wide_products(Module(text.replace("s8[", "bf16[")), program)
    assert [line.rpartition("), ")[2].partition(":")[0] for line in found] == [
        "forward",
        "backward",
    ]


def test_a_report_says_so_first():
    rules = layout("a -> p", mesh={"p": 4})
    step = md.value_and_grad(lambda w, x: md.sum(md.quantized_dot(x, w) ** 2))
    report = md.compile(step, W, X, layout=rules)
    lines = str(report).splitlines()
    at = lines.index("products that were meant to be in few bits")
    assert lines[at + 1].endswith("backward: in int32, not int8")
    assert at < next(i for i, line in enumerate(lines) if "surprise" in line)
