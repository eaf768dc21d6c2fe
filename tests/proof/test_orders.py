"""Rows in another order: sums and maxima over all of them, and programs in which that is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import meshdsl as md
from tests.proof.common import computed, in_zigzag
from tests.proof.common import proof as proof_of_step
from tests.proof.test_programs import mapped, proof

N = {"a": 2}
Q = K = V = jnp.ones((16, 4))


def over(x):
    return lax.ppermute(x, "a", [(0, 1), (1, 0)])


def zigzag(x, send=over, late=lambda first, a, got: jnp.where(first, got, a)):
    """The pieces 0 and 3 on the first of two devices, and 1 and 2 on the second one."""
    a, b = jnp.split(x, 2)
    got, first = send(b), lax.axis_index("a") == 0
    return jnp.concatenate([jnp.where(first, a, got), late(first, a, got)])


def back(x):
    a, b = jnp.split(x, 2)
    first = lax.axis_index("a") == 0
    got = over(jnp.where(first, b, a))
    return jnp.concatenate([jnp.where(first, a, b), got])


def places(device, late=3):
    return jnp.concatenate([4 * device + jnp.arange(4), 4 * (late - device) + jnp.arange(4)])


def one(q, k, v):
    rows = jnp.arange(16)
    return jnp.where(rows[None] <= rows[:, None], jnp.exp(q @ k.T), 0) @ v


def attention(q, k, v, turns=2, other=lambda d: 1 - d, late=3):
    q, k, v = map(zigzag, (q, k, v))
    device, found = lax.axis_index("a"), 0 * q
    for turn in range(turns):
        there = places(other(device) if turn else device, late)
        mask = there[None] <= places(device)[:, None]
        found += jnp.where(mask, jnp.exp(q @ k.T), 0) @ v
        k, v = over(k), over(v)
    return found


def ring(fn, out=P()):
    return mapped(fn, (P("a"), P("a"), P("a")), out, N)


def added(fn):
    return ring(lambda q, k, v: lax.psum(fn(q, k, v).sum(0), "a"))


def table(k, place=lambda device: device):
    """Rows of what is whole on each device."""
    at = place(lax.axis_index("a"))
    return jnp.concatenate([lax.dynamic_slice_in_dim(k, 4 * i, 4) for i in (at, 3 - at)])


ADDED = lambda fn: lambda q, k, v: fn(q, k, v).sum(0)


SINES = ADDED(lambda q, k, v: jnp.sin(q) * k)
FEW = lambda x: x.astype(jnp.bfloat16)
MANY = lambda x: x.astype(jnp.float32)
RIGHT = {
    "sums that are cast": (
        ADDED(lambda q, k, v: MANY(FEW(q * k).sum(0, keepdims=True))),
        added(lambda q, k, v: MANY(FEW(zigzag(q) * zigzag(k))).sum(0, keepdims=True)),
    ),
    "a sum": (SINES, added(lambda q, k, v: jnp.sin(zigzag(q)) * zigzag(k))),
    "a maximum": (
        lambda q, k, v: (q * k).max(0),
        ring(lambda q, k, v: lax.pmax((zigzag(q) * zigzag(k)).max(0), "a")),
    ),
    "keys that go round": (ADDED(one), added(attention)),
}
WRONG = {
    "rows in two orders": (SINES, added(lambda q, k, v: jnp.sin(zigzag(q)) * k)),
    "nothing is exchanged": (SINES, added(lambda q, k, v: jnp.sin(zigzag(q, lambda x: x)) * k)),
    "a piece twice": (
        SINES,
        added(lambda q, k, v: jnp.sin(zigzag(q, late=lambda f, a, got: got)) * zigzag(k)),
    ),
    "a sum that is not taken": (
        SINES,
        mapped(
            lambda q, k, v: (jnp.sin(zigzag(q)) * zigzag(k)).sum(0, keepdims=True),
            (P("a"),) * 3,
            P("a"),
            N,
        ),
    ),
    "an order that is left": (lambda q, k, v: q, ring(lambda q, k, v: zigzag(q), P("a"))),
    "sums from the first row on": (
        ADDED(lambda q, k, v: jnp.cumsum(q, 0)),
        added(lambda q, k, v: jnp.cumsum(zigzag(q), 0)),
    ),
    "a weight for each piece": (
        SINES,
        added(lambda q, k, v: jnp.sin(zigzag(q)) * zigzag(k) * (1 + lax.axis_index("a"))),
    ),
    "one turn too few": (ADDED(one), added(lambda *x: attention(*x, turns=1))),
    "one turn too many": (ADDED(one), added(lambda *x: attention(*x, turns=3))),
    "places of other keys": (ADDED(one), added(lambda *x: attention(*x, other=lambda d: d))),
    "places of the other half": (ADDED(one), added(lambda *x: attention(*x, late=2))),
    "squares of what a device has": (
        lambda q, k, v: q.sum(0) ** 2,
        ring(lambda q, k, v: lax.psum(zigzag(q).sum(0) ** 2, "a")),
    ),
    "sums of what is cut to integers": (
        ADDED(lambda q, k, v: (q * k).sum(0, keepdims=True).astype(int).astype(float)),
        added(lambda q, k, v: (zigzag(q) * zigzag(k)).astype(int).astype(float)),
    ),
    "a round for each row": (
        ADDED(lambda q, k, v: q * jnp.arange(16.0)[:, None]),
        added(lambda q, k, v: lax.scan(lambda i, x: (i + 1, x * i), 0.0 * q[0, 0], zigzag(q))[1]),
    ),
}


def computes_the_same(one, many):
    random = np.random.default_rng(0)
    args = [jnp.asarray(random.normal(size=(16, 4)), jnp.float32) for _ in range(3)]
    (expected,), (found,) = (computed(jax.make_jaxpr(fn)(*args), args) for fn in (one, many))
    return expected.shape == found.shape and np.allclose(expected, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RIGHT)
def test_the_order_of_rows_that_are_added_up_does_not_matter(name):
    assert proof(*RIGHT[name], Q, K, V).proved
    assert computes_the_same(*RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_other_programs_with_rows_in_another_order_are_not_proved(name):
    assert not proof(*WRONG[name], Q, K, V).proved
    assert not computes_the_same(*WRONG[name])


def test_rows_that_are_put_back_are_what_they_were():
    there_and_back = ring(lambda q, k, v: back(jnp.sin(zigzag(q))), P("a"))
    assert proof(lambda q, k, v: jnp.sin(q), there_and_back, Q, K, V).proved


def test_a_table_of_rows_in_another_order_is_that_of_all_rows():
    fn = mapped(lambda q, k: lax.psum((zigzag(q) * table(k)).sum(0), "a"), (P("a"), P()), P(), N)
    assert proof(lambda q, k: (q * k).sum(0), fn, Q, K).proved
    other = lambda k: table(k, lambda device: 1 - device)
    fn = mapped(lambda q, k: lax.psum((zigzag(q) * other(k)).sum(0), "a"), (P("a"), P()), P(), N)
    assert not proof(lambda q, k: (q * k).sum(0), fn, Q, K).proved


def learned(table, x, at=lambda place: place, put=lambda place: place):
    """Rows of a table by their places, and its gradient, where a device has some of the rows."""
    place = places(lax.axis_index("a"))
    rows = jnp.take(table, at(place), axis=0, mode="clip")
    made = jnp.zeros_like(table).at[put(place)].add(zigzag(x), mode="clip")
    return lax.psum((rows * zigzag(x)).sum(0), "a"), lax.psum(made, "a")


def of_table(**how):
    return mapped(lambda q, k: learned(q, k, **how), (P(), P("a")), (P(), P()), N)


OTHERS = {
    "gets the next row": {"at": lambda place: (place + 1) % 16},
    "gets rows of the other device": {"at": lambda place: places(1 - lax.axis_index("a"))},
    "gets the first row for each": {"at": lambda place: 0 * place},
    "adds to the next row": {"put": lambda place: (place + 1) % 16},
    "adds to rows in their order here": {
        "put": lambda place: 8 * lax.axis_index("a") + jnp.arange(8),
    },
    "adds to one half twice": {"put": lambda place: places(lax.axis_index("a"), 1)},
}


def results_of_table(**how):
    one = lambda q, k: ((q * k).sum(0), k)
    args = [jnp.asarray(np.random.default_rng(i).normal(size=(16, 4)), jnp.float32) for i in (0, 1)]
    expected, found = (computed(jax.make_jaxpr(fn)(*args), args) for fn in (one, of_table(**how)))
    doubt = proof(one, of_table(**how), *args).doubt
    unsure = () if doubt is None else doubt.results
    equal = [bool(np.allclose(a, b, atol=1e-4)) for a, b in zip(expected, found, strict=True)]
    return [f"result {i}" not in unsure for i in (0, 1)], equal


def test_a_table_of_places_gets_the_gradient_of_each_row():
    assert results_of_table() == ([True, True], [True, True])


@pytest.mark.parametrize("name", OTHERS)
def test_other_rows_of_a_table_are_not_taken_for_those(name):
    wrong = "put" in OTHERS[name]
    proved, equal = results_of_table(**OTHERS[name])
    assert proved[wrong] is equal[wrong] is False
    assert equal[not wrong]


def some_of(x, some=((0, 1), (1, 0)), chosen=(False, False, True, True), start=(1, 0, 1, 0)):
    """Rows that the first two of four devices exchange; what the others have stays."""
    me = lax.axis_index("a")
    first = jnp.array(start)[me]
    pieces = [lax.dynamic_slice_in_dim(x, 2 * i, 2) for i in (first, 1 - first)]
    stays = jnp.array(chosen)[me]
    return jnp.concatenate([jnp.where(stays, x, lax.ppermute(x, "a", some)) for x in pieces])


def over_four(**how):
    fn = lambda q, k: lax.psum((some_of(jnp.sin(q), **how) * some_of(k)).sum(0), "a")
    return mapped(fn, (P("a"), P("a")), P(), {"a": 4})


def same_over_four(**how):
    args = [jnp.asarray(np.random.default_rng(i).normal(size=(16, 4)), jnp.float32) for i in (0, 1)]
    one = lambda q, k: (jnp.sin(q) * k).sum(0)
    (expected,), (found,) = (
        computed(jax.make_jaxpr(fn)(*args), args) for fn in (one, over_four(**how))
    )
    return proof(one, over_four(**how), *args).proved, np.allclose(expected, found, atol=1e-4)


def test_what_some_devices_send_is_in_order_where_it_is_chosen():
    assert same_over_four() == (True, True)


@pytest.mark.parametrize(
    "how",
    [
        {"some": ((0, 1),)},  # the first device gets nothing, and chooses it
        {"some": ((1, 0), (2, 1))},  # of two rows one is there twice, and one nowhere
        {"chosen": (False, False, True, False)},  # the last device gets nothing, and chooses it
        {"chosen": (False, True, True, True)},
        {"start": (0, 0, 1, 0)},  # pieces in two orders
        {"start": (1, 1, 1, 1)},
    ],
)
def test_what_some_devices_do_not_get_is_not_taken_for_rows(how):
    assert same_over_four(**how) == (False, False)


@pytest.mark.parametrize(("count", "dtype"), [(2, "float32"), (4, "bfloat16")])
def test_a_step_whose_rows_lie_in_zigzag_order_is_proved(count, dtype):
    sizes = f"model.length={8 * count}", "model.layers=1"
    assert proof_of_step(in_zigzag(2, count), *sizes, f"precision.compute={dtype}").proved


def test_rows_over_more_devices_in_zigzag_order_are_those_of_one():
    length, features = md.Dim("length", 32), md.Dim("features", 4)
    x = md.normal(jax.random.key(0), (length, features))
    layout = md.Layout([{"rule": "length -> a", "order": "zigzag"}], mesh={"a": 4})
    assert md.verify(md.relu, x, layout=layout).proved
    assert md.verify(lambda x: md.sum(md.relu(x)), x, layout=layout).proved


FAMILIES = {
    "grouped heads": ("model.kv_heads=2",),
    "gemma2": ("model.style=gemma2", "model.window=4"),
    "gemma3": ("model.style=gemma3", "model.window=4"),
    "gpt2": ("model.style=gpt2",),
    "in blocks": ("model.length=4096", "model.layers=1"),
    "windows": ("model.window=4",),
    "olmo2": ("model.style=olmo2",),
    "phi3": ("model.style=phi3",),
    "qwen2": ("model.style=qwen2",),
    "qwen3": ("model.style=qwen3",),
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_step_in_zigzag_order_is_proved_whatever_the_model(settings, dtype, count):
    compute = f"precision.compute={dtype}", f"model.length={8 * count}"
    assert proof_of_step(in_zigzag(2, count), *compute, *FAMILIES[settings]).proved
