"""Sums of gradients in few bits: `value_and_grad(wire=...)` and `register_wire`.

What a sum gives is computed once more here, in NumPy, from the terms of the devices along the wired
axis. The terms are whole numbers, so that all other sums are exact.
"""

from collections import Counter

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.lowering.gradients import value_and_grad_of_rest
from meshdsl.lowering.wires import WIRES
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.train import feedback
from tests.helpers import covering, distance, layout, only
from tests.lowering import test_precision as precision

BATCH, A = md.Dim("batch", 8), md.Dim("a", 8)
SIZES = {"r": 2, "m": 4}
FLOAT8 = ml_dtypes.float8_e4m3fn


# -- the same in NumPy -------------------------------------------------------------------------


def sent(x, name):
    """What arrives of a term `x`, blocks of 128 elements of the last dim."""
    if name == "bfloat16":
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = np.empty_like(x)
    for start in range(0, x.shape[-1], 128):
        block = x[..., start : start + 128]
        largest = np.abs(block).max(-1, keepdims=True)
        bound = np.float32({"int8": 127.5, "fp8": 448}[name])
        scale = np.where(largest == 0, np.float32(1), largest / bound)
        scale = (scale * np.float32(1 + 2.0**-8)).astype(ml_dtypes.bfloat16).astype(np.float32)
        values = block * (np.float32(1) / scale)
        if name == "int8":
            values = np.clip(np.round(values), -127, 127)
        else:
            values = values.astype(FLOAT8).astype(np.float32)
        found[..., start : start + 128] = values * scale
    return found


def expected(x, size, name, *, scattered):
    """The gradient of `loss`, of `size` devices along the wired axis."""
    terms = x.reshape(size, -1, *x.shape[1:]).sum(1)
    total = sent(terms[0], name)
    for term in terms[1:]:
        total = total + sent(term, name)
    return total if scattered else sent(total, name)


# -- programs ----------------------------------------------------------------------------------


def numbers(*shape, seed=0):
    """Whole numbers of several sizes: a block of large ones leaves others as they are."""
    random = np.random.default_rng(seed)
    large = random.integers(1, 400, shape[-1])
    return (random.integers(-50, 50, shape) * large).astype(np.float32)


def loss(w, x):
    return md.sum(md.einsum(x, w, out=(BATCH,)))


def given_of(b, seed=0):
    b = md.Dim("b", b)
    x = md.tensor(jnp.asarray(numbers(BATCH.size, A.size, b.size, seed=seed)), (BATCH, A, b))
    return md.parameter(jnp.ones((A.size, b.size)), (A, b), ins=(A,)), x


def gradient(rules, w, x, wire="int8", **how):
    run = md.value_and_grad(loss, wire={"r": wire}, **how)
    return md.lower(run, rules)(w, x)[1].array


WHOLE = {  # each device gets the sum of all of a gradient over `r`
    "alone": layout("batch -> r", mesh={"r": 2}),
    "data": layout("batch -> r, m", mesh=SIZES),
    "tensor": layout("batch -> r", "b -> m", mesh=SIZES),
    "hybrid-fsdp": layout("batch -> r, m", mesh=SIZES, parameters=["a -> m"]),
    "hybrid-fsdp of b": layout("batch -> r, m", mesh=SIZES, parameters=["b -> m"]),
    "zero1 of b": layout("batch -> r, m", mesh=SIZES, optimizer=["b -> m"]),
    "layer": layout("batch -> r, m", mesh=SIZES, sum="layer"),
}
PARTS = {  # a part
    "alone": layout("batch -> r", mesh={"r": 2}, optimizer=["a -> r"]),
    "zero1": layout("batch -> r, m", mesh=SIZES, optimizer=["a -> r"]),
    "zero1 of b": layout("batch -> r, m", mesh=SIZES, optimizer=["b -> r"]),
    "zero1 of both": layout("batch -> r, m", mesh=SIZES, optimizer=["b -> r, m"]),
    "zero1 and tensor": layout("batch -> r", "b -> m", mesh=SIZES, optimizer=["b -> r"]),
    "zero2": layout("batch -> r, m", mesh=SIZES, gradients=["b -> m, r"]),
    "fsdp": layout("batch -> r, m", mesh=SIZES, parameters=["a -> r, m"]),
    "fsdp of b": layout("batch -> r, m", mesh=SIZES, parameters=["b -> r, m"]),
    "fsdp of both": layout("batch -> r, m", mesh=SIZES, parameters=["b -> m", "a -> r"]),
    "fsdp of both, swapped": layout("batch -> r, m", mesh=SIZES, parameters=["b -> r", "a -> m"]),
    "gathered once": layout("batch -> r, m", mesh=SIZES, parameters=["b -> r, m"], gather="step"),
}
LAYOUTS = {f"whole: {name}": rules for name, rules in WHOLE.items()}
LAYOUTS |= {f"parts: {name}": rules for name, rules in PARTS.items()}
SOME = ["whole: data", "whole: hybrid-fsdp of b", "parts: zero1 of both", "parts: fsdp of b"]
QUICK = [
    ("whole: data", 320, "int8"),
    ("whole: hybrid-fsdp of b", 192, "int8"),
    ("parts: zero1 of both", 320, "int8"),
    ("parts: fsdp of b", 64, "fp8"),
]


@pytest.mark.parametrize(
    "name, b, wire",
    only(
        QUICK,
        [(name, b, "int8") for name in LAYOUTS for b in (16, 192, 320)]
        + [(name, b, "fp8") for name in SOME for b in (64, 1024)]
        + [(name, 40, "bfloat16") for name in SOME],
        covering(LAYOUTS, (16, 192, 320), ["int8"])
        + covering(SOME, (64, 1024), ["fp8"])
        + covering(SOME[::2], [40], ["bfloat16"]),
    ),
)
def test_what_is_rounded_depends_on_the_size_of_the_axis_and_on_nothing_else(name, b, wire):
    w, x = given_of(b)
    found = gradient(LAYOUTS[name], w, x, wire)
    wanted = expected(np.asarray(x.array), 2, wire, scattered=name.startswith("parts"))
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found - x.array.sum(0)).max() > 0  # it is not exact, so it was in few bits


@pytest.mark.parametrize("name", only(["whole: data"], [*SOME, "whole: layer", "whole: tensor"]))
def test_all_devices_get_the_same_bits_each_time(name):
    w, x = given_of(192)
    first, second = (gradient(LAYOUTS[name], w, x) for _ in range(2))
    by_index = {}
    for array in (first, second):
        for shard in array.addressable_shards:
            kept = by_index.setdefault(str(shard.index), np.asarray(shard.data))
            np.testing.assert_array_equal(kept, shard.data)


@pytest.mark.parametrize(
    "wire, value, name",
    only(
        [("int8", np.nan, "whole: data"), ("int8", np.inf, "parts: fsdp of b")],
        [(w, v, n) for w in WIRES for v in (np.nan, np.inf) for n in SOME],
        covering(WIRES, (np.nan, np.inf), SOME),
    ),
)
def test_what_is_not_finite_stays_so_and_its_neighbours_are_not_touched(wire, value, name):
    w, x = given_of(320)
    array = x.array.at[1, 2, 130].set(value)
    found = np.array(gradient(LAYOUTS[name], w, md.tensor(array, x.dims), wire))
    assert not np.isfinite(found[2, 130])
    block = found[2, 128:256].copy()
    found[2, 128:256] = 0
    assert np.isfinite(found).all()
    assert wire != "bfloat16" or np.isfinite(block).sum() == 127


@pytest.mark.parametrize("name", only(["parts: zero1 of both"], SOME))
def test_a_gradient_of_zeros_is_zero(name):
    w, x = given_of(40)
    assert not np.asarray(gradient(LAYOUTS[name], w, md.tensor(0 * x.array, x.dims))).any()


HYBRID = {
    "data": layout("batch -> n, m", mesh=precision.BOTH),
    "hybrid-fsdp": precision.LAYOUTS["hybrid-fsdp"],
    "fsdp over both": layout("batch -> n, m", mesh=precision.BOTH, parameters=["d -> n, m"]),
    "zero1": layout("batch -> n, m", mesh=precision.BOTH, optimizer=["d -> n, m"]),
    "zero2": precision.LAYOUTS["hybrid-zero2"],
    "tensor": layout("batch -> n", "ff -> m", mesh=precision.BOTH),
    "layer": layout("batch -> n, m", mesh=precision.BOTH, sum="layer"),
    "uneven": layout("batch -> n", {"rule": "ff -> k", "uneven": "pad"}, mesh={"n": 2, "k": 3}),
    "gathered once": layout(
        "batch -> n, m", mesh=precision.BOTH, parameters=["d -> n, m"], gather="step"
    ),
}


@pytest.mark.parametrize(
    "name, reduce",
    only(
        [("hybrid-fsdp", "float32"), ("fsdp over both", "bfloat16")],
        [(name, reduce) for name in HYBRID for reduce in ("float32", "bfloat16")],
        covering(HYBRID, ("float32", "bfloat16")),
    ),
)
def test_a_model_learns_from_nearly_the_same_and_what_is_sent_is_recorded(name, reduce):
    """Of a block, int8 drops up to 1/255 of its largest number, once or twice."""
    how = dict(compute=reduce, reduce=reduce)
    run, exact = (md.value_and_grad(precision.loss, wire=w, **how) for w in ({"n": "int8"}, None))
    weights, x = precision.W, precision.X
    lowered = md.lower(run, HYBRID[name])
    compiled = lowered.lower(weights, x).compile()
    (value, grads), (other, wanted) = (
        compiled(weights, x),
        md.lower(exact, HYBRID[name])(weights, x),
    )
    assert value.array == other.array
    for i, (found, g) in enumerate(zip(grads, wanted, strict=True)):
        gap = distance(found.array, g.array)
        assert gap == 0 if i == 2 else 0 < gap < 0.02, (i, gap)  # the last is a vector

    recorded = precision.promised(lowered.program(weights, x))
    small = precision.D.size * 4  # a vector's
    lossy = {k[:2] for k in recorded if "n" in k[1] and k[2] > small and k[0].startswith("psum")}
    assert not lossy, recorded
    assert any(k[3] == "int8" and "n" in k[1] for k in recorded)
    made: Counter = Counter()
    for c in (c for c in from_hlo(compiled.as_text(), lowered.mesh) if c.bytes > 4):
        made[c.operation, c.axes, c.bytes] += c.count
    assert made == precision.compiled_for_cpu(recorded)


def test_bytes_over_the_slow_axis_are_about_a_quarter():
    w, x = given_of(1024)
    rules = WHOLE["hybrid-fsdp"]
    sent_of = {}
    for wire in (None, {"r": "int8"}):
        program = md.lower(md.value_and_grad(loss, wire=wire), rules).program(w, x)
        over = [c for c in program.collectives if c.axes == ("r",) and c.bytes > 4]
        # A psum sends what a psum_scatter and an all_gather send.
        sent_of[wire is None] = sum(c.bytes * (2 if c.operation == "psum" else 1) for c in over)
    assert sent_of[False] == sent_of[True] * (1 + 2 / 128) / 4


@pytest.mark.slow
def test_microbatches_are_added_up_before_anything_is_rounded():
    micro = md.Dim("micro", 2)
    w, x = given_of(192)
    xs = md.tensor(jnp.stack([x.array, 3 * x.array]), (micro, *x.dims))
    found = gradient(WHOLE["data"], w, xs, accumulate=micro)
    wanted = expected(2 * np.asarray(x.array), 2, "int8", scattered=False)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_two_axes_with_two_wires():
    w, x = given_of(192)
    both = [rules for rules in LAYOUTS.values() if rules.rules[0] == "batch -> r, m"]
    assert len(both) > 10
    for rules in both:
        run = md.value_and_grad(loss, wire={"m": "fp8", "r": "int8"})
        found = md.lower(run, rules)(w, x)[1].array
        assert 0 < distance(found, x.array.sum(0)) < 0.1
        assert md.lower(run, rules)(w, x)[0].array == x.array.sum()


@pytest.mark.slow
def test_its_derivative_is_that_of_the_exact_sum():
    w, x = given_of(16)
    cube = lambda w, x: md.mean(md.square(md.einsum(x * 1e-3, w, out=(BATCH,))))

    def norm(w, x):
        _, g = md.value_and_grad(cube, wire={"r": "int8"})(w, x)
        return md.sum(md.square(g))

    exact = lambda w, x: md.sum(md.square(md.value_and_grad(cube)(w, x)[1]))
    for rules in (WHOLE["data"], WHOLE["hybrid-fsdp"], PARTS["fsdp of b"], PARTS["zero1"]):
        found, wanted = (
            md.lower(md.value_and_grad(fn), rules)(w, x)[1].array for fn in (norm, exact)
        )
        assert distance(found, wanted) < 0.02


@st.composite
def cases(draw):
    r, m, k = draw(st.sampled_from([(2, 2, 2), (2, 4, 1), (4, 2, 1), (4, 1, 2), (8, 1, 1)]))
    pick = lambda level: [
        f"{dim} -> {axis}"
        for axis in draw(st.permutations(level))
        if (dim := draw(st.sampled_from(["a", "b", ""])))
    ]
    split = draw(st.booleans())  # whether a dim of the gradient is split over k in all ops
    rules = ["batch -> r, m", f"{draw(st.sampled_from('ab'))} -> k" if split else "batch -> k"]
    rest = {draw(st.sampled_from(["parameters", "gradients", "optimizer"])): pick("mk")}
    if draw(st.booleans()):
        rest["optimizer"] = [*rest.get("optimizer", ()), f"{draw(st.sampled_from('ab'))} -> r"]
    mesh = {"r": r, "m": m, "k": k}
    scattered = "-> r" in " ".join(rest.get("optimizer", ()))
    b = 8 * draw(st.integers(1, 60))
    return (
        md.Layout(rules=rules, mesh=mesh, **rest),
        r,
        b,
        draw(st.sampled_from(list(WIRES))),
        scattered,
    )


@pytest.mark.slow
@settings(deadline=None)
@given(cases(), st.integers(0, 1000))
def test_under_any_layout(case, seed):
    rules, size, b, wire, scattered = case
    w, x = given_of(b, seed)
    found = gradient(rules, w, x, wire)
    np.testing.assert_array_equal(
        found, expected(np.asarray(x.array), size, wire, scattered=scattered)
    )


# -- what is dropped is sent later -------------------------------------------------------------

KEEPS = {name: rules for name, rules in WHOLE.items() if name != "layer"}


@pytest.mark.parametrize(
    "name, b, wire",
    only(
        [("data", 320, "int8")],
        [(name, 320, wire) for name in KEEPS for wire in WIRES],
        covering(KEEPS, [320], WIRES),
    ),
)
def test_nothing_is_lost_of_what_is_kept(name, b, wire):
    """All sums together, and what is dropped at the end, are all exact sums together."""
    w, x = given_of(b)
    how = {"has_aux": False, "accumulate": None, "compute": None, "reduce": None}
    run = value_and_grad_of_rest(loss, wire={"r": wire}, **how)
    rules = feedback.with_senders(KEEPS[name], (("r", wire),))
    step = md.lower(run, rules, optimizer_argnums=1)
    dropped = md.tensor(jnp.zeros((2, A.size, b)), (md.Dim(feedback.SENDERS, 2), *w.dims))
    total, exact = np.zeros((A.size, b)), np.zeros((A.size, b))
    for number in range(3):
        x = md.tensor(jnp.asarray(numbers(*x.array.shape, seed=number)), x.dims)
        _, grad, left = step(w, {0: dropped}, x)
        dropped = left[0]
        assert np.asarray(dropped.array).any()
        total += np.asarray(grad.array, np.float64)
        exact += np.asarray(x.array).sum(0)
    rest = np.asarray(dropped.array, np.float64).sum(0)
    np.testing.assert_allclose(total + rest, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


# -- a wire of the user's ----------------------------------------------------------------------


@pytest.fixture
def signs():
    """A wire that sends a bit for each number, and how large the numbers of a block are."""

    def encode(x, largest):
        return {"positive": jnp.packbits(x > 0, axis=1), "size": largest[:, 0]}

    def decode(sent, width):
        positive = jnp.unpackbits(sent["positive"], axis=1, count=width)
        return jnp.where(positive, 1.0, -1.0) * sent["size"][:, None]

    md.register_wire("signs", encode, decode)
    yield "signs"
    del WIRES["signs"]


def test_a_wire_of_the_users_is_used_and_recorded(signs):
    w, x = given_of(256)
    found = gradient(PARTS["alone"], w, x, signs)
    terms = np.asarray(x.array).reshape(2, 4, 8, 256).sum(1)
    blocks = terms.reshape(2, 8, 2, 128)
    largest = np.repeat(np.abs(blocks).max(-1), 128, -1)
    np.testing.assert_array_equal(found, (np.where(terms > 0, 1, -1) * largest).sum(0))
    run = md.value_and_grad(loss, wire={"r": signs})
    program = md.lower(run, PARTS["alone"]).program(w, x)
    moved = {(c.operation, c.dtype, c.bytes) for c in program.collectives if c.bytes > 4}
    assert moved == {("all_to_all", "uint8", 8 * 256 // 8), ("all_to_all", "float32", 8 * 2 * 4)}
