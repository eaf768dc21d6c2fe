"""Numbers in few bits: what rounds depends on values alone, under every layout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qwix._src.core import dot_general_qt, qarray

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.ops.low_rank import LowRank
from meshdsl.ops.precision import products
from meshdsl.ops.precision.few_bits import FewBits
from meshdsl.ops.precision.formats import RECIPES
from tests.helpers import assert_same, covering, data, dims, distance, layout, only, weight

B, L, D, F = dims(batch=4, length=6, d_model=16, d_ff=24)
X, G = data(B, L, D), data(B, L, F, seed=5)
UP, DOWN = weight(D, F, ins="d_model"), weight(F, D, ins="d_ff", seed=2)
INT8, FP8 = RECIPES["int8"], RECIPES["fp8"]
NAMES = ["int8", "fp8"]
FORMATS = pytest.mark.parametrize("name", NAMES)
LAYOUTS = {
    "data": layout("batch -> p", mesh={"p": 4}),
    "fsdp": layout("batch -> p", mesh={"p": 4}, parameters=["d_model -> p"]),
    "fsdp, gathered once": layout(
        "batch -> p", mesh={"p": 4}, parameters=["d_model -> p"], gather="step"
    ),
    "zero 2": layout("batch -> p", mesh={"p": 4}, gradients=["d_model -> p"]),
    "tensor": layout("d_ff -> p", mesh={"p": 8}),
    "tensor, sequence and fsdp": layout(
        "batch -> p", "d_ff -> q", "length -> q", mesh={"p": 2, "q": 2}, parameters=["d_model -> p"]
    ),
    "features": layout("d_model -> p", mesh={"p": 4}),
    "uneven": layout("length -> p", "d_ff -> q", mesh={"p": 4, "q": 2}, uneven="pad"),
    "zigzag": layout({"rule": "length -> p", "order": "zigzag"}, mesh={"p": 3}),
}


def mlp(name, largest=None):
    """Two products in few bits, one of the result of the other."""

    def loss(up, down, x):
        hidden = md.quantized_dot(x, up, name, largest=largest)
        y = md.quantized_dot(hidden, down, name, largest=largest)
        return md.sum(y * y)

    return loss


# Each layout with one of the formats, and those with the most collectives with both.
QUICK = [
    *covering(NAMES, LAYOUTS),
    *(("fp8", "tensor, sequence and fsdp"), ("int8", "uneven")),
]


@pytest.mark.parametrize(
    "name, rules", only(QUICK, [(name, rules) for rules in LAYOUTS for name in NAMES], slow=())
)
def test_products_and_gradients_are_those_of_one_device(name, rules):
    assert_same(mlp(name), UP, DOWN, X, layout=LAYOUTS[rules], tolerance=1e-6)


def test_scales_that_are_stated_take_no_maximum():
    rules = LAYOUTS["features"]
    program, _ = assert_same(mlp("int8", 4.0), UP, DOWN, X, layout=rules, gradients=False)
    assert "pmax" not in {c.operation for c in program.collectives}
    clipped, _ = md.quantize(10 * X, "int8", largest=5.0)
    assert set(np.unique(clipped.array)) >= {-127.0, 127.0}


@pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)
def test_values_are_equal_bit_for_bit(rules):
    def values(x):
        return md.quantize(x, "int8", "d_model")

    expected = values(X)
    found = md.lower(values, rules, md.make_mesh(rules), dims=("d_ff",))(X)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.array, b.array)


def test_a_product_is_that_of_whole_numbers():
    x, x_scale = (t.array for t in md.quantize(X, "int8", "d_model"))
    w, w_scale = (t.array for t in md.quantize(UP, "int8", "d_model"))
    whole = np.asarray(x, np.int64) @ np.asarray(w, np.int64)
    expected = whole.astype(np.float32) * x_scale[..., None] * w_scale
    np.testing.assert_array_equal(md.quantized_dot(X, UP).array, expected)


@FORMATS
def test_what_is_rounded_travels_in_its_format(name):
    step = md.value_and_grad(lambda weights, x: mlp(name)(*weights, x))
    rules = LAYOUTS["fsdp"]
    program = md.lower(step, rules, md.make_mesh(rules)).program((UP, DOWN), X)
    gathered = [c for c in program.collectives if c.operation == "all_gather"]
    weights = [c for c in gathered if c.bytes == D.size * F.size]  # one byte for each element
    assert len(weights) == 2
    scattered = [c for c in program.collectives if c.operation == "psum_scatter"]
    assert {c.bytes for c in scattered} == {4 * D.size * F.size}


def positive(x):
    """`x` with large numbers above 0: of -127.5, which is the largest for us, qwix makes -128."""
    return x.replace(array=jnp.where(x.array < -0.5, -x.array, x.array))


@FORMATS
def test_products_are_those_of_qwix(name):
    formats = RECIPES[name]
    config = dot_general_qt.DotGeneralQtConfig(
        lhs_qtype=formats.forward.dtype,
        rhs_qtype=formats.forward.dtype,
        dlhs_grad_qtype=formats.gradient.dtype,
        drhs_grad_qtype=formats.gradient.dtype,
    )
    one = md.Dim("batch", 1)  # for qwix all rows have one scale in the gradient of a weight
    x, g = positive(data(one, L, D)), positive(data(one, L, F, seed=5))

    def theirs(x, w):
        return dot_general_qt.dot_general_qt(x, w, (((2,), (0,)), ((), ())), config)

    def ours(x, w):
        return md.quantized_dot(md.tensor(x, (one, L, D)), UP.replace(array=w), name).array

    def both_passes(fn):
        y, back = jax.vjp(fn, x.array, positive(UP).array)
        return y, *back(g.array)

    for a, b in zip(*(jax.jit(partial(both_passes, fn))() for fn in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)


@FORMATS
def test_values_are_those_of_qwix(name):
    format = RECIPES[name].forward
    x = positive(X)
    values, scale = md.quantize(x, name, "d_model")
    how = qarray.HowToQuantize(qtype=format.dtype, channelwise_axes=[0, 1])
    theirs = qarray.quantize(x.array, how)
    np.testing.assert_array_equal(values.array, np.asarray(theirs.qvalue, np.float32))
    np.testing.assert_array_equal(scale.array[..., None], theirs.scale)


def test_the_gradient_passes_straight_through():
    def loss(x):
        return md.sum(md.dequantize(*md.quantize(x, "int8", "d_model")) * G_OF_X)

    G_OF_X = data(B, L, D, seed=8)
    np.testing.assert_array_equal(md.value_and_grad(loss)(X)[1].array, G_OF_X.array)


def test_a_rounding_does_not_depend_on_which_rows_come_together():
    """The gradient of a weight is that of each row alone, added up."""

    def gradient(x, g):
        loss = lambda w: md.sum(md.quantized_dot(x, w) * g)
        return jax.jit(md.value_and_grad(loss))(UP)[1].array

    each = [gradient(X["batch", i : i + 1], G["batch", i : i + 1]) for i in range(B.size)]
    np.testing.assert_allclose(gradient(X, G), sum(each), rtol=1e-5, atol=1e-6)


@FORMATS
def test_errors_of_rounding_are_as_small_as_the_format_allows(name):
    exact = md.dot(X, UP)
    assert 0 < distance(md.quantized_dot(X, UP, name).array, exact.array) < 0.04


def test_bfloat16_holds_what_the_formats_have():
    x = md.cast(X, jnp.bfloat16)
    for name in ("int8", "fp8"):
        values, _ = md.quantize(x, name, "d_model")
        dtype = RECIPES[name].forward.dtype
        np.testing.assert_array_equal(values.array, values.array.astype(dtype).astype(x.dtype))


@pytest.mark.parametrize("rules", ["one", "features", "tensor, sequence and fsdp"])
@FORMATS
def test_nan_is_seen_where_features_are_split(name, rules):
    """Of a maximum over devices some leave out what is NaN, and int8 has nothing for it."""
    fn = lambda x: md.quantized_dot(x, UP, name)
    run = md.lower(fn, LAYOUTS[rules]) if rules in LAYOUTS else jax.jit(fn)
    for feature in (0, 5, 15):
        y = run(X.replace(array=X.array.at[1, 2, feature].set(jnp.nan))).array
        assert np.isnan(y[1, 2]).all() and np.isfinite(y).sum() == y.size - F.size


def test_nan_is_not_hidden():
    array = X.array.at[0, 0, 0].set(jnp.nan).at[1, 1, 1].set(jnp.inf)
    y = md.quantized_dot(X.replace(array=array), UP).array
    assert np.isnan(y[0, 0]).all() and np.isnan(y[1, 1]).all() and np.isfinite(y[2]).all()


@pytest.mark.parametrize("rules", [LAYOUTS["fsdp"], LAYOUTS["uneven"]])
def test_rows_may_be_copied_to_the_end_of_memory(rules, monkeypatch):
    """As chips want it that multiply int8 fast only then; here the CPU is taken for one."""
    orders = []
    copied = products._with_last
    noted = lambda *args: orders.append(copied(*args)[1]) or copied(*args)
    monkeypatch.setattr(products, "_ROWS_LAST", ("cpu",))
    monkeypatch.setattr(products, "_with_last", noted)
    assert_same(mlp("int8"), UP, DOWN, X, layout=rules, tolerance=1e-6)
    assert orders and all(order[-1] == L for order in orders)


def test_zeros_and_empty_dims():
    assert not np.any(md.quantized_dot(X * 0, UP).array)
    empty = md.Dim("length", 0)
    assert md.quantized_dot(data(B, empty, D), UP).shape == (4, 0, 24)


def test_sums_that_int32_might_not_hold_are_computed_as_usual():
    long = md.Dim("d_model", 140_000)
    x, w = md.tensor(jnp.ones((2, 140_000)), (md.Dim("batch", 2), long)), weight(long, F, ins=long)
    found, expected = jax.jit(lambda: (md.quantized_dot(x, w).array, md.dot(x, w).array))()
    np.testing.assert_array_equal(found, expected)
    rows = md.Dim("length", 140_000)
    x = md.tensor(jnp.ones((1, 140_000, 2)), (md.Dim("batch", 1), rows, md.Dim("d_model", 2)))
    w = weight(md.Dim("d_model", 2), md.Dim("d_ff", 2), ins="d_model")
    gradient = jax.jit(md.value_and_grad(lambda w: md.sum(md.quantized_dot(x, w))))(w)[1]
    np.testing.assert_allclose(gradient.array, 140_000, rtol=5e-3)


def test_values_that_are_kept_in_8_bits_stand_for_the_same_numbers():
    for name in ("int8", "fp8"):
        values, scale = md.quantize(X, name, "d_model")
        kept = md.cast(values, RECIPES[name].forward.dtype)
        expected = md.dequantize(values, scale).array
        np.testing.assert_array_equal(md.dequantize(kept, scale).array, expected)


def test_a_gradient_of_many_small_products_compiles():
    a, b, c, d, e, f = dims(a=3, b=3, c=5, d=3, e=8, f=3)
    x, w = data(a, d, e, b, c), weight(f, e, d, ins=("e", "d"))
    rules = layout("e -> p", mesh={"p": 2})
    assert_same(lambda w, x: md.sum(md.quantized_dot(x, w) ** 2), w, x, layout=rules)


def test_values_of_a_parameter_have_the_dtype_of_its_use():
    def loss(weight, x):
        values, scale = md.quantize(weight, "int8", "d_model")
        y = md.quantized_dot(weight, DOWN)  # a product of two parameters
        total = md.sum(md.cast(md.einsum(x, values, out=(B, L, F)), "float32"))
        return total, (values, md.dequantize(values, scale), y)

    step = md.value_and_grad(loss, has_aux=True, compute="bfloat16", reduce="float32")
    for name in ("fsdp", "fsdp, gathered once", "zero 2"):
        rules = LAYOUTS[name]
        results = lambda weight, x: step(weight, x)[0]
        assert_same(results, UP, md.cast(X, "bfloat16"), layout=rules, gradients=False)


def test_a_tangent_of_values_does_not_travel_in_few_bits():
    """As the values do: its numbers are none of the format."""

    def slope(weight, x):
        def product(weight):
            return md.einsum(x, md.quantize(weight, "int8", "d_model")[0], out=(B, L, F))

        return md.jvp(product, (weight,), (0.1 * weight,))

    assert_same(slope, UP, X, layout=LAYOUTS["fsdp"], gradients=False)


def test_scales_that_float16_lacks_are_not_rounded_to_it():
    """The gradient of a weight, of rows with a single dim, by small numbers."""
    rows, weight_in_16 = md.Dim("rows", 8), md.cast(UP, "float16")
    x, g = (md.cast(data(rows, d), "float16") for d in (D, F))
    loss = lambda dot: lambda w: md.sum(md.cast(dot(x * 3e-5, w) * g, "float32"))
    found, expected = (
        jax.jit(md.value_and_grad(loss(dot)))(weight_in_16)[1].array
        for dot in (md.quantized_dot, md.dot)
    )
    assert distance(found, expected, floor=0) < 0.02


# -- in the place of a weight ---------------------------------------------------------------------

LOW = FewBits(UP, INT8)


@pytest.mark.parametrize(
    "call",
    [
        lambda w: md.dot(X, w),
        lambda w: X.dot(w),
        lambda w: md.dot(X, weight=md.cast(w, "float32")),
        lambda w: md.einsum(X, w, out=(..., F)),
        lambda w: md.einsum(w, X, out=(B, L, F)),
    ],
)
def test_a_product_with_the_weight_is_in_few_bits(call):
    np.testing.assert_array_equal(call(LOW).array, md.quantized_dot(X, UP).array)


@pytest.mark.parametrize(
    "call",
    [
        lambda w: md.einsum(X, w, X, out=(B, F)),
        lambda w: md.take(w, md.tensor(np.array([0, 3]), md.Dim("q", 2)), F),
        lambda w: w + 1,
        lambda w: md.einsum(w, out=D),
        lambda w: md.einsum(X["d_model", 0], UP, out=(..., L)) + md.sum(w),
    ],
)
def test_all_other_ops_take_the_weight(call):
    np.testing.assert_array_equal(call(LOW).array, call(UP).array)


def test_an_adapter_beside_it_is_added():
    rank = md.Dim("rank", 2)
    a, b = weight(D, rank, ins="d_model", seed=3), weight(rank, F, ins="rank", seed=4)
    found = md.dot(X, LowRank(LOW, a, b))
    expected = md.quantized_dot(X, UP) + md.dot(md.dot(X, a), b)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: md.quantize(X, "int7"),
            "quantize: the format is one of 'int8', 'fp8', 'mxfp8', 'nvfp4', not 'int7'; did "
            "you mean `int8`?",
        ),
        (lambda: md.quantize(X, "int8", "d_modle"), "quantize: no dim `d_modle`"),
        (
            lambda: md.quantize(md.cast(X, jnp.int32), "int8"),
            "quantize: numbers with fractions are rounded; [batch=4, length=6, d_model=16] is "
            "int32",
        ),
        (
            lambda: md.quantize(X, "int8", largest=0.0),
            "quantize: `largest` is a number above 0, not 0.0",
        ),
        (
            lambda: md.quantized_dot(X, UP, largest=-1.0),
            "quantized_dot: `largest` is a number above 0, not -1.0",
        ),
        (
            lambda: md.value_and_grad(
                lambda w: md.sum(md.value_and_grad(lambda x: mlp("int8")(w, DOWN, x))(X)[1])
            )(UP),
            "quantized_dot: a product in few bits has first derivatives only; ",
        ),
        (
            lambda: md.hvp(lambda x: mlp("int8")(UP, DOWN, x), (X,), (X,)),
            "quantized_dot: a product in few bits has first derivatives only; ",
        ),
        (lambda: md.quantized_dot(X, X), "quantized_dot: the second operand [batch=4, length=6"),
        (lambda: md.quantized_dot(X, DOWN), "quantized_dot: the weight [d_ff=24, d_model=16] "),
    ],
)
def test_errors(call, said):
    with pytest.raises(MeshDSLError) as error:
        call()
    assert str(error.value).startswith(said)
