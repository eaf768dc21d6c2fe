"""A lowering that runs on types records what a trace of it records."""

import jax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.lowering.local_types import LocalTypes, key_of
from tests.helpers import data, dims, only, weight
from tests.lowering.alike import assert_recorded_alike, with_gradient
from tests.lowering.test_programs import EVEN, MESHES, RULES, STEPS, UNEVEN, ZIGZAG, four, program
from tests.test_every_op import FAMILIES, Drawn, dims_of, layout

HOW = st.fixed_dictionaries(
    {"gather": st.sampled_from(["layer", "step"]), "sum": st.sampled_from(["step", "layer"])}
)


@pytest.mark.parametrize(
    "mesh",
    only(MESHES[:1], MESHES),
    ids=lambda mesh: "-".join(f"{a}{n}" for a, n in mesh.items()),
)
def test_random_programs_are_recorded_alike(mesh):
    def lines(rules, zigzag=()):
        return [
            {
                "rule": f"{dim}? -> {list(mesh)[axis % len(mesh)]}",
                "order": "zigzag" if dim in zigzag else "natural",
            }
            for dim, axis in rules
        ]

    @settings(max_examples=settings.default.max_examples // 3)
    @given(STEPS, RULES, RULES, RULES, ZIGZAG, HOW, st.sampled_from([EVEN, UNEVEN]), st.booleans())
    def alike(steps, rules, parameters, others, zigzag, how, size, gradient):
        levels = {"optimizer": lines(others[:2]), "gradients": lines(others[2:])}
        rules = lines(rules, zigzag), lines(parameters[:2])
        layout = md.Layout(*rules, mesh=mesh, uneven="pad", **levels, **how)
        a, b, c, _ = four(size)
        args = data(a, b, seed=1), data(b, c, seed=2), weight(c, a, seed=3)
        run = program(steps)
        assert_recorded_alike(with_gradient(run, args) if gradient else run, *args, layout=layout)

    alike()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_is_recorded_alike(family):
    @given(st.data())
    def alike(data):
        entry = data.draw(st.sampled_from(FAMILIES[family]), label="op")
        case = entry.case(Drawn(data.draw))
        try:
            result = jax.eval_shape(case.fn, *case.args)
        except md.MeshDSLError:
            assume(False)
        names = dims_of((case.args, result))
        assume(names)
        fn = case.fn
        if entry.gradients and data.draw(st.booleans(), label="gradient"):
            fn = with_gradient(case.fn, case.args) or fn
        assert_recorded_alike(fn, *case.args, layout=layout(data.draw, names))

    alike()


def test_a_local_function_is_traced_once():
    a, b, c = dims(a=4, b=8, c=8)

    def fn(x, w):
        return md.softmax(md.tanh(md.einsum(x, w, out=(a, c))), c)

    types, args = LocalTypes(), (data(a, b), weight(b, c))
    layouts = [md.Layout(["a -> p"], mesh={"p": 2}), md.Layout(["c -> p"], mesh={"p": 2})]
    found = []
    for each in (*layouts, *layouts):
        md.lower(fn, each).record_from_types(types, *args)
        found.append(types.found)
    assert found == [3, 6, 6, 6]


def test_functions_are_the_same_by_their_code_and_what_they_close_over():
    def scaled(by):
        return lambda x: x * by

    assert key_of(scaled(2)) == key_of(scaled(2))
    assert key_of(scaled(2)) != key_of(scaled(3))
    assert key_of(scaled(2)) != key_of(scaled(2.0))
    assert key_of(scaled(scaled(2))) == key_of(scaled(scaled(2)))
    with pytest.raises(TypeError):
        key_of(scaled({1, 2}))


def test_products_that_share_the_parts_of_a_ring_are_recorded_alike():
    a, b, c, d = dims(a=8, b=8, c=8, d=8)

    def fn(x, first, second):
        one, other = md.einsum(x, first, out=(a, c)), md.einsum(x, second, out=(a, d))
        return md.einsum(one, other, out=(c, d))

    rules = [{"rule": "c, d -> p"}, {"rule": "a -> p", "move": "ring"}]
    args = data(a, b), weight(b, c), weight(b, d)
    layout = md.Layout(rules, mesh={"p": 4})
    for run in (fn, fn, with_gradient(fn, args)):
        assert_recorded_alike(run, *args, layout=layout)
    moves = [m for op in md.lower(fn, layout).program(*args).ops for m in op.moves]
    assert [m.operation for m in moves if m.count > 1] == ["ppermute"]
