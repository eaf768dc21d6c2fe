"""Every op is under any legal layout what it is on one device: the promise that matters most.

Hypothesis draws the op, its dims, their sizes and dtype, a mesh of one to three axes and a layout
in which anything may be split, evenly or not. Dims may be empty, and numbers of any kind; an op
that refuses them does so in the same words. An op has one example, which is not the simplest, and
twenty in the nightly profile; of component-wise ones, which are alike, one in ten has so many.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.tensor import is_tensor
from tests.catalogue.__main__ import PAGE, page
from tests.catalogue.read import families, own_moves
from tests.helpers import assert_same, data, integers

FAMILIES = families()
EXAMPLES = 20 if settings.default.max_examples > 100 else 1
MESHES = [
    {"p": 8},
    {"p": 4},
    {"p": 3},
    {"p": 2, "q": 4},
    {"q": 4, "p": 2},
    {"p": 3, "q": 2},
    {"p": 1, "q": 4},
    {"p": 2, "q": 2, "r": 2},
]
SIZES = st.one_of(st.sampled_from([8, 16, 4]), st.integers(0, 13))
TOLERANCES = {jnp.bfloat16: 4e-2, jnp.float16: 1e-2}
FLOATS = [jnp.float32, jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16]
OTHERS = [jnp.bool_, jnp.int8, jnp.uint8, jnp.int32, jnp.complex64]
INDICES = [jnp.int32, jnp.int32, jnp.int8, jnp.uint8]


class Drawn:
    """A `Draw` of hypothesis."""

    def __init__(self, draw):
        self.draw, self.seeds = draw, 0

    def dims(self, *names, low=0):
        return tuple(md.Dim(name, max(low, self.draw(SIZES, label=name))) for name in names)

    def tensor(self, *dims, low=-1.0, high=1.0):
        self.seeds += 1
        return data(*self.draw(st.permutations(dims)), seed=self.seeds, low=low, high=high)

    def integers(self, *dims, below):
        self.seeds += 1
        dtype = self.draw(st.sampled_from(INDICES))
        dims = self.draw(st.permutations(dims))
        return integers(*dims, below=below, seed=self.seeds, dtype=dtype)

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def pick(self, *options):
        return options[self.draw(st.integers(0, len(options) - 1))]


def layout(draw, names):
    """Rules for some of the dims, several for one now and then, from the top in any order.

    Parts of some dims are in zigzag order.
    """
    mesh = draw(st.sampled_from(MESHES))
    pairs = st.tuples(st.sampled_from(sorted(names)), st.sampled_from(sorted(mesh)))
    rules = draw(st.lists(pairs, min_size=1, max_size=4, unique=True), label="rules")
    zigzag = draw(st.sets(st.sampled_from(sorted(names)), max_size=2), label="zigzag")
    lines = [
        {"rule": f"{dim}? -> {axis}", "order": "zigzag" if dim in zigzag else "natural"}
        for dim, axis in rules
    ]
    return md.Layout(lines, mesh=mesh, uneven="pad")


def of_dtype(case, dtype):
    """The arguments of the case with its floats in another dtype.

    Whole numbers are so large that a few of them overflow an int8; of bools about half are true.
    """

    def cast(t):
        if not is_tensor(t) or not jnp.issubdtype(t.dtype, jnp.floating) or dtype == t.dtype:
            return t
        numbers = np.asarray(t.array)
        if dtype == jnp.bool_ and numbers.size:
            numbers = numbers > np.median(numbers)
        elif jnp.issubdtype(dtype, jnp.integer):
            numbers = np.round(numbers * 100).astype(np.int32)
        elif dtype == jnp.complex64:
            numbers = numbers + 1j * np.cos(9 * numbers)
        return md.tensor(jnp.asarray(numbers.astype(dtype)), t.dims)

    return jax.tree.map(cast, case.args, is_leaf=is_tensor)


def assert_refused_alike(fn, args, rules, refusal):
    """Lowered, `fn` refuses the same arguments with the same words."""
    with pytest.raises(md.MeshDSLError) as lowered:
        md.lower(fn, rules).trace(*args)
    assert str(lowered.value) == str(refusal)


def dims_of(trees) -> set[str]:
    """The names of all dims of the Tensors in `trees`."""
    tensors = filter(is_tensor, jax.tree.leaves(trees, is_leaf=is_tensor))
    return {d.name for t in tensors for d in t.dims}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_is_the_same_under_every_layout(family):
    def same(data, entries):
        # Hypothesis begins with the simplest of everything, of which this is False.
        assume(data.draw(st.booleans(), label="not the simplest"))
        entry = data.draw(st.sampled_from(entries), label="op")
        case = entry.case(Drawn(data.draw))
        dtypes = FLOATS if entry.floats else FLOATS + OTHERS
        dtype = data.draw(st.sampled_from(dtypes), label="dtype")
        args = of_dtype(case, dtype)
        # The mean of nothing is a NaN, and its derivative is one only where no part is empty.
        assume(entry.name != "jvp" or all(t.size for t in args))
        try:
            result, refusal = jax.eval_shape(case.fn, *args), None
        except md.MeshDSLError as error:
            result, refusal = (), error
        event(f"{entry.name} {'refuses' if refusal else 'takes'} {dtype.__name__}")
        names = dims_of((args, result))
        assume(names)
        rules = layout(data.draw, names)
        if refusal:
            return assert_refused_alike(case.fn, args, rules, refusal)
        gradients = entry.gradients and dtype in (jnp.float32, jnp.complex64)
        how = {"tolerance": TOLERANCES.get(dtype, 2e-5), "floor": 1.0}
        program, _ = assert_same(case.fn, *args, layout=rules, gradients=gradients, **how)
        assert own_moves(program.ops) - {"psum", "pmax", "pmin"} <= set(entry.moves), (
            f"{entry.name} promises {entry.moves}"
        )

    ops = FAMILIES[family]
    for entries in [ops] if family == "Component-wise" else [[op] for op in ops]:
        how = settings(max_examples=EXAMPLES * max(1, len(entries) // 10))
        how(given(st.data(), st.just(entries))(same))()


def test_every_public_op_is_in_the_catalogue():
    """The other public names are not ops: they make tensors, layouts and lowerings."""
    listed = {entry.name for entries in FAMILIES.values() for entry in entries}
    others = """
        Average Dim Family JaxFamily Layout MeshDSLError Stages Tensor Transfers abstract
        clip_by_global_norm compare compile explain from_jax from_local full global_norm init
        ledger lower make_mesh normal ones parameter random register_wire search shardings show
        tensor transfer truncated_normal uniform verify zeros
    """.split()
    drawn = {f"random.{name}" for name in md.random.__all__}
    assert listed == (set(md.__all__) - set(others)) | drawn


MESH_TENSORFLOW = """
    SlicewiseOperation GenericGradOperation ScalarMultiplyOperation ScalarAddOperation
    BinaryOpWithBroadcasting AddOperation MinMaxOperation BroadcastOperation ReduceOperation
    PoolOperation PoolBackPropOperation ConcatOperation SplitOperation StackOperation
    UnstackOperation EinsumOperation Conv2dOperation Conv2or3dBackpropInputOperation
    Conv2or3dBackpropFilterOperation Conv3dOperation Conv2dTransposeOperation
    Conv3dTransposeOperation ShiftOperation SliceOperation PadOperation OneHotOperation
    ImportOperation ImportLaidOutTensorOperation Variable ReadVariable Assign Depend Constant
    StopGradient ScalarSummaryOperation PrintOperation ReshapeOperation TopKOperation
    RangeOperation RandomOperation WhileLoopOperation CustomGradientOperation
""".split()


def test_every_op_class_of_mesh_tensorflow_has_its_row():
    text = PAGE.read_text()
    assert not [name for name in MESH_TENSORFLOW if name not in text]


def test_the_table_of_ops_is_current():
    assert PAGE.read_text() == page(), "run `python -m tests.catalogue`"
