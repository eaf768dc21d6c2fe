"""The layout's lines for gradients: `gradients` (ZeRO-2), `gather = "step"`, `sum = "layer"`."""

from dataclasses import replace

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.layout import LEVELS
from meshdsl.tensor import is_tensor
from tests.helpers import (
    assert_by_law,
    assert_equal,
    assert_same,
    data,
    dims,
    every,
    layout,
    weight,
)
from tests.lowering.test_law import (
    BATCH,
    HYBRID,
    LAYERS,
    LENGTH,
    MICRO,
    STACK,
    UP,
    WEIGHTS,
    ZERO1,
    D,
    X,
    mlp,
    stacked,
    step,
    without_scalars,
)


def by(*rules, **how):
    return layout("batch -> data", *rules, **{"mesh": {"data": 4}, **how})


BY_D = dict(parameters=["d_model -> data"])
TENSOR = {"data": 2, "model": 3}
ZERO2 = by(gradients=["d_model -> data"])
ONCE = by(**BY_D, gather="step")
ONCE_ZERO2 = replace(ONCE, gradients=["d_model -> data"])
HYBRID_ZERO2 = replace(HYBRID, gradients=["d_model -> replica"])
SUMMED_EARLY = by(sum="layer")
HYBRID_SUMMED_EARLY = replace(HYBRID, sum="layer")
ALL = dict(
    zero2=ZERO2,
    once_zero2=ONCE_ZERO2,
    hybrid=HYBRID_ZERO2,
    tensor=by("d_ff -> model", mesh={"data": 2, "model": 4}, gradients=["d_model -> data"]),
    optimizer=replace(ZERO2, mesh={"data": 4, "other": 2}, optimizer=["d_ff -> other"]),
    hybrid_summed=HYBRID_SUMMED_EARLY,
    layers=by(mesh={"data": 3}, uneven="pad", gradients=["layers -> data"]),
    uneven=by(
        "d_ff -> model",
        mesh={"data": 3, "model": 2},
        uneven="pad",
        gradients=["d_model -> data"],
    ),
    uneven_once=by("d_ff -> model", mesh=TENSOR, uneven="pad", **BY_D, gather="step"),
)
XS = data(MICRO, BATCH, LENGTH, D, seed=7)


SLOW = "zero2", "hybrid_summed", "optimizer"
QUICK = "once_zero2", "hybrid", "tensor", "layers", "uneven_once"


@every({name: ALL[name] for name in (*QUICK, *SLOW)}, *SLOW)
def test_loss_and_gradients_are_those_of_one_device(rules):
    assert_same(
        lambda x, *weights: md.mean(md.square(stacked(weights, x))), X, *STACK, layout=rules
    )


def counted(rules, accumulate=None):
    return without_scalars(
        step(stacked, accumulate), STACK, X if accumulate is None else XS, layout=rules
    )


def test_zero2_scatters_each_gradient_where_it_is_made_and_gathers_nothing():
    assert counted(ZERO1) == counted(ZERO1, MICRO) == {("psum_scatter", ("data",)): 2}
    assert counted(ZERO2) == {("psum_scatter", ("data",)): 2 * LAYERS.size}
    assert counted(ZERO2, MICRO) == {("psum_scatter", ("data",)): 2 * LAYERS.size * MICRO.size}


def test_no_device_ever_has_a_whole_gradient_under_zero2():
    compiled = [
        md.lower(step(stacked, MICRO), rules).lower(STACK, XS).compile() for rules in (ZERO1, ZERO2)
    ]
    zero1, zero2 = (c.memory_analysis().temp_size_in_bytes for c in compiled)
    assert (
        zero1 - zero2 >= sum(w.size * 4 for w in STACK) * 3 // 4
    )  # all but a device's quarter of them


def test_hybrid_scatters_over_replicas_too():
    assert counted(HYBRID_ZERO2) == {
        ("all_gather", ("data",)): 4 * LAYERS.size,
        ("psum_scatter", ("replica", "data")): 2 * LAYERS.size,
    }


def test_gathered_once_per_step_however_many_layers_passes_and_microbatches():
    assert (
        counted(ONCE)
        == counted(ONCE, MICRO)
        == {("all_gather", ("data",)): 2, ("psum_scatter", ("data",)): 2}
    )
    assert counted(ONCE_ZERO2, MICRO) == {
        ("all_gather", ("data",)): 2,
        ("psum_scatter", ("data",)): 2 * LAYERS.size * MICRO.size,
    }


def test_gradients_are_summed_in_their_layers_but_those_of_microbatches_and_of_zero1_at_once():
    assert counted(SUMMED_EARLY) == {("psum", ("data",)): 2 * LAYERS.size}
    assert counted(SUMMED_EARLY, MICRO) == {("psum", ("data",)): 2}
    assert counted(replace(ZERO1, sum="layer")) == counted(ZERO1)
    assert counted(HYBRID_SUMMED_EARLY)["psum", ("replica",)] == 2 * LAYERS.size


@every({name: ALL[name] for name in ("once_zero2", "hybrid", "layers", "uneven")})
def test_an_aux_result_of_parameters_alone_is_no_gradient(rules):
    """It leaves as a parameter, however gradients are split: `assert_same` holds it to that."""

    def loss(weights, x):
        made = [w * 2.0 for w in weights], [md.sum(w, D) for w in weights], weights
        return md.mean(md.square(stacked(weights, x))), made

    def aux(x, *weights):
        return md.value_and_grad(loss, has_aux=True)(list(weights), x)[0]

    assert_same(aux, X, *STACK, layout=rules, gradients=False)


@pytest.mark.parametrize("level", LEVELS)
def test_the_rules_of_each_level_split_what_is_at_it_and_below(level):
    """A gradient by all rules, what parameters alone make as a parameter, a value by `rules`."""
    rules = md.Layout(**{"rules": [], level: ["d_model? -> data"]}, mesh={"data": 4})

    def loss(w, x):
        squares = md.einsum(w, w, out=(D,))
        return md.sum(squares * x), (squares, squares * x)

    def run(w, x):
        ((_, aux), grad), squares = md.value_and_grad(loss, has_aux=True)(w, x), md.square(w)
        return {"optimizer": grad, "parameters": [aux[0], squares], "rules": aux[1]}

    mesh, args = md.make_mesh(rules), (weight(D, seed=1), data(D, seed=2))
    found = md.lower(run, rules, mesh)(*args)
    assert_equal(found, run(*args))
    for of, made in found.items():
        whole = LEVELS.index(of) < LEVELS.index(level)
        assert_by_law(made, rules, mesh, of)
        assert {
            t.array.sharding.is_fully_replicated for t in jax.tree.leaves(made, is_leaf=is_tensor)
        } == {whole}


def test_what_only_parameters_make_has_a_whole_copy_too():
    """A parameter times two is one, and nothing is gathered to have it whole."""
    doubled = lambda w, x: mlp([2.0 * w[0], w[1]], x)
    assert without_scalars(step(doubled), WEIGHTS, X, layout=ZERO2) == {
        ("psum_scatter", ("data",)): 2
    }
    assert_same(lambda x, *w: md.mean(doubled(w, x)), X, *WEIGHTS, layout=ZERO2)


def test_derivatives_of_derivatives_see_every_path():
    """Of a gradient by what is held twice: forwards over backwards, and backwards twice."""
    value = lambda w: md.mean(md.square(md.tanh(mlp((w, WEIGHTS[1]), X))))
    gradient = lambda w: md.value_and_grad(value)(w)[1]
    for run in (
        lambda w: md.jvp(gradient, (w,), (w,))[1],
        lambda w: md.value_and_grad(lambda w: md.sum(md.square(gradient(w))))(w)[1],
    ):
        assert_equal(md.lower(run, ZERO2)(UP), run(UP))


AXES = st.sampled_from(["p", "q", "p, q"])
LINES = st.lists(
    st.builds("{}? -> {}".format, st.sampled_from(["a", "b", "layers"]), AXES), max_size=2
)
A, B, N = dims(a=6, b=6, n=4)
W, ROWS = weight(LAYERS, B, A, ins=(B,), seed=1), data(N, B)


@settings(max_examples=settings.default.max_examples // 5)
@given(LINES, LINES, LINES, st.sampled_from(["layer", "step"]), st.sampled_from([None, "bfloat16"]))
def test_random_layouts(parameters, gradients, optimizer, gather, compute):
    rules = md.Layout(
        ["n -> p, q"],
        parameters,
        optimizer,
        {"p": 2, "q": 2},
        gradients=gradients,
        gather=gather,
        uneven="pad",
    )

    def value(w, x):
        layer = md.checkpoint(
            lambda x, w: (md.rename(md.tanh(md.einsum(x, w, out=(N, A))), A, B), ())
        )
        return md.mean(md.square(md.scan(layer, md.cast(x, w.dtype), w, dim=LAYERS)[0]))

    run = md.value_and_grad(value, compute=compute)
    tolerance = 2.0**-5 if compute else 1e-5  # three layers in bfloat16, each value rounded to 2^-9
    assert_equal(md.lower(run, rules)(W, ROWS)[1], jax.jit(run)(W, ROWS)[1], tolerance=tolerance)
