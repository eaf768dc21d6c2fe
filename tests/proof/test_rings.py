"""Parts that go round the devices: programs that use each part once, and others that do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import meshdsl as md
from tests.proof.common import computed
from tests.proof.common import proof as proof_of_step
from tests.proof.test_programs import mapped, proof

N = 4
Q = K = V = jnp.ones((8, 4))


def send(x, by=1):
    return lax.ppermute(x, "a", [(i, (i + by) % N) for i in range(N)])


def ring(fn, out=P("a")):
    return mapped(fn, (P("a"), P("a"), P("a")), out, {"a": N})


def one(q, k, v):
    return jnp.sin(q @ k.T) @ v


def round_trip(q, k, v, turns=N, by=1, add=lambda turn, x: x):
    """All turns, one after the other."""
    total = add(0, one(q, k, v))
    for turn in range(1, turns):
        k, v = send(k, by), send(v, by)
        total += add(turn, one(q, k, v))
    return total


def in_a_loop(q, k, v, turns=N, use=lambda turn, x: x):
    """All turns but the first in a loop."""

    def body(carry, turn):
        k, v, total = carry
        k, v = send(k), send(v)
        return (k, v, total + use(turn, one(q, k, v))), None

    return lax.scan(body, (k, v, one(q, k, v)), jnp.arange(1, turns))[0][2]


def both_ways(q, k, v):
    ahead, back = (send(k), send(v)), (send(k, -1), send(v, -1))
    far = send(ahead[0]), send(ahead[1])
    return sum(one(q, *x) for x in ((k, v), ahead, back, far))


def other_values(q, k, v):
    """The values go the other way than their keys."""
    total = one(q, k, v)
    for _ in range(1, N):
        k, v = send(k), send(v, -1)
        total += one(q, k, v)
    return total


def with_gradient(q, k, v, home=1):
    """For each key the sum over all queries; it goes round with the key and comes home."""
    of_key = jnp.sin(k @ q.T) @ q
    for _ in range(1, N):
        k, of_key = send(k), send(of_key)
        of_key += jnp.sin(k @ q.T) @ q
    return send(of_key, home)


def own(turn):
    return (lax.axis_index("a") - turn) % N


def from_the_whole(q, k, v, place=own):
    """The values are whole on each device, which takes those that belong to the keys."""
    total = 0
    v = lax.all_gather(v, "a", tiled=True)
    for turn in range(N):
        part = lax.dynamic_slice_in_dim(v, place(turn) * 2, 2)
        total += jnp.sin(q @ k.T) @ part
        k = send(k)
    return total


def causal(q, k, v, place=own, rows=0, skips=True):
    """Rows see keys up to their own; parts of which they see none are left out."""
    here = lax.axis_index("a") * 2 + jnp.arange(2)
    total = 0 * q
    for turn in range(N):
        there = place(turn) * 2 + jnp.arange(2)

        def more(k, v, there=there):
            mask = there[None] <= here[:, None] + rows
            return jnp.where(mask, jnp.exp(q @ k.T), 0) @ v

        seen = there.min() <= here.max()
        none = lambda k, v: 0 * q
        total += lax.cond(seen, more, none, k, v) if skips else more(k, v)
        k, v = send(k), send(v)
    return total


def two_axes():
    """The number of a device along one of two axes."""
    place = lambda q: q + (lax.axis_index("a") + lax.axis_index("b")) % 2
    return mapped(place, (P("a"),), P("a"), {"a": 2, "b": 4})


def causal_one(q, k, v):
    places = jnp.arange(8)
    return jnp.where(places[None] <= places[:, None], jnp.exp(q @ k.T), 0) @ v


RIGHT = {
    "round": (one, ring(round_trip)),
    "the other way": (one, ring(lambda *x: round_trip(*x, by=-1))),
    "by steps of three": (one, ring(lambda *x: round_trip(*x, by=3))),
    "in a loop": (one, ring(in_a_loop)),
    "both ways": (one, ring(both_ways)),
    "a gradient that comes home": (
        lambda q, k, v: jnp.sin(k @ q.T) @ q,
        ring(with_gradient),
    ),
    "parts of the whole": (one, ring(from_the_whole)),
    "causal": (causal_one, ring(causal)),
    "causal, nothing left out": (causal_one, ring(lambda *x: causal(*x, skips=False))),
    "the sum after a hop": (
        lambda q, k, v: jnp.exp(k).sum(0),
        ring(lambda q, k, v: lax.psum(jnp.exp(send(k)).sum(0), "a"), P()),
    ),
    "the maximum after a hop": (
        lambda q, k, v: k.max(0),
        ring(lambda q, k, v: lax.pmax(send(k).max(0), "a"), P()),
    ),
}
WRONG = {
    "one turn too few": (one, ring(lambda *x: round_trip(*x, turns=N - 1))),
    "one turn too many": (one, ring(lambda *x: round_trip(*x, turns=N + 1))),
    "by steps of two": (one, ring(lambda *x: round_trip(*x, by=2))),
    "a part twice, another not": (
        one,
        ring(lambda q, k, v: round_trip(q, k, v, N - 1) + one(q, send(k), send(v))),
    ),
    "a turn counts twice": (
        one,
        ring(lambda *x: round_trip(*x, add=lambda t, y: y * (1 + (t == 2)))),
    ),
    "one turn of a loop too few": (one, ring(lambda *x: in_a_loop(*x, turns=N - 1))),
    "a loop of which turns differ": (
        one,
        ring(lambda *x: in_a_loop(*x, use=lambda turn, y: y * turn)),
    ),
    "keys without their values": (one, ring(other_values)),
    "a gradient that is not home": (
        lambda q, k, v: jnp.sin(k @ q.T) @ q,
        ring(lambda *x: with_gradient(*x, home=0)),
    ),
    "a gradient that goes home the other way": (
        lambda q, k, v: jnp.sin(k @ q.T) @ q,
        ring(lambda *x: with_gradient(*x, home=-1)),
    ),
    "other parts of the whole": (
        one,
        ring(lambda *x: from_the_whole(*x, place=lambda turn: (lax.axis_index("a") + turn) % N)),
    ),
    "parts of the whole, one on": (
        one,
        ring(lambda *x: from_the_whole(*x, place=lambda turn: own(turn + 1))),
    ),
    "places of other parts": (
        causal_one,
        ring(lambda *x: causal(*x, place=lambda turn: (lax.axis_index("a") + turn) % N)),
    ),
    "a row sees one key more": (causal_one, ring(lambda *x: causal(*x, rows=1))),
    "left at the neighbour": (lambda q, k, v: k, ring(lambda q, k, v: send(k))),
    "put together after a hop": (
        lambda q, k, v: k,
        ring(lambda q, k, v: lax.all_gather(send(k), "a", tiled=True), P()),
    ),
    "a sum of neighbours": (
        lambda q, k, v: (q * k).sum(0),
        ring(lambda q, k, v: lax.psum((q * send(k)).sum(0), "a"), P()),
    ),
    "a maximum of neighbours": (
        lambda q, k, v: (q * k).max(0),
        ring(lambda q, k, v: lax.pmax((q * send(k)).max(0), "a"), P()),
    ),
    "the last device sends to none": (
        one,
        ring(lambda q, k, v: one(q, lax.ppermute(k, "a", [(0, 1), (1, 2), (2, 3)]), v)),
    ),
}


def computes_the_same(one, many):
    random = np.random.default_rng(0)
    args = [jnp.asarray(random.normal(size=(8, 4)), jnp.float32) for _ in range(3)]
    (expected,), (found,) = (computed(jax.make_jaxpr(fn)(*args), args) for fn in (one, many))
    return np.allclose(expected, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RIGHT)
def test_a_sum_over_all_turns_is_proved(name):
    assert proof(*RIGHT[name], Q, K, V).proved
    assert computes_the_same(*RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_other_sums_are_not_proved(name):
    assert not proof(*WRONG[name], Q, K, V).proved
    assert not computes_the_same(*WRONG[name])


def around(count):
    keys = {"rule": "memory? -> context", "move": "ring"}
    rules = ["batch -> data", "length -> context", "queries? -> context", keys]
    return md.Layout(rules, ["d_model -> data"], mesh={"data": 2, "context": count})


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_step_whose_keys_go_round_is_proved(count):
    assert proof_of_step(around(count), "model.length=24").proved


@pytest.mark.slow
def test_a_step_whose_keys_go_round_is_proved_with_a_window():
    assert proof_of_step(around(2), "model.length=24", "model.window=4").proved


@pytest.mark.slow
def test_a_step_whose_keys_go_round_in_blocks_is_proved():
    assert proof_of_step(around(2), "model.length=2048", "model.layers=1").proved


def test_places_along_two_axes_are_no_places_along_one():
    assert not proof(lambda q: q, two_axes(), Q).proved
