"""Products in the parts of a ring equal those of whole operands, and move what the record says."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from tests.helpers import assert_same, data, dims, integers, layout, only, weight

BATCH, LENGTH, D_MODEL, D_FF = dims(batch=4, length=16, d_model=6, d_ff=8)
RING = {"rule": "length? -> model", "move": "ring"}
LAYOUTS = {
    "ring of 2": layout("batch? -> data", "d_ff -> model", RING, mesh={"data": 2, "model": 2}),
    "ring of 4": layout("d_ff -> model", RING, mesh={"model": 4}),
    "ring of 8": layout("d_ff -> model", RING, mesh={"model": 8}),
    "fsdp": layout(
        "batch? -> data",
        "d_ff -> model",
        RING,
        parameters=["d_model -> data"],
        mesh={"data": 2, "model": 4},
    ),
    "zigzag": layout("d_ff -> model", RING | {"order": "zigzag"}, mesh={"model": 4}),
    "over two axes": layout(
        "d_ff -> a, b",
        {"rule": "length? -> b, a", "move": "ring"},
        mesh={"a": 2, "b": 4},
    ),
    "within parts": layout("d_ff -> model", "length? -> seq", RING, mesh={"seq": 2, "model": 4}),
    "zigzag within parts": layout(
        "d_ff -> model",
        {"rule": "length? -> seq", "order": "zigzag"},
        RING | {"order": "zigzag"},
        mesh={"seq": 2, "model": 2},
    ),
    "one of two axes": layout(
        "d_ff -> a, b",
        "length? -> a",
        {"rule": "length? -> b", "move": "ring"},
        mesh={"a": 2, "b": 2},
    ),
}
QUICK = ["fsdp", "zigzag within parts"]


def mlp(x, up, gate, down):
    """Two products that share an operand, and one that leaves a sum."""
    hidden = md.tanh(md.dot(x, up)) * md.dot(x, gate)
    return x + md.dot(hidden, down)


def arguments(length=LENGTH, d_ff=D_FF, d_model=D_MODEL):
    x = data(BATCH, length, d_model)
    weights = [weight(d_model, d_ff, seed=i, ins=(d_model,)) for i in (1, 2)]
    return x, *weights, weight(d_ff, d_model, seed=3, ins=(d_ff,))


def moved(program, op="einsum"):
    """What einsums move, by the record and by the jaxpr: {(pass, operation, bytes): how often}."""
    recorded, traced = Counter(), Counter()
    for row in program.ops:
        for move in row.moves if row.name == op else ():
            if move.operation not in ("slice", "vary"):
                recorded["forward", move.operation, move.bytes] += move.count * row.count
            if move.backward and move.operation != "vary":
                recorded["backward", move.backward, move.bytes] += move.count * row.count
    for c in program.collectives:
        if program.op_of(c).name == op and c.operation != "psum":
            traced[c.phase, c.operation, c.bytes] += c.count
    return recorded, traced


@pytest.mark.parametrize(
    "under", only(QUICK, LAYOUTS, ["ring of 8", "zigzag", "over two axes", "one of two axes"])
)
def test_a_layer_in_parts_is_that_of_one_device(under):
    assert_same(mlp, *arguments(), layout=LAYOUTS[under])


def test_the_parts_of_an_operand_come_round_once_for_all_who_share_it():
    """And the sums of the result once. In the backward pass both go the other way."""
    program, _ = assert_same(mlp, *arguments(), layout=LAYOUTS["ring of 4"])
    recorded, traced = moved(program)
    part = 4 * BATCH.size * LENGTH.size * D_MODEL.size // 4
    assert recorded == traced
    assert traced == {("forward", "ppermute", part): 6, ("backward", "ppermute", part): 6}


@pytest.mark.slow
@pytest.mark.parametrize(
    "length, mesh, order", [(13, 4, "natural"), (13, 2, "zigzag"), (1, 4, "zigzag")]
)
def test_parts_may_hold_padding(length, mesh, order):
    """Of the length, of what is summed over, and of what is neither."""
    rules = ["d_ff, wide -> model", RING | {"order": order}, "d_model -> data"]
    args = arguments(*dims(length=length, d_ff=7, d_model=5))
    fn = lambda *args: mlp(*args) + 0 * md.sum(data(*dims(wide=3)))
    under = layout(*rules, mesh={"data": 8 // mesh, "model": mesh}, uneven="pad")
    assert_same(fn, *args, layout=under, dims=("wide",))


def test_a_dim_without_elements_has_no_ring():
    args = arguments(*dims(length=8, d_ff=4, d_model=0))
    assert_same(mlp, *args, layout=LAYOUTS["ring of 4"])


def stack(layers):
    def layer(x, weights):
        return md.tanh(mlp(x, *weights)), ()

    return lambda x, *weights: md.scan(md.checkpoint(layer), x, weights, dim=layers)[0]


def test_in_a_scan_over_layers_that_are_recomputed():
    (layers,) = dims(layers=2)
    x, *weights = arguments()
    stacked = [weight(layers, *w.dims, seed=i, ins=w.role.ins) for i, w in enumerate(weights)]
    program, _ = assert_same(stack(layers), x, *stacked, layout=LAYOUTS["fsdp"])
    assert ("all_gather", ("model",)) not in {(c.operation, c.axes) for c in program.collectives}


@pytest.mark.slow
def test_forward_mode_and_its_composition_with_reverse_mode():
    x, *weights = arguments()
    how = x, *weights
    fn = lambda x, up: md.sum(md.sin(mlp(x, up, *weights[1:])))
    both = lambda x, up: (
        md.jvp(fn, (x, up), (md.cos(x), md.cos(up))),
        md.hvp(fn, (x, up), (md.cos(x), md.cos(up))),
    )
    assert_same(both, *how[:2], layout=LAYOUTS["ring of 4"], gradients=False)


@pytest.mark.slow
def test_every_row_by_itself():
    """Mapped over a dim, as `vmap` does it."""
    fn = lambda x, *weights: md.over(BATCH, lambda row: mlp(row, *weights))(x)
    assert_same(fn, *arguments(), layout=LAYOUTS["ring of 4"])


def others(x, up, gate, down):
    hidden, other = md.dot(x, up), md.dot(x, gate)
    return {
        "three operands": md.einsum(x, up, md.tanh(down), out=(BATCH, LENGTH, D_FF)),
        "a sum of three": md.einsum(hidden, gate, down, out=(LENGTH, BATCH)),
        "an operand twice": md.einsum(x, x, up, out=(BATCH, LENGTH, D_FF)),
        "contracted length": md.einsum(x, up, out=(BATCH, D_FF)),
        "sums that are added": md.dot(hidden, down) + md.dot(other, down),
        "another use of the whole": md.sort(other, "length") + md.sum(md.cumsum(x, "length")),
        "parameters alone": md.einsum(md.sum(x), up, gate, down, out=(D_MODEL,)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("under", ["ring of 2", "zigzag"])
def test_other_products(under):
    assert_same(others, *arguments(), layout=LAYOUTS[under])


def test_whole_numbers_are_gathered():
    x, up = (integers(*some, below=9) for some in ((BATCH, LENGTH, D_MODEL), (D_MODEL, D_FF)))
    fn = lambda x, up: md.einsum(x, up, out=(BATCH, LENGTH, D_FF))
    program, _ = assert_same(fn, x, up, layout=LAYOUTS["ring of 4"])
    assert {c.operation for c in program.collectives} == {"all_gather"}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_drawn_products_under_drawn_rings(drawn):
    sizes = st.integers(0, 9)
    a, b, c, d = (md.Dim(name, drawn.draw(sizes, label=name)) for name in "abcd")
    some = st.lists(st.sampled_from([a, b, c, d]), min_size=1, max_size=3, unique=True)
    operands = [data(*drawn.draw(some), seed=i) for i in range(drawn.draw(st.integers(2, 3)))]
    having = sorted({d for t in operands for d in t.dims}, key=lambda d: d.name)
    out = drawn.draw(st.lists(st.sampled_from(having), max_size=3, unique=True), label="out")
    axes = st.permutations(["x", "y"])
    zigzag = {d: drawn.draw(st.sampled_from(["natural", "zigzag"])) for d in "abcd"}
    names = drawn.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=5), label="rules")
    rules = [
        {
            "rule": f"{name}? -> {', '.join(drawn.draw(axes)[: drawn.draw(st.integers(1, 2))])}",
            "move": "ring",
            "order": zigzag[name],
        }
        for name in names
    ]
    mesh = drawn.draw(st.sampled_from([{"x": 2, "y": 4}, {"x": 1, "y": 3}, {"x": 2, "y": 2}]))
    fn = lambda *operands: md.tanh(md.einsum(*operands, out=tuple(out)))
    assert_same(fn, *operands, layout=md.Layout(rules, mesh=mesh, uneven="pad"), floor=1e-3)


def test_products_share_the_parts_that_a_ring_has_brought():
    a, b, c, d = dims(a=8, b=8, c=8, d=8)

    def fn(x, first, second):
        one, other = md.einsum(x, first, out=(a, c)), md.einsum(x, second, out=(a, d))
        return md.einsum(one, other, out=(c, d))

    rules = [{"rule": "c, d -> p"}, {"rule": "a -> p", "move": "ring"}]
    lowered = md.lower(fn, md.Layout(rules, mesh={"p": 4}))
    moves = [
        m for op in lowered.program(data(a, b), weight(b, c), weight(b, d)).ops for m in op.moves
    ]
    assert [m.operation for m in moves if m.count > 1] == ["ppermute"]
