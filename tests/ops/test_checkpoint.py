"""checkpoint: changes what is kept and nothing else."""

import jax
import pytest

import meshdsl as md
from meshdsl.ops.checkpoint import checkpoint, checkpoint_name
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    layout,
    weight,
)

A, B, E, T = dims(a=8, b=8, e=8, t=4)
X, XS, MIX = data(A, B), data(T, A, B, seed=1), weight(B, E, ins=(B,), seed=4)
LAYOUTS = {
    "data": layout("a -> m", mesh={"m": 4}, parameters=["b -> m"]),
    "features": layout("b -> m", "e? -> n", mesh={"n": 2, "m": 4}, optimizer=["b -> n"]),
    "the scanned dim": layout("t? -> m", "a -> n", "b -> m", mesh={"m": 2, "n": 4}),
}
RULES = pytest.mark.parametrize("rules", LAYOUTS.values(), ids=LAYOUTS)


@pytest.mark.parametrize("policy", ["full", "dots", "gathers"])
def test_checkpoint_changes_nothing_but_what_is_kept(policy):
    def run(x, xs, w):
        step = lambda h, x: (md.tanh(md.rename(md.einsum(h, w, out=(A, E)), E, B) + x), ())
        h, _ = md.scan(md.checkpoint(step, policy), x, xs, dim=T)
        return md.checkpoint(lambda h: md.softmax(h, B) * md.max(h, A), policy)(h)

    plain = jax.jit(lambda *args: run(*args))(X, XS, MIX)
    _, (found, _) = assert_same(run, X, XS, MIX, layout=LAYOUTS["features"])
    assert_equal(found, plain)


@pytest.mark.parametrize("policy, times", [("full", 4), ("gathers", 3), ("dots", 3), (None, 1)])
def test_gathered_weights_are_gathered_again_where_recomputed(policy, times):
    def run(w, x):
        fn = lambda w, x: md.rename(md.tanh(md.einsum(x, w, out=(A, E))), E, B)
        fn = md.checkpoint(fn, policy) if policy else fn
        return md.value_and_grad(lambda w, x: md.sum(fn(w, fn(w, x))))(w, x)

    assert collectives(run, MIX, X, layout=LAYOUTS["data"])["all_gather", ("m",)] == times


@pytest.mark.parametrize("in_scan, barriers", [(False, 1), (True, 2)])
def test_in_a_scan_nothing_need_be_copied_before_it_is_read(in_scan, barriers):
    def run(x, xs):
        step = lambda h, x: (md.tanh(md.sin(h) + x), ())
        return md.scan(md.checkpoint(step, in_scan=in_scan), x, xs, dim=T)[0]

    plain = lambda x, xs: md.scan(lambda h, x: (md.tanh(md.sin(h) + x), ()), x, xs, dim=T)[0]
    gradient = lambda run: jax.jit(jax.grad(lambda x: md.sum(run(x, XS)).array))
    assert_equal(gradient(run)(X), gradient(plain)(X))
    assert gradient(run).lower(X).as_text().count("optimization_barrier") == barriers


NAMED = {
    "saved": dict(save="hidden"),
    "offloaded": dict(offload=("hidden",)),
    "both": dict(save=["out"], offload=["hidden"]),
    "besides what a policy keeps": dict(policy="gathers", offload="hidden"),
}


def layer(h, w):
    hidden = checkpoint_name(md.einsum(h, w, out=(A, E)), "hidden")
    return checkpoint_name(md.rename(md.tanh(hidden), E, B), "out")


@RULES
def test_named_save_points_change_nothing_but_what_is_kept(rules):
    def run(x, xs, w):
        made = {name: checkpoint(layer, **how)(x, w) for name, how in NAMED.items()}
        step, total = (
            lambda h, x: (layer(h, w) + x, ()),
            lambda x: checkpoint_name(md.sum(x, A), "sum"),
        )
        kept = checkpoint(step, save="hidden", offload="out")
        made["scanned"], _ = md.scan(kept, x, xs, dim=T)
        made["pending"] = checkpoint(lambda x: md.sin(total(x)), save="sum")(x)
        return made

    _, (found, _) = assert_same(run, X, XS, MIX, layout=rules)
    for name in NAMED:
        assert_equal(found[name], layer(X, MIX))


@pytest.mark.parametrize(
    "how, expected",
    [({}, 4), (dict(save="hidden"), 3), (dict(policy="dots"), 3), (dict(offload="hidden"), 3)],
)
def test_what_is_kept_is_not_computed_again(how, expected):
    jaxpr = jax.make_jaxpr(
        lambda x, w: md.value_and_grad(lambda w: md.sum(checkpoint(layer, **how)(x, w)))(w)[1]
    )(X, MIX)
    assert str(jaxpr).count("dot_general") == expected - 1


def test_a_sum_that_is_kept_is_not_taken_again():
    rules = layout("b -> m", mesh={"m": 4})
    fn = lambda x: md.sin(md.exp(checkpoint_name(md.sum(md.square(x), B), "sum")))

    def sums(**how):
        run = lambda x: md.value_and_grad(lambda x: md.sum(checkpoint(fn, **how)(x)))(x)[1]
        return collectives(run, X, layout=rules, dims=("a",))["psum", ("m",)]

    assert sums() == 2
    assert sums(save="sum") == 1


def test_what_is_offloaded_lies_on_the_host():
    step = lambda w: checkpoint(lambda h, _: (layer(h, w), ()), offload="hidden")
    last = lambda w, x: md.sum(md.scan(step(w), x, (), dim=T)[0])
    jaxpr = str(md.lower(md.value_and_grad(last), LAYOUTS["data"]).trace(MIX, X).jaxpr)
    for found in ("f32<host>[4,2,8]", "MemorySpace.Host", "MemorySpace.Device"):
        assert found in jaxpr


def test_an_outer_checkpoint_sees_the_names_of_an_inner_one():
    inner = checkpoint(layer)
    for _ in range(2):  # the second time, JAX does not trace the inner one again
        outer = checkpoint(lambda x: md.sin(inner(x, MIX)), save="hidden")
        assert_equal(outer(X), md.sin(layer(X, MIX)))
