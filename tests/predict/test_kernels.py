"""What a kernel computes: FLOPs as XLA counts them, and the sizes of its products."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from meshdsl.predict.kernels.kernels import Dot
from tests.predict.graphs import array, graph


def products(function, *args):
    return [dot for kernel, _ in graph(function, *args).walk() for dot in kernel.dots]


def compiled_flops(function, *args):
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


DOTS = {
    "matrix": ("ij,jk->ik", (6, 8), (8, 4), Dot(1, 6, 8, 4, 384, "float32")),
    "batched": ("bij,bjk->bik", (3, 6, 8), (3, 8, 4), Dot(3, 6, 8, 4, 1152, "float32")),
    "two contracted": ("bhd,hde->be", (5, 2, 8), (2, 8, 4), Dot(1, 5, 16, 4, 640, "float32")),
    "outer": ("i,j->ij", (6,), (4,), Dot(1, 6, 1, 4, 48, "float32")),
}


@pytest.mark.parametrize("spec, left, right, expected", DOTS.values(), ids=DOTS)
def test_a_product_has_its_sizes_and_the_flops_that_xla_counts(spec, left, right, expected):
    def function(x, y):
        return jnp.einsum(spec, x, y)

    (dot,) = products(function, array(*left), array(*right))
    if (dot.m, dot.n) != (expected.m, expected.n):  # einsum may swap the operands
        dot = Dot(dot.batch, dot.n, dot.k, dot.m, dot.flops, dot.dtype)
    assert dot == expected
    assert (
        "outer" in spec
        or dot.k == 1
        or compiled_flops(function, array(*left), array(*right)) == dot.flops
    )


CONVOLUTIONS = {
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "valid": {"window_strides": (1, 1), "padding": "VALID"},
    "stride": {"window_strides": (2, 3), "padding": "SAME"},
    "dilated window": {
        "window_strides": (1, 2),
        "padding": [(2, 1), (3, 0)],
        "rhs_dilation": (2, 1),
    },
    "dilated image": {
        "window_strides": (1, 1),
        "padding": [(2, 2), (1, 2)],
        "lhs_dilation": (2, 3),
    },
    "groups": {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2},
}


@pytest.mark.parametrize("how", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_counts_what_does_not_meet_padding(how):
    def function(x, w):
        return lax.conv_general_dilated(x, w, **how)

    args = array(2, 4, 9, 7), array(6, 4 // how.get("feature_group_count", 1), 3, 3)
    (dot,) = products(function, *args)
    assert dot.flops == compiled_flops(function, *args)


def test_flops_of_a_scan_are_counted_for_every_turn():
    def function(x, ws):
        return lax.scan(lambda x, w: (x @ w, ()), x, ws)[0]

    made = graph(function, array(8, 16), array(5, 16, 16))
    assert (
        sum(k.flops * n for k, n in made.walk()) == 5 * 2 * 8 * 16 * 16 == sum(made.flops.values())
    )


def test_element_wise_operations_count_where_they_are_computed():
    made = graph(lambda x: jnp.sum(jnp.exp(x) * 2), array(32, 64))
    (kernel,) = made.kernels
    assert kernel.other_flops == 3 * 32 * 64  # exp, the product, the additions of the sum
    assert kernel.traffic == 4 * (32 * 64 + 1)


PARTS = {
    "rows of a table": (lambda table, rows: table[rows], 4 * 4 * 256 * 2),
    "a slice": (lambda x, at: lax.dynamic_slice(x, (at[0], 0), (4, 256)) * 2, 4 * 4 * 256 * 2),
    "an update in place": (
        lambda x, at: lax.dynamic_update_slice(x, jnp.ones((4, 256)), (at[0], 0)),
        4 * 4 * 256,
    ),
}


@pytest.mark.parametrize("function, expected", PARTS.values(), ids=PARTS)
def test_of_an_array_that_is_used_in_part_only_that_part_moves(function, expected):
    made = graph(function, array(1024, 256), array(4, dtype=jnp.int32))
    assert sum(k.traffic for k in made.kernels) == pytest.approx(
        expected, abs=100
    )  # and the indices


@pytest.mark.parametrize(
    ("rows", "window", "few"),
    # Images of 16 x 16 with 4 and 6 features, float32. Each of the three convolutions (the image's,
    # and the gradients of image and kernel) reads or writes both.
    [(7, 3, 7 * 16 * 16 * (4 + 6) * 4), (8, 3, 0), (7, 1, 0)],
)
def test_a_convolution_over_few_rows_has_the_bytes_that_a_compiler_rearranges(rows, window, few):
    def loss(x, kernel):
        y = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y * y)

    args = array(rows, 16, 16, 4), array(window, window, 4, 6)
    assert [dot.rearranged for dot in products(jax.grad(loss, (0, 1)), *args)] == [few] * 3
