"""Which kernel serves a call of attention, and the FLOPs that it states."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from meshdsl.ops.attention import kernels
from meshdsl.predict.explain import explain
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.time.model_flops import counted_flops
from meshdsl.program.recorder import tag_in
from meshdsl.tools.explanation_text import describe
from tests.helpers import with_gradients
from tests.ops.attention_operands import BATCH, GROUP, HEADS, beside, operands


@pytest.mark.parametrize("rows, columns", [(4, 4), (4, 6), (8, 2)])
def test_what_a_run_of_queries_sees_of_a_run_of_keys(rows, columns):
    """The share that counts, and no distance where all or none of it does."""
    for causal, window in ((False, None), (True, None), (False, 3), (True, 3), (True, 9)):
        options = kernels.Options(1, causal, window, None, 1.0)
        for far in range(-15, 16):
            away = far + np.arange(rows)[:, None] - np.arange(columns)
            visible = (away >= 0) | (not causal)
            visible = visible & ((abs(away) < window) if window else True)
            share, known = kernels.seen_of(options, rows, columns, far)
            square = causal and not window and not far and rows == columns
            assert share == pytest.approx(0.5 if square else visible.mean())
            assert known == (None if visible.all() or not visible.any() else far)


TENSORS = {"sinks", "segments", "bias"}  # given as Tensors where a call asks for them
# What a call asks for, and the kernels that serve it on TPU and on GPU.
CHOICES = {
    "plain": ({}, {}, "splash", "cudnn"),
    "a soft cap": ({"softcap": 5.0}, {}, "splash", "pallas"),
    "a short length": ({}, {"rows": 40}, "blocks", "cudnn"),
    "float32": ({}, {"dtype": jnp.float32}, "splash", "pallas"),
    "heads of 192": ({}, {"features": 192}, "splash", "cudnn"),
    "other features": ({}, {"of_values": 32}, "splash", "pallas"),
    "an odd length": ({}, {"rows": 197, "columns": 197}, "splash", "pallas"),
    "sinks": ({"sinks": True}, {}, "blocks", "pallas"),
    "documents": ({"segments": True}, {}, "splash", "pallas"),
    "a bias": ({"bias": True}, {}, "blocks", "blocks"),
    "a few queries": ({"causal": True}, {"rows": 1, "dtype": jnp.float32}, "blocks", "blocks"),
    "a causal window": ({"causal": True, "window": 9}, {}, "splash", "cudnn"),
}


def program_on(target, how, sizes, gradients=False):
    """The program of attention, as it is lowered for a target."""
    args = operands(**{"rows": 128, "columns": 128, "features": 64, "dtype": jnp.bfloat16} | sizes)
    how = how | {name: beside(name, *args[:2]) for name in how.keys() & TENSORS}
    fn = lambda q, k, v: md.attention(q, k, v, **how)
    where: Any = abstract_mesh({"x": 4}, target)
    rules = md.Layout(["batch -> x"], mesh={"x": 4})
    return md.lower(with_gradients(fn, args) if gradients else fn, rules, where).program(*args)


@pytest.mark.parametrize("name", CHOICES)
def test_the_platform_and_the_features_say_which_kernel_runs(name):
    """Programs for GPU are traced without its libraries, as `explain` does."""
    how, sizes, *by_platform = CHOICES[name]
    for platform, kernel in zip(("tpu", "gpu", "cpu"), (*by_platform, "blocks"), strict=True):
        (op,) = (op for op in program_on(platform, how, sizes).ops if op.name == "attention")
        assert op.kernel == kernel
        before = {"tpu": ("splash",), "gpu": ("cudnn", "pallas"), "cpu": ()}[platform]
        rest = before if kernel == "blocks" else before[: before.index(kernel)]
        assert tuple(name for name, _ in op.lacks) == rest


def test_explain_says_why_a_kernel_of_the_platform_does_not_run():
    lines = describe(explain(program_on("gpu", {"bias": True}, {}))).splitlines()
    (at,) = (n for n, line in enumerate(lines) if "memory] by blocks" in line)
    assert lines[at + 1 : at + 3] == [
        "      not by cudnn: it has no `bias` here",
        "      not by pallas: it has no `bias`",
    ]


# What there is of forward and backward pass if the save point is kept, and of forward again if not.
SAVED = {"blocks": ("dot_general[", 2 + 5, 2), "splash": ("local_kernel[", 1 + 1, 1)}
SAVED |= {"pallas": ("local_kernel[", 1 + 2, 1)}


@pytest.mark.parametrize("name", SAVED)
def test_with_its_save_point_kept_attention_does_not_run_forward_again(name):
    """Blocks are products: two forward, and five backward, of which one makes the scores again."""
    args = operands(rows=128, columns=128, features=64)
    primitive, kept, again = SAVED[name]

    def found(**how):
        attend = lambda q, k, v: md.attention(md.sin(q), k, v, implementation=name)
        run = with_gradients(md.checkpoint(lambda q, k, v: md.sin(attend(q, k, v)), **how), args)
        program = md.lower(run, md.Layout(["batch -> x"], mesh={"x": 4})).program(*args)
        return str(program.jaxpr).count(primitive)

    assert found(save="attention") == kept
    assert found() == kept + again


def test_a_kernel_has_its_flops_and_explain_names_it():
    """Two products forward and five backward; causal ones count half, whoever computes them.

    One of the five makes the scores again, which the model does not ask for.
    """
    how, sizes = {"causal": True}, {"rows": 1024, "columns": 1024}
    one = 2 * BATCH.size * HEADS.size * GROUP.size * 1024 * 1024 * 64 / 4
    rows = (
        ("tpu", {}, "splash", 0.5),
        ("gpu", {}, "cudnn", 0.5),
        ("gpu", {"implementation": "pallas"}, "pallas", 0.5),
        ("cpu", {}, "blocks", 1.0),
    )
    for platform, forced, kernel, computed in rows:
        program = program_on(platform, how | forced, sizes, gradients=True)
        graph = kernel_graph(program)
        assert counted_flops(graph, program) == pytest.approx(6 * one / 2)
        (op,) = (op for op in program.ops if op.name == "attention")
        products = sum(n * k.flops for k, n in graph.walk() if tag_in(k.scope) == op.tag)
        assert products == pytest.approx(7 * one * computed)
        text = describe(explain(program))
        assert f"memory] by {kernel}" in text
