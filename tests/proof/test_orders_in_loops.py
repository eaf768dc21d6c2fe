"""Loops over rows in another order: over turns in which keys go round, and over blocks of rows."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.proof.test_orders import ADDED, K, N, Q, V, back, computes_the_same, one, over, zigzag
from tests.proof.test_programs import mapped, proof

MORE = 4  # devices round which keys go in a loop
TURNS = jnp.arange(1, MORE)


def part(x, device):
    """The first and the last pieces of what is whole on each device, as one of four has them."""
    size = len(x) // (2 * MORE)
    pieces = device, 2 * MORE - 1 - device
    return jnp.concatenate([lax.dynamic_slice_in_dim(x, i * size, size) for i in pieces])


def rows_of(device, late=2 * MORE - 1):
    return jnp.concatenate([2 * device + jnp.arange(2), 2 * (late - device) + jnp.arange(2)])


def in_turns(q, k, v, hop=1, behind=1, turns=TURNS, listed=lambda x: x, late=7, rows=0, seen=True):
    """Keys go round, and before that a loop finds what is seen of them on each turn."""
    device = lax.axis_index("a")
    q, k, v = (part(x, device) for x in (q, k, v))
    here = rows_of(device)
    send = lambda x: lax.ppermute(x, "a", [(i, (i + hop) % MORE) for i in range(MORE)])

    def mask_of(turn):
        there = rows_of((device - behind * turn) % MORE, late)
        return there[None] <= here[:, None] + rows

    added = lambda mask, k, v: jnp.where(mask if seen else ~mask, jnp.exp(q @ k.T), 0) @ v

    def turned(carry, mask):
        k, v, found = carry
        k, v = send(k), send(v)
        return (k, v, found + added(mask, k, v)), None

    masks = lax.scan(lambda carry, turn: (carry, mask_of(turn)), 0, turns)[1]
    first = (k, v, added(mask_of(0), k, v))
    return lax.scan(turned, first, listed(masks))[0][2]


def differences(q):
    """How a list that rounds have made is another one on each device."""
    device = lax.axis_index("a")
    places = lambda turn: rows_of((device - turn) % MORE) * q[0, 0]
    made = lax.scan(lambda carry, turn: (carry, places(turn)), 0, TURNS)[1]
    return MORE * made - lax.psum(made, "a")


def over_more(**how):
    fn = lambda q, k, v: lax.psum(in_turns(q, k, v, **how).sum(0), "a")
    return mapped(fn, (P(),) * 3, P(), {"a": MORE})


def blocks(x):
    return x.reshape(-1, 2, x.shape[-1])


def over_blocks(round_, first=lambda q: 0 * q, into=lambda x: zigzag(x), end=lambda x: x, **how):
    """All queries, and for these a loop over blocks of the keys that a device has."""

    def fn(q, k, v):
        k, v = blocks(into(k)), blocks(into(v))
        done, made = lax.scan(lambda c, kv: round_(q, c, *kv), first(q), (k, v), **how)
        return end(done if made is None else made)

    return fn


def of_blocks(round_, out=P(), **how):
    return mapped(over_blocks(round_, **how), (P(), P("a"), P("a")), out, N)


def adds(q, done, k, v):
    return done + jnp.exp(q @ k.T) @ v, None


def softmax(q, done, k, v):
    """For each row of queries the largest score so far, the sum of weights, and the result."""
    top, total, found = done
    scores = q @ k.T
    new = jnp.maximum(top, scores.max(1))
    weights, scale = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
    return (new, total * scale + weights.sum(1), found * scale[:, None] + weights @ v), None


def whole_softmax(done):
    top, total, found = done
    scale = jnp.exp(top - lax.pmax(top, "a"))
    return ALL(found * scale[:, None]) / ALL(total * scale)[:, None]


NONE = lambda q: (jnp.full(len(q), -1e30), jnp.zeros(len(q)), 0 * q)
ALL = lambda x: lax.psum(x, "a")
WHOLE = {"into": lambda x: x}
COUNTS = {"first": lambda q: (0.0, 0 * q[:2]), "end": lambda done: done[1]}
counts = lambda q, c, k, v: ((c[0] + 1, c[1] + c[0] * k * v), None)
decays = lambda q, done, k, v: (done / 2 + k * v, None)
OF_ROWS = {"first": lambda q: 0 * q[:2]}
SQUARED = ADDED(lambda q, k, v: k * v)
RIGHT = {
    "keys that go round more devices": (ADDED(one), over_more()),
    "the other way": (ADDED(one), over_more(hop=-1, behind=-1)),
    "by steps of three": (ADDED(one), over_more(hop=3, behind=3)),
    "blocks that are added up": (
        lambda q, k, v: jnp.exp(q @ k.T) @ v,
        of_blocks(adds, end=ALL),
    ),
    "from the last block on": (
        lambda q, k, v: jnp.exp(q @ k.T) @ v,
        of_blocks(adds, end=ALL, reverse=True),
    ),
    "a softmax in blocks": (
        over_blocks(softmax, NONE, **WHOLE, end=lambda done: done[2] / done[1][:, None]),
        of_blocks(softmax, first=NONE, end=whole_softmax),
    ),
    "what each block makes": (
        lambda q, k, v: jnp.sin(k) * v,
        of_blocks(
            lambda q, done, k, v: (done, jnp.sin(k) * v),
            P("a"),
            end=lambda x: back(x.reshape(-1, x.shape[-1])),
        ),
    ),
}
WRONG = {
    "a list is the same on all devices": (
        lambda q, k, v: 0 * jnp.concatenate([q[:3]] * MORE),
        mapped(lambda q, k, v: differences(q), (P(),) * 3, P("a"), {"a": MORE}),
    ),
    **{
        f"of more devices, {name}": (ADDED(one), over_more(**how))
        for name, how in {
            "a hop in the wrong direction": {"hop": -1},
            "hops by two": {"hop": 2, "behind": 2},
            "one hop short": {"turns": TURNS[:-1]},
            "one hop too many": {"turns": jnp.arange(1, MORE + 1)},
            "turns from another one on": {"turns": TURNS - 1},
            "masks of other turns": {"listed": lambda x: x[::-1]},
            "masks of the turns before": {"listed": lambda x: jnp.roll(x, 1, 0)},
            "masks of queries for keys": {"listed": lambda x: x.transpose(0, 2, 1)},
            "places of the other half": {"late": 6},
            "a mask shifted by one": {"rows": 1},
            "what is not seen": {"seen": False},
        }.items()
    },
    "numbers of blocks": (
        over_blocks(counts, **{**WHOLE, **COUNTS}),
        of_blocks(counts, **{**COUNTS, "end": lambda done: ALL(done[1])}),
    ),
    "older blocks count less": (
        over_blocks(decays, **WHOLE, **OF_ROWS),
        of_blocks(decays, **OF_ROWS, end=ALL),
    ),
    "the last block": (
        over_blocks(lambda q, done, k, v: (k * v, None), **WHOLE, **OF_ROWS),
        of_blocks(lambda q, done, k, v: (k * v, None), **OF_ROWS, end=ALL),
    ),
    "a softmax without the scale": (
        over_blocks(softmax, NONE, **WHOLE, end=lambda done: done[2] / done[1][:, None]),
        of_blocks(softmax, first=NONE, end=lambda done: ALL(done[2]) / ALL(done[1])[:, None]),
    ),
    "a softmax of a device": (
        over_blocks(softmax, NONE, **WHOLE, end=lambda done: done[2] / done[1][:, None]),
        of_blocks(softmax, first=NONE, end=lambda done: done[2] / done[1][:, None]),
    ),
    "values of other blocks": (
        lambda q, k, v: jnp.exp(q @ k.T) @ v,
        mapped(
            lambda q, k, v: ALL(over_blocks(adds, into=lambda x: x)(q, zigzag(k), v)),
            (P(), P("a"), P("a")),
            P(),
            N,
        ),
    ),
    "blocks of another device": (
        SQUARED,
        of_blocks(
            lambda q, done, k, v: (done + k * over(v), None),
            **OF_ROWS,
            end=lambda done: ALL(done).sum(0),
        ),
    ),
    "sums of blocks that no device has": (
        ADDED(lambda q, k, v: k**2),
        of_blocks(
            lambda q, done, k, v: (done + ALL(k) ** 2, None),
            **OF_ROWS,
            end=lambda done: done.sum(0),
        ),
    ),
    "what was carried to each block": (
        over_blocks(lambda q, c, k, v: (c + k, c + k), **WHOLE, **OF_ROWS),
        of_blocks(
            lambda q, c, k, v: (c + k, c + k),
            P("a"),
            **OF_ROWS,
            end=lambda x: blocks(back(x.reshape(-1, x.shape[-1]))),
        ),
    ),
    "an order that is left": (
        lambda q, k, v: jnp.sin(k) * v,
        of_blocks(
            lambda q, done, k, v: (done, jnp.sin(k) * v),
            P("a"),
            end=lambda x: x.reshape(-1, x.shape[-1]),
        ),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_loops_over_all_rows_are_proved_in_any_order(name):
    assert proof(*RIGHT[name], Q, K, V).proved
    assert computes_the_same(*RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_loops_whose_order_matters_are_not_proved(name):
    assert not proof(*WRONG[name], Q, K, V).proved
    assert not computes_the_same(*WRONG[name])
