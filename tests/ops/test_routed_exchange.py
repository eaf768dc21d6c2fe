"""`move = "exchange"` of experts: rows travel to the experts, in as many rounds as it takes."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.ops.routed_exchange import room_of
from tests.helpers import (
    assert_same,
    collectives,
    data,
    integers,
    layout,
    only,
    weight,
    with_gradients,
)
from tests.ops.test_routed import ONE, B, D, E, F, K, L, operands, run

EXPERTS = {"rule": "experts -> x", "move": "exchange"}
LAYOUTS = {
    "batch": layout(EXPERTS, "b -> x", mesh={"x": 4}),
    "after the batch": layout("b -> x", EXPERTS, mesh={"x": 4}),
    "length": layout("b -> y", "l -> x", EXPERTS, mesh={"x": 4, "y": 2}),
    "two axes, turned": layout(
        {"rule": "experts -> y, x", "move": "exchange"}, "b -> x", "l -> y", mesh={"x": 2, "y": 2}
    ),
    "with tensor": layout(EXPERTS, "b -> x", "f -> y", mesh={"x": 4, "y": 2}),
    "with fsdp": md.Layout([EXPERTS, "b -> x, y"], ["d -> y"], mesh={"x": 2, "y": 2}),
    "uneven": layout(EXPERTS, "l -> x", "f -> y", mesh={"x": 3, "y": 2}, uneven="pad"),
    "zigzag": layout(EXPERTS, {"rule": "l -> x", "order": "zigzag"}, mesh={"x": 4}),
    "nobody to visit": layout(EXPERTS, mesh={"x": 4}),
}
IDS = {
    "any": integers(B, L, K, below=E.size),
    "one": ONE,
    "outside": md.tensor(np.arange(64, dtype=np.int32).reshape(4, 8, 2) % 13 - 2, (B, L, K)),
}


CASES = [("with tensor", "one"), ("length", "outside")]
CASES += [(name, "any") for name in LAYOUTS if name not in ("batch", "with tensor")]
OFTEN = [("length", "outside"), ("two axes, turned", "any"), ("uneven", "any"), ("zigzag", "any")]


@pytest.mark.parametrize("name, ids", only(CASES[:1], CASES, OFTEN))
def test_rows_that_travel_change_nothing(name, ids):
    args = operands(IDS[ids])
    assert_same(run, *args, layout=LAYOUTS[name], floor=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(0, 3, 2, 5), (2, 3, 2, 0), (5, 1, 3, 3)])
def test_empty_and_uneven_dims_change_nothing(sizes):
    b, l, k, experts = (md.Dim(d.name, n) for d, n in zip((B, L, K, E), sizes, strict=True))

    def twice(groups, rows, up, down):
        return groups.dot(jnp.sin(groups.dot(rows, up)), down)

    def fn(x, ids, share, up, down):
        return md.routed(twice, x, ids, share, (up, down), experts, sums=F)

    args = data(b, l, D), integers(b, l, k, below=experts.size + 1), data(b, l, k, seed=2)
    args = *args, weight(experts, D, F, seed=3), weight(experts, F, D, seed=4)
    rules = layout(EXPERTS, "b -> x", "f -> y", mesh={"x": 2, "y": 2}, uneven="pad")
    assert_same(fn, *args, layout=rules, floor=1.0)


@pytest.mark.slow
def test_what_travels_is_rows_and_not_all_elements():
    args = operands()
    found = collectives(run, *args, layout=LAYOUTS["batch"])
    assert found == {("pmax", ("x",)): 1, ("all_to_all", ("x",)): 4}
    found = collectives(with_gradients(run, args), *args, layout=LAYOUTS["batch"])
    assert found[("all_to_all", ("x",))] == 4 + 6
    assert ("all_gather", ("x",)) not in found and ("psum_scatter", ("x",)) not in found


@pytest.mark.slow
def test_a_bias_and_one_choice_for_each_element():
    bias = data(E, F)

    def expert(groups, rows, up, bias, down):
        return groups.dot(jnp.tanh(groups.dot(rows, up) + groups.take(bias)), down)

    x, ids, share, _, up, down = operands()
    fn = lambda x, ids, share, up, bias, down: md.routed(
        expert, x, ids, share, (up, bias, down), E, sums="f"
    )
    args = (x, ids["top", 0], share["top", 0], up, bias, down)
    assert_same(fn, *args, layout=LAYOUTS["batch"], floor=1.0)


def test_there_is_room_for_somewhat_more_than_a_fair_share():
    assert room_of(4096, 16) == 320  # 1.25 times 256
    assert room_of(6, 4) == 6 and room_of(1, 4) == 1  # never more than there are
