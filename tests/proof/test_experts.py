"""Mixtures of experts: rows are sorted by their expert, on each device by itself."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from meshdsl.ops.grouped_dot import Way, grouped_dot
from meshdsl.ops.routed_exchange import added_up, looked_up
from meshdsl.proof.prove import contracts_of, lemmas_of
from meshdsl.train.stored_layout import find_layout
from tests.helpers import only
from tests.proof.common import LAYOUTS, proof
from tests.proof.test_programs import mapped
from tests.proof.test_programs import proof as proof_of

ROWS, CHOICES, EXPERTS, WIDTH = 16, 2, 4, 6
WAY = Way("blocks", "cpu", lowered=True, block=8, share=1.0)
X, SHARE = jnp.ones((ROWS, WIDTH)), jnp.ones((ROWS, CHOICES))
IDS = jnp.zeros((ROWS, CHOICES), jnp.int32)
W = jnp.ones((EXPERTS, WIDTH, WIDTH))  # square, so that a transposed one fits too


def experts(x, ids, share, w, wrong=""):
    """The sum of what the experts of each row make of it, with one mistake or none."""
    count = len(w)
    ids = jnp.where((ids >= 0) & (ids < count), ids, count).T.reshape(-1)
    numbers = lax.iota(jnp.int32, ids.size)
    key = ids[::-1] if wrong == "another key" else ids
    of_rows, order = lax.sort((key, numbers), num_keys=1, is_stable=True)
    _, back = lax.sort((order, numbers), num_keys=1, is_stable=True)
    if wrong == "another inverse":
        _, other = lax.sort((ids[::-1], numbers), num_keys=1, is_stable=True)
        _, back = lax.sort((other, numbers), num_keys=1, is_stable=True)
    if wrong == "no inverse":
        back = order
    sizes = ids[::-1] if wrong == "sizes of another array" else of_rows
    sizes = jnp.sort(sizes // 2) if wrong == "sizes of other numbers" else sizes
    edges = jnp.arange(count + 1, dtype=jnp.int32) + (wrong == "one group on")
    starts = jnp.searchsorted(sizes, edges, method="sort").astype(jnp.int32)
    places, token = back.reshape(-1, len(x)), order % len(x)
    if wrong == "tokens by choice":
        token = order // (ids.size // len(x))
    rows = looked_up(True, x, token, places)
    weights = looked_up(True, share.T.reshape(-1, 1), order, back[None])
    if wrong == "weights as they were":
        weights = share.T.reshape(-1, 1)
    if wrong == "weights of others":
        weights = looked_up(True, share.reshape(-1, 1), order, back[None])
    if wrong == "experts in another order":
        w = w[::-1]
    if wrong == "rows as they were":
        rows = jnp.tile(x, (ids.size // len(x), 1))
    hidden = grouped_dot(WAY, wrong == "transposed", rows, w, starts)
    hidden = jnp.tanh(hidden) * weights
    if wrong == "shifted":
        hidden = jnp.roll(hidden, 1, axis=0)
    result = grouped_dot(WAY, True, hidden, w, starts)
    inside = ids.reshape(-1, len(x)) < count - (wrong == "one expert less")
    places = jnp.where(inside, places, len(rows))
    token = jnp.where(of_rows < count, order % len(x), len(x))
    return added_up(False, result, places, token)


def loss(x, ids, share, w, wrong=""):
    return jnp.sum(jnp.sin(experts(x, ids, share, w, wrong)))


def step(summed=lambda x: x, wrong=""):
    """The loss and its gradients."""

    def fn(x, ids, share, w):
        run = lambda x, share, w: loss(x, ids, share, w, wrong)
        value, (by_x, by_share, by_w) = jax.value_and_grad(run, (0, 1, 2))(x, share, w)
        return summed(value), by_x, by_share, summed(by_w)

    return fn


SPLIT, SPLIT_RESULTS = (P("a"), P("a"), P("a"), P()), (P(), P("a"), P("a"), P())


def many(summed=lambda x: lax.psum(x, "a"), wrong=""):
    """`step` with the rows over one of two axes."""
    return mapped(step(summed, wrong), SPLIT, SPLIT_RESULTS)


def of_experts(wrong=""):
    """`experts` with the experts over an axis."""

    def fn(x, ids, share, w):
        first = lax.axis_index("a") * len(w) + (wrong == "one expert on")
        found = experts(x, ids - first, share, w)
        return lax.psum(found, "b" if wrong == "another axis" else "a")

    return mapped(fn, (P(), P(), P(), P("a")), P())


def test_rows_and_experts_may_be_on_several_devices():
    assert proof_of(step(), many(), X, IDS, SHARE, W).proved
    assert proof_of(experts, of_experts(), X, IDS, SHARE, W).proved


MISTAKES = (
    *("another key", "another inverse", "no inverse", "sizes of another array", "one group on"),
    *("sizes of other numbers", "tokens by choice", "weights as they were", "weights of others"),
    *("experts in another order", "rows as they were", "transposed", "shifted"),
    "one expert less",
)


@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_mistake_is_not_proved(wrong):
    assert not proof_of(step(), many(wrong=wrong), X, IDS, SHARE, W).proved
    assert not proof_of(experts, lambda *args: experts(*args, wrong), X, IDS, SHARE, W).proved


@pytest.mark.parametrize(
    "summed", [lambda x: x, lambda x: lax.psum(x, ("a", "b")), lambda x: lax.psum(x, "b")]
)
def test_a_sum_over_rows_is_taken_once(summed):
    assert not proof_of(step(), many(summed), X, IDS, SHARE, W).proved


@pytest.mark.parametrize("wrong", ["one expert on", "another axis"])
def test_experts_of_other_devices_are_not_proved(wrong):
    assert not proof_of(experts, of_experts(wrong), X, IDS, SHARE, W).proved


def test_what_devices_sort_is_not_sorted_together():
    """Each device puts its rows in order, and the order of all of them is another one."""
    order = lambda ids: lax.sort((ids, lax.iota(jnp.int32, len(ids))), num_keys=1)
    devices = mapped(order, (P("a"),), (P("a"), P("a")))
    assert not proof_of(order, devices, IDS[:, 0]).proved


def test_keys_that_may_be_negative_are_not_groups():
    def one(x, ids, w):
        keys, order = lax.sort((ids, lax.iota(jnp.int32, len(ids))), num_keys=1)
        starts = jnp.searchsorted(keys, jnp.arange(len(w) + 1, dtype=jnp.int32), method="sort")
        return grouped_dot(WAY, False, jnp.take(x, order, axis=0, mode="clip"), w, starts)

    found = proof_of(one, one, X, IDS[:, 0], W)
    assert found.doubt is not None
    assert "groups of rows" in found.doubt.why


def test_the_products_of_groups_are_named():
    """They are taken for granted, and what is in them is no part of the proof."""
    program = jax.make_jaxpr(step())(X, IDS, SHARE, W)
    lemmas, unknown = lemmas_of(program)
    assert lemmas["local_kernel"] == 6
    assert "while" not in {*lemmas, *unknown}
    assert len(contracts_of(program)) == 3


MOE = "model.experts=4", "model.layers=1"
SHIPPED = "data", "fsdp", "tensor", "zero1", "zero2", "experts", "experts-fsdp", "experts-tensor"


@pytest.mark.parametrize("name", only(["fsdp-tensor"], LAYOUTS, ["sequence", "zero"]))
def test_a_step_with_experts_is_proved(name):
    found = proof(LAYOUTS[name], *MOE)
    assert found.proved, found.doubt


@pytest.mark.parametrize(
    "name", only(["experts"], SHIPPED, ["zero2", "experts-fsdp", "experts-tensor"])
)
def test_a_step_with_experts_is_proved_under_a_layout_that_comes_with_us(name):
    sizes = "model.heads=8", "model.kv_heads=8", "batch=16", "model.experts=4"
    found = proof(find_layout(name), *sizes)
    assert found.proved, found.doubt


def test_rows_that_are_exchanged_are_not_proved():
    found = proof(find_layout("experts-exchange"), "model.experts=8", "batch=16", "model.layers=1")
    assert found.doubt is not None
