"""Attention by splash, interpreted on CPU and compiled for TPU, equals that by blocks."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.machine import FUSED_EFFICIENCY, find_target
from meshdsl.predict.compiler import instruction_time
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.topology import target_devices
from tests.helpers import assert_equal, assert_same, layout, only, with_gradients
from tests.nightly import nightly
from tests.ops.attention_operands import GROUP, HEADS, RING, beside, blocks_and, operands

BOTH = {"x": 2, "y": 2}
SPLASH = {
    "plain": {},
    "causal window": {"causal": True, "window": 100},
    "window": {"window": 77},
    "soft cap": {"causal": True, "softcap": 1.5},
    "segments": {"causal": True, "segments": True},
}


SIZES = {  # rows and columns
    "several blocks of keys": (128, 640),
    "no multiples of a block": (150, 200),
    "queries that see no key": (256, 128),
}
CASES = [("plain", "several blocks of keys"), ("segments", "several blocks of keys")]
CASES += [("causal window", "no multiples of a block"), ("near", "queries that see no key")]


@pytest.mark.parametrize("name, sizes", only(CASES[1:3], CASES))
def test_splash_equals_blocks(name, sizes):
    """Interpreted, with a head_dim of less than a lane."""
    rows, columns = SIZES[sizes]
    numbers = {"near": {"window": 5}, **SPLASH}[name]
    args = operands(rows=rows, columns=columns, features=32)
    expected, found = blocks_and("splash", numbers, *args)
    assert_equal(found, expected, tolerance=2e-5)


def assert_as_blocks(args, numbers, under):
    """Splash under a layout gives what blocks give on one device."""
    how = dict(numbers)
    if how.pop("segments", False):
        how["segments"] = beside("segments", *args[:2])
    fn = lambda name: lambda q, k, v: md.attention(q, k, v, implementation=name, **how)
    reference = jax.jit(with_gradients(fn("blocks"), args))(*args)
    how_close = {"reference": reference, "tolerance": 2e-5}
    program, _ = assert_same(fn("splash"), *args, layout=under, **how_close)
    assert [op.kernel for op in program.ops if op.name == "attention"] == ["splash"]


pads = partial(layout, uneven="pad")
# What it asks for, how long queries and keys are, and how they are split; 599 is 300 and 299.
IN_PARTS = {
    "ring of 4": ("segments", 512, pads("queries -> y", RING, mesh={"y": 4})),
    "ring by batch": ("window", 256, pads("batch -> x", "queries -> y", RING, mesh=BOTH)),
    "uneven ring": ("causal window", 599, pads("queries -> y", RING, mesh={"y": 2})),
    "uneven queries and keys": ("soft cap", 599, pads("queries -> x", "memory -> y", mesh=BOTH)),
    "uneven queries": ("segments", 383, pads("queries -> x", mesh={"x": 3})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name, length, under", IN_PARTS.values(), ids=IN_PARTS)
def test_splash_in_parts_equals_blocks(name, length, under):
    assert_as_blocks(operands(rows=length, columns=length, features=32), SPLASH[name], under)


@pytest.mark.parametrize(
    "rules",
    [
        layout("batch -> x", "heads -> y", mesh=BOTH),
        pytest.param(layout("queries -> x", mesh={"x": 2}), marks=pytest.mark.slow),
    ],
    ids=["batch and heads", "queries"],
)
def test_splash_is_the_same_under_every_layout(rules):
    args = operands(rows=256, columns=256, features=64)
    how = {"causal": True, "window": 150, "implementation": "splash"}
    fn = lambda q, k, v: md.attention(q, k, v, **how)
    program, _ = assert_same(fn, *args, layout=rules)
    assert [op.kernel for op in program.ops if op.name == "attention"] == ["splash"]


BY_COLUMNS = {
    "causal": (256, 256, {"causal": True}),
    "causal window": (256, 256, {"causal": True, "window": 100}),
    "more keys": (256, 512, {"causal": True}),
    "window over the first block of keys": (256, 512, {"window": 300}),
    "queries that see no key": (512, 128, {"window": 100}),
}


@pytest.fixture
def blocks_of_128_keys(monkeypatch):
    monkeypatch.setattr("meshdsl.ops.attention.splash.BACKWARD_COLUMNS", 128)


@pytest.mark.usefixtures("blocks_of_128_keys")
@pytest.mark.parametrize("rows, columns, how", BY_COLUMNS.values(), ids=BY_COLUMNS)
def test_parts_of_the_queries_may_see_nothing_of_a_block_of_keys(rows, columns, how):
    """The kernels of a causal mask and of a window can be made for every block of the keys."""
    fn = lambda q, k, v: md.attention(q, k, v, implementation="splash", **how)
    args = operands(rows=rows, columns=columns, features=32)
    under = layout("queries -> x", mesh={"x": 2})
    program = md.lower(with_gradients(fn, args), under).program(*args)
    assert "splash" in [op.kernel for op in program.ops]


@pytest.mark.slow
@pytest.mark.usefixtures("blocks_of_128_keys")
@pytest.mark.parametrize("name", [*BY_COLUMNS][1::2] + [*BY_COLUMNS][-1:])
def test_splash_by_blocks_of_keys_equals_blocks(name):
    rows, columns, how = BY_COLUMNS[name]
    args = operands(rows=rows, columns=columns, features=32)
    assert_as_blocks(args, how, layout("queries -> x", mesh={"x": 2}))


def test_splash_needs_no_mesh_with_axes():
    args = operands(rows=128, columns=128, features=64)
    run = lambda *args: md.attention(*args, causal=True, implementation="splash")
    program = md.lower(with_gradients(run, args), layout(mesh={})).program(*args)
    assert str(program.jaxpr).count("local_kernel[") == 2


@pytest.mark.slow
def test_splash_compiles_for_tpu():
    """Mosaic's own lowering, forward and backward, with the queries split too."""
    pytest.importorskip("libtpu")
    mesh = md.make_mesh({"x": 2, "y": 4}, target_devices(find_target("v5p:2x2x2")))
    args = operands(rows=1024, columns=1024, features=128, dtype=jnp.bfloat16)
    fn = with_gradients(lambda q, k, v: md.attention(q, k, v, causal=True), args)
    lowered = md.lower(fn, layout("batch -> x", "queries -> y", mesh=mesh.shape), mesh)
    text = lowered.lower(*args).compile().as_text() or ""
    module = Module(text)
    assert not module.unread.kinds()
    found = [
        instruction_time.seconds(module, i, find_target("v5p:2x2x2").chip)
        for computation in module.computations.values()
        for i in computation
        if "tpu_custom_call" in i.attributes
    ]
    # Two products forward and five backward, half of each, for the part of one device.
    one = 2 * 2 * HEADS.size * GROUP.size * 256 * 1024 * 128 / 2
    rate = FUSED_EFFICIENCY * find_target("v5p:2x2x2").chip.flops
    assert sorted(found) == pytest.approx([2 * one / rate, 5 * one / rate])


@pytest.mark.slow
@pytest.mark.parametrize(
    "features", [pytest.param(128, marks=nightly), 192, pytest.param(512, marks=nightly)]
)
def test_blocks_of_wide_heads_fit_the_memory_of_a_kernel(features):
    pytest.importorskip("libtpu")
    mesh = md.make_mesh({"x": 4}, target_devices(find_target("v5p:2x2x1")))
    args = operands(rows=4096, columns=4096, features=features, dtype=jnp.bfloat16)
    fn = with_gradients(lambda q, k, v: md.attention(q, k, v, causal=True), args)
    compiled = md.lower(fn, layout(mesh=mesh.shape), mesh).lower(*args).compile()
    assert (compiled.as_text() or "").count('custom_call_target="tpu_custom_call"') >= 3
