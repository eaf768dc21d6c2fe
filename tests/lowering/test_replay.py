"""A lowering that runs on types records what a trace records, and traces nothing twice."""

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from tests.helpers import data, dims, weight
from tests.lowering.replayed import assert_replayed, loss
from tests.lowering.test_programs import EVEN, MESHES, RULES, STEPS, UNEVEN, ZIGZAG, four, program


@pytest.mark.parametrize(
    "mesh", MESHES, ids=lambda mesh: "-".join(f"{a}{n}" for a, n in mesh.items())
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

    @settings(max_examples=settings.default.max_examples // 2)
    @given(STEPS, RULES, RULES, RULES, ZIGZAG, st.sampled_from([EVEN, UNEVEN]), st.booleans())
    def alike(steps, rules, parameters, optimizer, zigzag, size, gradient):
        rules = lines(rules, zigzag)
        others = lines(parameters[:2]), lines(optimizer[:2])
        layout = md.Layout(rules, *others, mesh, uneven="pad")
        a, b, c, _ = four(size)
        run = program(steps)
        if gradient:
            of = lambda w, x, y: loss(run, x, y, w)
            run = lambda x, y, w: md.value_and_grad(of)(w, x, y)
        assert_replayed(
            run, data(a, b, seed=1), data(b, c, seed=2), weight(c, a, seed=3), layout=layout
        )

    alike()
