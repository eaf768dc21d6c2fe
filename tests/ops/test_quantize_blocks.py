"""Scales of blocks: exact products of what was rounded, the same under every layout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwix._src.core import dot_general_qt, qarray

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.machine.target import abstract_mesh_on
from meshdsl.ops.precision import scaled
from meshdsl.ops.precision.formats import RECIPES, power_of_two
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.time.kernel_time import is_fused, kernel_seconds
from meshdsl.tensor import Parameter
from tests import test_every_op
from tests.helpers import assert_same, covering, data, dims, distance, layout, only, weight

B, L, D, F = dims(batch=4, length=64, d_model=64, d_ff=128)
X, G = data(B, L, D), data(B, L, F, seed=5)
UP, DOWN = weight(D, F, ins="d_model"), weight(F, D, ins="d_ff", seed=2)
HOW = {
    "int8, 8": {"format": "int8", "block": 8},
    "fp8, 16": {"format": "fp8", "block": 16},
    "mxfp8": {"format": "mxfp8"},
    "nvfp4": {"format": "nvfp4"},
}
LAYOUTS = {
    "data": layout("batch -> p", mesh={"p": 4}),
    "fsdp": layout("batch -> p", mesh={"p": 2}, parameters=["d_model -> p"]),
    "fsdp, gathered once": layout(
        "batch -> p", mesh={"p": 2}, parameters=["d_model -> p"], gather="step"
    ),
    "zero 2": layout("batch -> p", mesh={"p": 2}, gradients=["d_model -> p"]),
    "tensor": layout("d_ff -> p", mesh={"p": 4}),
    "tensor, sequence and fsdp": layout(
        "batch -> p", "d_ff -> q", "length -> q", mesh={"p": 2, "q": 2}, parameters=["d_model -> p"]
    ),
    "features": layout("d_model -> p", mesh={"p": 2}),
    "sequence": layout("length -> p", mesh={"p": 2}),
}
QUICK = [("nvfp4", "tensor, sequence and fsdp")]
ALL = [(how, rules) for how in HOW for rules in LAYOUTS]
# Every layout, half of them with nvfp4, whose scales have a scale of the whole tensor.
OFTEN = covering(["nvfp4", "int8, 8", "nvfp4", "fp8, 16", "nvfp4", "mxfp8"], LAYOUTS)


def mlp(**how):
    """Two products in few bits, one of the result of the other."""

    def loss(up, down, x):
        hidden = md.quantized_dot(x, up, **how)
        y = md.quantized_dot(hidden, down, **how)
        return md.sum(y * y)

    return loss


@pytest.mark.parametrize(("how", "rules"), only(QUICK, ALL, OFTEN))
def test_products_and_gradients_are_those_of_one_device(how, rules):
    assert_same(mlp(**HOW[how]), UP, DOWN, X, layout=LAYOUTS[rules], tolerance=2e-6)


@pytest.mark.parametrize(("how", "rules"), only(QUICK, ALL, OFTEN))
def test_values_and_scales_are_equal_bit_for_bit(how, rules):
    over = lambda x, dim: md.quantize(x, **HOW[how], over=dim)
    both = lambda x, up: (over(x, L), over(x, D), over(up, D), over(up, F))
    program, _ = assert_same(both, X, UP, layout=LAYOUTS[rules], gradients=False, tolerance=0)
    assert how == "nvfp4" or not program.collectives


@settings(max_examples=3 if test_every_op.EXAMPLES == 1 else 60)
@given(st.data())
def test_any_layout_gives_the_same_blocks_or_is_refused(drawn):
    rows, features = (md.Dim(d, drawn.draw(st.integers(1, 24), label=d)) for d in "ab")
    divisors = [n for n in range(1, features.size + 1) if features.size % n == 0]
    block, rules = drawn.draw(st.sampled_from(divisors)), test_every_op.layout(drawn.draw, "ab")
    quantize = lambda x: md.quantize(x, "int8", "b", block=block)
    x = data(rows, features)
    lowered = md.lower(quantize, rules, dims="ab")
    axes = rules.split(x.dims).get(features, ())
    parts = rules.blocks(features, axes, rules.mesh) if axes else 1
    if axes and rules.padded_size(features, axes, rules.mesh) // parts % block:
        with pytest.raises(
            MeshDSLError, match=f"consecutive elements, which cut blocks of {block}"
        ):
            lowered(x)
        return
    for a, b in zip(lowered(x), quantize(x), strict=True):
        np.testing.assert_array_equal(a.array, b.array)


def rounded(x, name, block, axis):
    """NumPy's `x`, rounded in blocks along an axis, the last of which may be shorter."""
    format, pieces = RECIPES[name].forward, []
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    for start in range(0, x.shape[-1], block):
        piece = x[..., start : start + block]
        largest = np.abs(piece).max(-1, keepdims=True)
        scale = 2.0 ** np.ceil(np.log2(largest / format.bound))
        values = np.clip(piece / scale, *format.ends)
        in_format = np.round(values) if name == "int8" else values.astype(format.numbers)
        pieces.append(in_format.astype(np.float64) * scale)
    return np.moveaxis(np.concatenate(pieces, -1), -1, axis)


@partial(jax.jit, static_argnums=0)
def with_gradients(fn, x, w, g):
    """`fn(x, w)`, and the cotangents of both for the cotangent `g`."""
    y, back = jax.vjp(fn, x, w)
    return y, back(g)


@pytest.mark.parametrize(("name", "block"), [("int8", 24), ("mxfp8", 32)])
def test_each_product_is_of_numbers_rounded_once(name, block):
    """Each from what it was, in blocks of what the product sums over; the last may be shorter."""
    how = {} if name == "mxfp8" else {"block": block}
    fn = lambda x, w: md.quantized_dot(X.replace(array=x), UP.replace(array=w), name, **how).array
    y, (of_x, of_w) = with_gradients(fn, X.array, UP.array, G.array)
    low = lambda t, axis: rounded(t.array, name, block, axis)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    close(y, low(X, 2) @ low(UP, 0))
    close(of_x, low(G, 2) @ low(UP, 1).T)
    close(of_w, np.einsum("bld,blf->df", low(X, 1), low(G, 1)))


def test_values_are_those_of_qwix():
    values, scale = md.quantize(X, "nvfp4", D)
    how = qarray.HowToQuantize(qtype="nvfp4", channelwise_axes=[0, 1], tiled_axes={2: 16})
    theirs = qarray.quantize(X.array, how)
    np.testing.assert_array_equal(scale.array, theirs.scale)
    np.testing.assert_array_equal(values.array, np.asarray(theirs.qvalue, np.float32))


def test_products_are_those_of_qwix():
    config = dot_general_qt.DotGeneralQtConfig(
        **dict.fromkeys(["lhs_qtype", "rhs_qtype"], "mxfp8"),
        **dict.fromkeys(["dlhs_grad_qtype", "drhs_grad_qtype"], "mxfp8"),
        **dict.fromkeys(["dlhs_residual_qtype", "drhs_residual_qtype"], "mxfp8"),
        **dict.fromkeys(["tile_size", "dlhs_tile_size", "drhs_tile_size"], 32),
    )
    one = md.Dim("batch", 1)  # for qwix all rows are one dim
    x, g = data(one, L, D).array, data(one, L, F, seed=5).array
    theirs = lambda x, w: dot_general_qt.dot_general_qt(x[0], w, (((1,), (0,)), ((), ())), config)
    ours = lambda x, w: (
        md.quantized_dot(md.tensor(x, (one, L, D)), UP.replace(array=w), "mxfp8").array
    )
    found, expected = (
        with_gradients(ours, x, UP.array, g),
        with_gradients(theirs, x, UP.array, g[0]),
    )
    np.testing.assert_allclose(found[0][0], expected[0], rtol=1e-6, atol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_scale_is_the_least_power_of_two():
    largest = jnp.array([448.0, 448.00003, 1e30, 0.0, 1e-40, np.inf, np.nan])
    expected = [1, 2, 2.0 ** np.ceil(np.log2(1e30 / 448)), 1, 1, np.nan, np.nan]
    np.testing.assert_array_equal(jax.jit(power_of_two, static_argnums=1)(largest, 448.0), expected)


@pytest.mark.parametrize("how", only(["int8, 8", "nvfp4"], HOW))
def test_values_times_scales_are_exact_in_bfloat16(how):
    x = X * md.exp(data(B, L, seed=3, low=-30, high=30))
    values, scale = md.quantize(x, **HOW[how], over=D)
    each = [t.array.astype(jnp.bfloat16) for t in (values, scale, md.dequantize(values, scale))]
    wide = [t.array for t in (values, scale, md.dequantize(values, scale))]
    for narrow, exact in zip(each, wide, strict=True):
        np.testing.assert_array_equal(narrow.astype(jnp.float32), exact)


def test_numbers_and_scales_travel_in_few_bits():
    step = md.value_and_grad(lambda weights, x: mlp(format="mxfp8")(*weights, x))
    rules = LAYOUTS["fsdp"]
    program = md.lower(step, rules, md.make_mesh(rules)).program((UP, DOWN), X)
    gathered = {c.bytes for c in program.collectives if c.operation == "all_gather"}
    # One byte for each number, and two for each scale: in blocks of d_model, and of d_ff.
    assert gathered == {D.size * F.size, 2 * D.size * F.size // 32}


def test_of_several_dims_that_are_summed_the_last_is_in_blocks():
    heads, size = dims(heads=4, head_dim=16)
    x, w = data(B, L, heads, size), weight(heads, size, D, ins=("heads", "head_dim"))
    y = jax.jit(lambda x, w: md.quantized_dot(x, w, block=8).array)(x, w)
    low = lambda t, axis: rounded(t.array, "int8", 8, axis)
    expected = np.einsum("blhs,hsd->bld", low(x, 3), low(w, 1))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_several_dims_that_are_summed_may_be_split():
    heads, size = dims(heads=4, head_dim=16)
    x, w = data(B, L, heads, size), weight(heads, size, D, ins=("heads", "head_dim"))
    rules = layout("heads -> p", "batch -> q", mesh={"p": 4, "q": 2})
    loss = lambda w, x: md.sum(md.quantized_dot(x, w, "nvfp4") ** 2)
    assert_same(loss, w, x, layout=rules, tolerance=2e-6)


def test_a_rounding_does_not_depend_on_which_rows_come_together():
    def gradient(x, g):
        loss = lambda w: md.sum(md.quantized_dot(x, UP.replace(array=w), "nvfp4") * g).array
        return jax.jit(jax.grad(loss))(UP.array)

    each = [gradient(X["batch", i : i + 1], G["batch", i : i + 1]) for i in range(B.size)]
    np.testing.assert_allclose(gradient(X, G), sum(each), rtol=1e-5, atol=1e-5)


def test_nan_is_not_hidden():
    array = X.array.at[0, 0, 0].set(jnp.nan).at[1, 1, 1].set(jnp.inf)
    each = lambda x: [md.quantized_dot(X.replace(array=x), UP, **how).array for how in HOW.values()]
    for y in jax.jit(each)(array):
        assert np.isnan(y[0, 0]).all() and np.isnan(y[1, 1]).all() and np.isfinite(y[2]).all()


AT_RANDOM = {"fp8": {"format": "fp8"}} | HOW


@pytest.mark.parametrize(
    ("how", "rules"),
    only(
        [("fp8", "tensor, sequence and fsdp")],
        [(how, rules) for how in AT_RANDOM for rules in LAYOUTS],
        covering(AT_RANDOM, LAYOUTS),
    ),
)
def test_gradients_are_rounded_at_random_alike_under_every_layout(how, rules):
    how = AT_RANDOM[how]
    key = jax.random.key(3)
    loss = lambda w, x: md.sum(md.quantized_dot(x, w, **how, key=key) * G)
    _, (_, gradients) = assert_same(loss, UP, X, layout=LAYOUTS[rules], tolerance=2e-6)
    nearest = md.value_and_grad(lambda w: md.sum(md.quantized_dot(X, w, **how) * G))(UP)[1]
    assert distance(gradients[0].array, nearest.array, floor=0) > 1e-3


@pytest.mark.parametrize("name", only(["int8", "nvfp4"], RECIPES))
def test_rounding_at_random_takes_a_neighbour_and_is_right_on_average(name):
    format = RECIPES[name].gradient
    x = jnp.linspace(format.ends[0], format.ends[1], 501)
    x = jnp.concatenate([x, jnp.linspace(-2, 2, 500)])
    bits = jax.random.bits(jax.random.key(0), (4096, x.size))
    found = np.asarray(jax.jit(format.nearest)(jnp.broadcast_to(x, bits.shape), bits))
    np.testing.assert_array_equal(found, found.astype(format.numbers).astype(np.float32))
    # Of thousands of draws the mean lies within five standard deviations of a draw between two.
    below, above = found.min(0), found.max(0)
    near = 5 * np.maximum(above - below, 1e-3 + 0.01 * np.abs(x)) / 128
    assert (below <= x + near).all() and (x <= above + near).all()
    assert (np.abs(found.mean(0, dtype=np.float64) - x) <= near).all()


def multiplied_exactly(a, b, a_scale, b_scale):
    """What GPUs of the Blackwell generation compute, with the dtypes that they take."""
    names = {t.dtype.name for t in (a, b)}, {t.dtype.name for t in (a_scale, b_scale)}
    assert names in [
        ({"float8_e4m3fn"}, {"float8_e8m0fnu"}),
        ({"float4_e2m1fn"}, {"float8_e4m3fn"}),
    ]
    block = a.shape[2] // a_scale.shape[2]
    assert block == {"float8_e4m3fn": 32, "float4_e2m1fn": 16}[a.dtype.name]
    full = lambda t, s: t.astype(jnp.float32) * jnp.repeat(s.astype(jnp.float32), block, 2)
    return jnp.einsum("bmk,bnk->bmn", full(a, a_scale), full(b, b_scale))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_blackwell_multiplies_the_numbers_themselves(name, monkeypatch):
    """Here the CPU is taken for one."""
    calls = []
    noted = lambda *args: calls.append(args[0].shape) or multiplied_exactly(*args)
    loss, rules = mlp(format=name), LAYOUTS["tensor, sequence and fsdp"]
    monkeypatch.setattr(jax.nn, "scaled_matmul", noted)
    monkeypatch.setattr(scaled, "KINDS", ("cpu",))
    assert_same(loss, UP, DOWN, X, layout=rules, tolerance=1e-5)
    rows = 1 if name == "nvfp4" else B.size // 2  # whose scales go together in the gradient of UP
    assert (1, D.size, rows * L.size) in calls


def test_a_program_for_blackwell_calls_its_products(monkeypatch):
    monkeypatch.setattr(scaled, "KINDS", ("cpu",))
    step = md.value_and_grad(lambda both: md.sum(md.quantized_dot(*both, "nvfp4") ** 2))
    lowered = md.lower(step, LAYOUTS["fsdp"]).trace((X, UP)).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("block_scaled_dot") == 3


@pytest.mark.parametrize(("name", "rate"), [("mxfp8", 2), ("nvfp4", 4), ("fp8", 1)])
def test_estimates_know_how_fast_a_gpu_multiplies_them(name, rate):
    how, target = {"block": 32} if name == "fp8" else {}, find_target("b200:8")
    wide = dims(batch=8, length=512, d_model=4096, d_ff=4096)
    step = md.value_and_grad(
        lambda both: md.sum(md.cast(md.quantized_dot(*both, name, **how), "float32"))
    )
    rules = layout("batch -> p", mesh={"p": 8})
    x, w = (md.abstract(dims, jnp.bfloat16) for dims in (wide[:3], wide[2:]))
    args = x, w.replace(role=Parameter(("d_model",), ("d_ff",)))
    program = md.lower(step, rules, abstract_mesh_on(target, rules.mesh)).program(args)
    products = [kernel for kernel, _ in kernel_graph(program).walk() if kernel.dots]
    assert len(products) == 3
    flops = 2 * 512 * 4096 * 4096
    for kernel in products:
        (dot,) = kernel.dots
        assert dot.flops == flops and 1 / target.chip.slowdown(dot.dtype) == rate
        fastest = flops / (target.chip.flops * target.chip.matmul_efficiency * rate)
        assert kernel_seconds(kernel, target.chip) >= fastest
    assert {is_fused(kernel) for kernel in products} == {name != "fp8"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: md.quantize(X, "int8", D, block=0),
            "quantize: a block is a number of elements, 1 or more, not 0",
        ),
        (
            lambda: md.quantize(X, "int8", (L, D), block=8),
            "quantize: with blocks of 8, `over` is one dim that they divide, not [length=64, ",
        ),
        (
            lambda: md.quantize(X, "int8", D, block=48),
            "quantize: with blocks of 48, `over` is one dim that they divide, not [d_model=64]",
        ),
        (
            lambda: md.quantized_dot(X, UP, "mxfp8", block=64),
            "quantized_dot: 'mxfp8' has blocks of 32; it takes no other scales",
        ),
        (
            lambda: md.quantized_dot(X, UP, "nvfp4", largest=1.0),
            "quantized_dot: `largest` is one for all, and each block has a scale of its own",
        ),
        (
            lambda: md.dequantize(X, md.quantize(X, "int8", D, block=8)[1]["batch", 0:3]),
            "dequantize: the values are [batch=4, length=64, d_model=64], and the scale is [batch=",
        ),
        (
            lambda: md.lower(mlp(block=32), layout("d_ff -> p", mesh={"p": 8}))(UP, DOWN, X),
            "quantized_dot: `d_ff`=128 is in 8 parts (layout, rule 1: d_ff -> p), each with 16 "
            "consecutive elements, which cut blocks of 32; blocks of 16 are not cut",
        ),
        (
            lambda: md.lower(
                mlp(format="mxfp8"),
                layout({"rule": "length -> p", "order": "zigzag"}, mesh={"p": 2}),
            )(UP, DOWN, X),
            "quantized_dot: `length`=64 is in 2 parts (layout, rule 1: length -> p), each with "
            "16 consecutive elements, which cut blocks of 32; the format has no others",
        ),
        (
            lambda: md.lower(mlp(block=10), layout("d_model -> p", mesh={"p": 5}, uneven="pad"))(
                UP, DOWN, X
            ),
            "quantized_dot: `d_model`=64 is in 5 parts (layout, rule 1: d_model -> p), each with "
            "13 consecutive elements, which cut blocks of 10; blocks of 1 are not cut",
        ),
    ],
)
def test_errors(call, said):
    with pytest.raises(MeshDSLError) as error:
        call()
    assert str(error.value).startswith(said)
