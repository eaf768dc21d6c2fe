"""Random programs, as plain JAX and named at random, equal themselves under random layouts."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from tests.from_jax.test_primitives import mixed
from tests.helpers import distance
from tests.lowering.test_programs import STEPS, four, program

# Names of x [a, b], y [b, c] and w [c, a]; `_` and factors, too.
NAMES = st.sampled_from(
    [
        {"x": "a b", "y": "b c", "w": "c a"},
        {"x": "a b", "y": "_ c"},
        {"x": "a _", "y": "b _", "w": "c d"},
        {"x": "(a c) b"},
        {"x": "(a b) (c d)", "y": "_ v"},
        {"w": "b (c d)"},
    ]
)
FACTORS = ("a", "b", "c", "d", "v", "dim16_1", "dim4_1", "dim11_1", "a_2", "b_2")
RULES = st.lists(st.tuples(st.sampled_from(FACTORS), st.sampled_from(range(3))), max_size=6)
MESHES = ({"p": 2, "q": 4}, {"p": 2, "q": 2, "r": 2}, {"p": 3, "q": 1})


def arrays(size):
    keys = jax.random.split(jax.random.key(size), 3)
    return [jax.random.normal(k, (size, size)) for k in keys]


def of_arrays(steps, size):
    """The program as a function of arrays: what it does by names is plain JAX afterwards."""
    a, b, c, _ = four(size)

    def run(x, y, w):
        given = md.tensor(x, (a, b)), md.tensor(y, (b, c)), md.tensor(w, (c, a))
        return [t.array for t in program(steps)(*given)]

    return run


def assert_same_by_names(fn, names, args, layout):
    """A function, and the gradient of all it gives, by names under a layout and in plain JAX."""
    loss = lambda args: mixed(fn(*args))
    wanted, slopes = jax.jit(fn)(*args), jax.jit(jax.grad(loss))(args)
    patterns = {str("xyw".index(k)): pattern for k, pattern in names.items()}
    groups = "".join(re.findall(r"\((.*?)\)", " ".join(names.values())))
    sizes = dict.fromkeys(groups.replace(" ", ""), 4)
    named = md.from_jax(lambda args: (loss(args), fn(*args)), patterns, sizes=sizes)
    packed = named.pack(args)
    step = md.lower(md.value_and_grad(named, has_aux=True), layout)
    (_, made), gradients = step(packed)
    for found, array in zip(named.unpack_result((0.0, made))[1], wanted, strict=True):
        assert distance(np.asarray(found), np.asarray(array), floor=1.0) < 2e-5
    top = max(1.0, *(float(jnp.linalg.norm(g)) for g in slopes))
    for found, array in zip(named.unpack(gradients), slopes, strict=True):
        assert distance(np.asarray(found), np.asarray(array), floor=top) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "-".join(f"{a}{n}" for a, n in m.items()))
@settings(max_examples=settings.default.max_examples // 12, deadline=None)
@given(steps=STEPS, rules=RULES, parameters=RULES, names=NAMES, size=st.sampled_from([16, 11]))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_programs_are_the_same_by_names(mesh, steps, rules, parameters, names, size):
    names = {k: p for k, p in names.items() if size == 16 or "(" not in p}
    lines = lambda rules: [f"{d}? -> {list(mesh)[n % len(mesh)]}" for d, n in rules]
    layout = md.Layout(lines(rules), lines(parameters[:2]), mesh=mesh, uneven="pad")
    assert_same_by_names(of_arrays(steps, size), names, arrays(size), layout)


def test_a_drawn_program_is_the_same_by_names():
    steps = [("einsum", 0, 1, 5), ("cumsum", 0, 0, 2), ("take", 0, 0, 3)]
    layout = md.Layout(["b? -> q", "a? -> p"], ["c? -> p"], mesh={"p": 2, "q": 2})
    names = {"x": "a b", "y": "b _"}
    assert_same_by_names(of_arrays(steps, 8), names, arrays(8), layout)
