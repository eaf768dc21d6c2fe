"""`md.explain`, `md.compile` and `md.compare`: any function of Tensors, a whole step included."""

import functools
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.explain import explain
from meshdsl.tools.explanation_text import describe
from tests.helpers import assert_equal, dims, only

BATCH, D, FF = dims(batch=64, d_model=32, d_ff=128)
LAYOUTS = {
    "data": md.Layout(["batch -> data"], mesh={"data": 8}, name="data.toml"),
    "zero1": md.Layout(["batch -> data"], optimizer=["d_ff -> data"], mesh={"data": 8}),
    "fsdp": md.Layout(["batch -> data"], ["d_ff -> data"], mesh={"data": 8}),
    "tensor": md.Layout(["batch -> data", "d_ff -> model"], mesh={"data": 2, "model": 4}),
    "uneven": md.Layout(["batch -> data"], mesh={"data": 7}, uneven="pad"),
}
ZERO1, TENSOR = LAYOUTS["zero1"], LAYOUTS["tensor"]
ADAM = optax.adam(1e-2)


def init(key):
    up, down = jax.random.split(key)
    return {
        "up": md.parameter(jax.random.normal(up, (32, 128)) * 0.1, (D, FF), ins=D),
        "down": md.parameter(jax.random.normal(down, (128, 32)) * 0.1, (FF, D), ins=FF),
    }


def state(key):
    params = init(key)
    return params, ADAM.init(params)


def loss(params, x):
    hidden = md.tanh(md.einsum(x, params["up"], out=(BATCH, FF)))
    return md.mean(md.square(md.einsum(hidden, params["down"], out=(BATCH, D)) - x))


def step(params, opt_state, x):
    value, grads = md.value_and_grad(loss)(params, x)
    updates, opt_state = ADAM.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": value}


PARAMS, OPT_STATE = jax.eval_shape(state, jax.random.key(0))
X = md.tensor(jax.ShapeDtypeStruct((64, 32), jnp.float32), (BATCH, D))
STEP = step, PARAMS, OPT_STATE, X
PARAMETERS = 4 * 2 * 32 * 128  # bytes


def held(explanation):
    """Bytes of one device at rest by kind."""
    return {t.kind: explanation.memory.total(t.kind) for t in explanation.memory.at_rest}


@functools.cache
def concrete():
    return *state(jax.random.key(0)), md.tensor(jnp.linspace(-1, 1, 2048).reshape(64, 32), X.dims)


def test_a_whole_step_is_explained_with_the_memory_of_its_optimizer():
    found = md.explain(*STEP, layout=ZERO1, target="v5e:2x4", donate_argnums=(0, 1))
    assert held(found) == {
        "parameter": PARAMETERS,
        "gradient": PARAMETERS // 8,
        "optimizer": 2 * PARAMETERS // 8 + 4,
        "batch": 4 * 64 * 32 // 8,
    }
    assert found.title == "step" and found.ops[-1].name == "optimizer"
    assert sum(found.ops[-1].flops.values()) > 4096 and found.ops[-1].seconds["optimizer"] > 0
    moved = {(m.operation, m.phase) for op in found.ops for m in op.moves}
    assert {("psum_scatter", "gradient"), ("all_gather", "forward")} <= moved
    assert not [op.source for op in found.ops if "base.py" in op.source]  # which is optax's


def test_results_that_take_memory_of_their_own_are_counted():
    kept, given = (
        md.explain(*STEP, layout=ZERO1, donate_argnums=donated).memory.peak
        for donated in ((), (0, 1))
    )
    assert kept > given


@pytest.mark.parametrize("name", only(("zero1", "tensor", "uneven"), LAYOUTS))
def test_flops_are_counted_once_under_every_layout(name):
    """Three products for each of the two, but none for the gradient of the batch."""
    devices = 7 if name == "uneven" else 8
    found = md.explain(*STEP, layout=LAYOUTS[name], target=f"h100:{devices}")
    assert found.time.model_flops * found.devices == pytest.approx(5 * 2 * 64 * 32 * 128)
    assert not found.time.halved and "causal" not in str(found)


def test_what_is_recomputed_is_no_flop_of_the_model():
    again = md.checkpoint(loss)
    counts = [
        md.explain(md.value_and_grad(fn), PARAMS, X, layout=TENSOR, target="v5e:2x4").time
        for fn in (loss, again)
    ]
    assert counts[0].model_flops == counts[1].model_flops


@pytest.mark.parametrize("fn", [loss, md.value_and_grad(loss)], ids=["loss", "gradient"])
def test_a_plain_function_is_explained_as_it_would_be_lowered(fn):
    lowered = md.lower(fn, TENSOR)
    found = md.explain(fn, PARAMS, X, layout=TENSOR, target="v5e:2x4", tokens=64, flops=1e9)
    program = md.lower(fn, TENSOR, abstract_mesh(TENSOR.mesh)).program(PARAMS, X)
    how = {"units": 64, "model_flops": (1e9 / 8, 1e9 / 8), "target": "v5e:2x4"}
    expected = explain(program, title=lowered.name, **how)
    lines = lambda text: [re.sub(r"\S+\.py:\d+", "", line).split() for line in text.splitlines()]
    assert lines(str(found)) == lines(describe(expected))
    same = md.explain(lowered, *concrete()[::2], target="v5e:2x4", tokens=64, flops=1e9)
    assert lines(str(same)) == lines(str(found)) and held(same) == held(found)


def test_it_is_text_in_a_terminal_a_picture_in_a_notebook_and_data():
    found = md.explain(*STEP, layout=ZERO1, title="a step")
    assert repr(found) == str(found) and str(found).startswith("a step\nlayout, mesh data=8")
    assert "a step" in found._repr_html_() and found.time is None
    json.dumps(found.to_dict())


def test_a_mesh_may_be_sizes_a_mesh_or_what_the_target_leaves():
    rest = md.Layout(["batch -> data"], mesh={"data": "rest"})
    meshes = [None, {"data": 8}, md.make_mesh({"data": 8}), abstract_mesh({"data": 8})]
    found = [md.explain(loss, PARAMS, X, layout=rest, mesh=mesh).axes for mesh in meshes]
    assert all(one == found[0] for one in found)
    (axis,) = md.explain(loss, PARAMS, X, layout=rest, target="v5p:4x4x4").axes
    assert axis.size == 64
    other = md.explain(md.lower(loss, rest), PARAMS, X, target="v5p:4x4x4", mesh={"data": 64})
    assert other.devices == 64


def test_an_optimizer_of_ones_own_is_told_by_its_position():
    def momentum(params, velocity, x):
        _, grads = md.value_and_grad(loss)(params, x)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity

    found = md.explain(momentum, PARAMS, PARAMS, X, layout=ZERO1, optimizer_argnums=1)
    assert held(found)["optimizer"] == PARAMETERS // 8


def test_an_error_of_the_function_stays():
    def wrong(params, x):
        raise KeyError("width")

    for call in (md.explain, md.compile, md.compare):
        how = {"layouts": [ZERO1]} if call is md.compare else {"layout": ZERO1}
        with pytest.raises(KeyError, match="width"):
            call(wrong, PARAMS, X, target="cpu:8", **how)


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_what_is_compiled_for_this_machine_runs(target):
    found = md.compile(*STEP, layout=ZERO1, target=target, donate_argnums=(0, 1))
    assert found.target == "cpu:8" and found.fits is None and not found.surprises
    estimated = found.explanation.memory
    assert found.memory.arguments == estimated.arguments
    params, opt_state = md.init(state, jax.random.key(0), ZERO1)
    x = concrete()[-1]
    x = jax.device_put(x, md.shardings(x, ZERO1, md.make_mesh(ZERO1)))
    expected = step(*concrete())
    for _ in range(2):  # results are split as arguments are
        params, opt_state, metrics = found.executable(params, opt_state, x)
        assert_equal((params, metrics), (expected[0], expected[2]))
        expected = step(*expected[:2], concrete()[-1])
    assert str(found).startswith("step\nlayout, mesh data=8, compiled for cpu:8 in")
    assert repr(found) == str(found) and "compiled" in found._repr_html_()
    assert "executable" not in json.loads(json.dumps(found.to_dict()))


def test_a_lowered_function_is_compiled_for_its_own_mesh_or_a_target():
    lowered = md.lower(loss, TENSOR)
    args = concrete()[::2]
    found = [md.compile(lowered, *args, target=target) for target in (None, "cpu:8")]
    split = [jax.device_put(x, md.shardings(x, TENSOR, lowered.mesh)) for x in args]
    values = [one.executable(*split).array for one in found]
    np.testing.assert_allclose(values, [loss(*args).array] * 2, rtol=1e-5)


FOR_A_TPU = """
import meshdsl as md
from tests.tools.test_from_python import STEP, ZERO1

found = md.compile(*STEP, layout=ZERO1, target="v5e:2x4", donate_argnums=(0, 1))
assert found.fits and found.time.step > 0 and not found.surprises
assert found.memory.arguments == found.explanation.memory.arguments
"""


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.slow
def test_a_step_is_compiled_for_a_tpu():
    """In a process of its own, into which libtpu may put its handlers of signals."""
    run = subprocess.run([sys.executable, "-c", FOR_A_TPU], capture_output=True, text=True)
    assert not run.returncode, run.stderr


def test_layouts_are_compared_the_best_first():
    layouts = [LAYOUTS["data"], ZERO1, TENSOR]
    found = md.compare(*STEP, layouts=layouts, target="v5e:2x4", donate_argnums=(0, 1))
    assert {row.layout for row in found.rows} == {"data", "layout 2", "layout 3"}
    steps = [row.step for row in found.rows]
    assert steps == sorted(steps)
    best = md.explain(*STEP, layout=TENSOR, target="v5e:2x4", donate_argnums=(0, 1)).time.step
    assert best in steps
    assert repr(found).splitlines()[0].split()[:3] == ["layout", "mesh", "fits"]
    assert "<pre>" in found._repr_html_() and len(json.loads(json.dumps(found.to_dict()))) == 3


def test_a_layout_that_cannot_be_used_has_a_row_that_says_why():
    named = {"zero1": ZERO1, "misspelt": md.Layout(["batsh -> data"], mesh={"data": 8})}
    meshes = [{"data": 8}, {"data": 3}]
    found = md.compare(*STEP, layouts=named, target="cpu:8", meshes=meshes, compiled=1)
    best, *others = found.rows
    assert (best.layout, best.mesh, best.by) == ("zero1", "data=8", "compiler")
    said = [(row.layout, row.mesh, row.error) for row in others]
    assert ("misspelt", "data=8", said[1][2]) in said and "no dim `batsh`" in str(said)
    assert [mesh for _, mesh, error in said if "mesh data=3 is of 3 devices" in error]
