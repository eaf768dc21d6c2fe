"""Models in plain JAX, named for a few dims, equal themselves under every layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from tests.from_jax import plain
from tests.helpers import distance

SIZES = {"heads": plain.HEADS, "qkv": 3}
STACKED = {
    "tokens|targets": "batch length",
    "wte": "vocab d_model",
    "h/.*c_attn/w": "layers _ (qkv heads head_dim)",
    "h/.*c_fc/w": "layers _ d_ff",
}


def gpt():
    """The GPT of these tests, its layers unrolled."""
    params = plain.gpt_init(jax.random.key(0))
    return plain.gpt_loss, plain.GPT_NAMES, (params, *plain.tokens_and_targets())


def scanned_gpt():
    """The same with its layers in a scan."""
    _, _, (params, *tokens) = gpt()
    return plain.scanned_loss, STACKED, (plain.stacked(params), *tokens)


def named_gpt(model=gpt, **how):
    fn, names, args = model()
    return fn, md.from_jax(fn, names, sizes=SIZES, call={"length_2": "memory"}, **how), args


def assert_same(fn, named, args, layout: md.Layout, devices: int = 4, dims=()):
    """The loss of `named` and its gradients under a layout are those of plain JAX.

    Args:
      dims: names for which the layout may have rules though the model has no such dims.
    """
    want, gradients = jax.jit(jax.value_and_grad(fn, allow_int=True))(*args)
    mesh = md.make_mesh(layout, jax.devices()[:devices])
    step = md.lower(md.value_and_grad(named), layout, mesh, dims=dims)
    packed = named.pack(*args)
    loss, found = step(*packed)
    assert distance(np.asarray(loss), np.asarray(want)) < 1e-5
    top = max(float(jnp.linalg.norm(g)) for g in jax.tree.leaves(gradients))
    pairs = zip(jax.tree.leaves(named.unpack(found)), jax.tree.leaves(gradients), strict=True)
    for a, b in pairs:  # the gradient of the keys' bias is zero but for rounding
        assert distance(np.asarray(a), np.asarray(b), floor=1e-2 * top) < 1e-5
    return step, packed


def test_a_plain_model_equals_itself_under_a_layout():
    fn, named, args = named_gpt(scanned_gpt, strict=True)
    assert_same(fn, named, args, md.Layout.load("fsdp-tensor"))


def test_describe_shows_dims_by_their_factors_and_renames():
    _, named, args = named_gpt()
    text = named.describe(*args)
    assert "params/h/0/attn/c_attn/w  (16, 48)  [d_model=16, (qkv=3 heads=4 head_dim=4)]" in text
    assert "tokens                    (8, 8)    [batch=8, length=8]" in text
    assert "renamed: `length` and `memory` at plain.py:" in text
    assert "fallback" not in text


def test_factors_come_from_the_code_where_no_sizes_are_given():
    fn, names, args = gpt()
    named = md.from_jax(fn, names)
    assert "[d_model=16, (qkv=3 heads=4 head_dim=4)]" in named.describe(*args)


def test_parameters_are_packed_by_factors_and_unpacked_again():
    _, named, args = named_gpt()
    named.describe(*args)
    model: Any = named.pack(args[0])
    weight = model["h"][0]["attn"]["c_attn"]["w"]
    assert [d.name for d in weight.dims] == ["d_model", "qkv", "heads", "head_dim"]
    assert weight.role is not None
    back = named.unpack(model)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), back, args[0]))


def test_another_length_and_another_dtype_are_traced_again():
    _, named, args = named_gpt()
    model = named.pack(*args)[0]
    shorter = plain.tokens_and_targets(length=4)
    assert jax.eval_shape(named, model, *shorter).dims == ()
    assert "length=4" in named.describe(args[0], *shorter)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model)
    assert jax.eval_shape(named, half, *shorter).dtype == jnp.bfloat16


def test_tensors_of_the_users_own_may_be_given():
    named = md.from_jax(lambda x, w: (x @ w).reshape(4, 2, 3), {"w": "_ (heads head_dim)"})
    rows, width, out = md.Dim("rows", 4), md.Dim("width", 5), md.Dim("out", 6)
    x, w = jax.random.normal(jax.random.key(0), (4, 5)), jnp.arange(30.0).reshape(5, 6)
    found = named(md.tensor(x, (rows, width)), md.tensor(w, (width, out)))
    assert [d.name for d in found.dims] == ["rows", "heads", "head_dim"]
    np.testing.assert_allclose(found.array, (x @ w).reshape(4, 2, 3), rtol=1e-5)


def test_what_has_no_rule_runs_whole_and_is_listed():
    fn = lambda x: jnp.abs(jnp.fft.rfft(x["w"], axis=0)).sum(0)
    named = md.from_jax(fn, {"w": "rows columns"})
    layout = md.Layout(["rows -> data"], mesh={"data": 4})
    model = named.pack({"w": jax.random.normal(jax.random.key(0), (8, 4))})
    found = md.lower(named, layout)(model)
    assert distance(np.asarray(found), np.asarray(fn(named.unpack(model)))) < 1e-5
    first = named.describe().splitlines()[0]
    assert first.startswith("fallback: `fft` at test_from_jax.py:")
    assert "whole over [rows=8], which the layout would split" in first


def test_what_devices_repeat_is_listed_with_its_line():
    """Also of arrays of one number, which are made whole where something else needs them so."""

    def fn(x):
        table = jnp.tanh(jnp.ones((64, 64)) @ jnp.ones((64, 64)))
        whole = jnp.abs(jnp.fft.rfft(x, axis=0)).sum()
        return x.sum() + table.sum() + jnp.linalg.solve(x, jnp.ones((8, 4, 2))).sum() + whole

    named = md.from_jax(fn, {"x": "rows _ _"})
    layout = md.Layout(["rows -> data"], mesh={"data": 4})
    x = named.pack(jnp.ones((8, 4, 4)) + jnp.eye(4))
    assert "repeated" not in named.describe()
    md.lower(named, layout).program(x)
    lines = [line for line in named.describe().splitlines() if line.startswith("repeated")]
    first = fn.__code__.co_firstlineno
    assert all(line.startswith("repeated: test_from_jax.py:") for line in lines)
    assert any(line.startswith(f"repeated: test_from_jax.py:{first + 1} (") for line in lines)
    assert any("(fft" in line and "by 4 devices over data" in line for line in lines)


def test_the_record_quotes_lines_of_the_plain_model():
    _, named, args = named_gpt()
    layout = md.Layout.load("tensor").with_mesh({"model": 4})
    program = md.lower(named, layout).program(*named.pack(*args))
    assert all(op.lines[0][0].endswith("plain.py") for op in program.ops if op.name == "einsum")
