"""The promise that matters most, for every op at once: under any legal layout it is what it is on one device.

Hypothesis draws the op, its dims, their sizes and dtype, a mesh of one to three axes and a layout in which anything may be split, evenly or
not. 200 examples in all, 2,000 in the nightly profile.
"""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.tensor import is_tensor
from tests.catalogue.__main__ import PAGE, page
from tests.catalogue.read import families, own_moves
from tests.helpers import assert_same, data, integers

pytestmark = pytest.mark.usefixtures("quick_compiles")

FAMILIES = families()
EXAMPLES = 2000 if settings.default.max_examples > 100 else 200
MESHES = [{"p": 8}, {"p": 4}, {"p": 3}, {"p": 2, "q": 4}, {"q": 4, "p": 2}, {"p": 3, "q": 2}, {"p": 1, "q": 4}, {"p": 2, "q": 2, "r": 2}]
SIZES = st.one_of(st.sampled_from([8, 16, 4]), st.integers(1, 13))
DTYPES = {jnp.float32: 2e-5, jnp.bfloat16: 4e-2, jnp.float16: 1e-2}


class Drawn:
    """A `Draw` of hypothesis."""

    def __init__(self, draw):
        self.draw, self.seeds = draw, 0

    def dims(self, *names, low=1):
        return tuple(md.Dim(name, max(low, self.draw(SIZES, label=name))) for name in names)

    def tensor(self, *dims, low=-1.0, high=1.0):
        self.seeds += 1
        return data(*self.draw(st.permutations(dims)), seed=self.seeds, low=low, high=high)

    def integers(self, *dims, below):
        self.seeds += 1
        return integers(*self.draw(st.permutations(dims)), below=below, seed=self.seeds)

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def pick(self, *options):
        return options[self.draw(st.integers(0, len(options) - 1))]


def layout(draw, names):
    """Rules for some of the dims, several for one now and then, from the top in any order."""
    mesh = draw(st.sampled_from(MESHES))
    pairs = st.tuples(st.sampled_from(sorted(names)), st.sampled_from(sorted(mesh)))
    rules = draw(st.lists(pairs, min_size=1, max_size=4, unique=True), label="rules")
    return md.Layout([f"{dim}? -> {axis}" for dim, axis in rules], mesh=mesh, uneven="pad")


def of_dtype(case, dtype):
    """The arguments of the case with its floats in another dtype."""
    cast = lambda t: md.cast(t, dtype) if is_tensor(t) and jnp.issubdtype(t.dtype, jnp.floating) else t  # noqa: E731
    return jax.tree.map(cast, case.args, is_leaf=is_tensor)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_is_the_same_under_every_layout(family):
    @settings(max_examples=math.ceil(EXAMPLES / len(FAMILIES)))
    @given(st.data())
    def same(data):
        entry = data.draw(st.sampled_from(FAMILIES[family]), label="op")
        event(entry.op)
        case = entry.example(Drawn(data.draw))
        tensors = [t for t in jax.tree.leaves(case.args, is_leaf=is_tensor) if is_tensor(t)]
        results = [t for t in jax.tree.leaves(jax.eval_shape(case.fn, *case.args), is_leaf=is_tensor) if is_tensor(t)]
        names = {d.name for t in (*tensors, *results) for d in t.dims}
        assume(names)
        rules = layout(data.draw, names)
        dtype = data.draw(st.sampled_from([jnp.float32, jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16]), label="dtype")
        args = of_dtype(case, dtype)
        gradients = entry.gradients and dtype == jnp.float32
        program, _ = assert_same(case.fn, *args, layout=rules, gradients=gradients, tolerance=DTYPES[dtype], floor=1.0)
        assert own_moves(program.ops) - {"psum", "pmax", "pmin"} <= set(entry.promise), f"{entry.op} promises {entry.promise}"

    same()


def test_every_public_op_is_in_the_catalogue():
    """The other public names are not ops: they make tensors, layouts and lowerings."""
    listed = {entry.op for entries in FAMILIES.values() for entry in entries}
    others = {"Dim", "Layout", "MeshDSLError", "Tensor", "from_local", "lower", "make_mesh", "parameter", "random", "shardings", "show", "tensor"}
    drawn = {f"random.{name}" for name in md.random.__all__}
    assert listed == (set(md.__all__) - others) | drawn


MESH_TENSORFLOW = """
    SlicewiseOperation GenericGradOperation ScalarMultiplyOperation ScalarAddOperation BinaryOpWithBroadcasting AddOperation
    MinMaxOperation BroadcastOperation ReduceOperation PoolOperation PoolBackPropOperation ConcatOperation SplitOperation
    StackOperation UnstackOperation EinsumOperation Conv2dOperation Conv2or3dBackpropInputOperation
    Conv2or3dBackpropFilterOperation Conv3dOperation Conv2dTransposeOperation Conv3dTransposeOperation ShiftOperation
    SliceOperation PadOperation OneHotOperation ImportOperation ImportLaidOutTensorOperation Variable ReadVariable Assign
    Depend Constant StopGradient ScalarSummaryOperation PrintOperation ReshapeOperation TopKOperation RangeOperation
    RandomOperation WhileLoopOperation CustomGradientOperation
""".split()


def test_every_op_class_of_mesh_tensorflow_has_its_row():
    text = PAGE.read_text()
    assert not [name for name in MESH_TENSORFLOW if name not in text]


def test_the_table_of_ops_is_current():
    assert PAGE.read_text() == page(), "run `python -m tests.catalogue`"
