"""Softmax, however it is found: programs that are the same, and others that only look like it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.proof.test_programs import mapped, proof

Q = K = V = jnp.ones((8, 4))
NONE = -1e30


def weighted(w, v):
    return w @ v / w.sum(-1, keepdims=True)


def plain(q, k, v):
    return weighted(jnp.exp(q @ k.T), v)


def shifted(q, k, v, by=lambda s: s.max(-1)):
    s = q @ k.T
    return weighted(jnp.exp(s - by(s)[:, None]), v)


def in_blocks(q, k, v, count=2, kept=lambda old, new: jnp.exp(old - new), first=0.0):
    """Block after block of keys, with the maximum so far."""

    def turn(carry, block):
        output, top, total = carry
        k, v = block
        s = q @ k.T
        new = jnp.maximum(top, s.max(-1))
        w, old = jnp.exp(s - new[:, None]), kept(top, new)
        return (output * old[:, None] + w @ v, new, total * old + w.sum(-1)), None

    start = jnp.full((8, 4), first), jnp.full(8, NONE), jnp.zeros(8)
    blocks = k.reshape(count, -1, 4), v.reshape(count, -1, 4)
    (output, _, total), _ = lax.scan(turn, start, blocks)
    return output / total[:, None]


def split(q, k, v, top=lambda t: lax.pmax(t, "a"), total=lambda t: lax.psum(t, "a")):
    """Keys are split over devices."""
    s = q @ k.T
    w = jnp.exp(s - top(s.max(-1))[:, None])
    return lax.psum(w @ v, "a") / total(w.sum(-1, keepdims=True))


def merged(q, k, v, share=lambda n, top: jnp.exp(n - top)):
    """Each device has its own softmax; the shares are found from the logarithms of their sums."""
    s = q @ k.T
    own = jax.nn.softmax(s, axis=-1) @ v
    n = jax.nn.logsumexp(s, axis=-1)
    part = share(n, lax.pmax(n, "a"))
    return lax.psum(own * part[:, None], "a") / lax.psum(part, "a")[:, None]


def over_keys(fn):
    return mapped(fn, (P(), P("a"), P("a")), P())


SOFTMAX = {
    "as it is": lambda q, k, v: jax.nn.softmax(q @ k.T, axis=-1) @ v,
    "less a maximum": shifted,
    "by its logarithm": lambda q, k, v: jnp.exp(jax.nn.log_softmax(q @ k.T, axis=-1)) @ v,
    "in blocks": in_blocks,
    "in more blocks": lambda q, k, v: in_blocks(q, k, v, 4),
    "over devices": over_keys(split),
    "merged": over_keys(merged),
}
OTHERS = {
    # What follows is one over real numbers, but floats may overflow.
    "less a mean": lambda q, k, v: shifted(q, k, v, lambda s: s.mean(-1)),
    "less a minimum": lambda q, k, v: shifted(q, k, v, lambda s: s.min(-1)),
    "less an infinity": lambda q, k, v: shifted(
        q, k, v, lambda s: jnp.minimum(s.max(-1), -jnp.inf)
    ),
    "each less its own sum": over_keys(lambda q, k, v: split(q, k, v, lambda t: lax.psum(t, "a"))),
    # And this is none.
    "less too much above": lambda q, k, v: (
        jnp.exp(q @ k.T - 1) @ v / jnp.exp(q @ k.T).sum(-1, keepdims=True)
    ),
    "less something of each key": lambda q, k, v: weighted(
        jnp.exp(q @ k.T - (q @ k.T).max(0)[None]), v
    ),
    "what was is not scaled": lambda q, k, v: in_blocks(q, k, v, kept=lambda o, n: 1 + 0 * o),
    "what was is scaled the other way": lambda q, k, v: in_blocks(
        q, k, v, kept=lambda old, new: jnp.exp(new - old)
    ),
    "it starts with something": lambda q, k, v: in_blocks(q, k, v, first=1.0),
    "less maxima of parts": over_keys(lambda q, k, v: split(q, k, v, lambda t: t)),
    "over the sum of a part": over_keys(lambda q, k, v: split(q, k, v, total=lambda t: t)),
    "merged by the logarithms": over_keys(lambda q, k, v: merged(q, k, v, lambda n, top: n - top)),
    "merged alike": over_keys(lambda q, k, v: merged(q, k, v, lambda n, top: jnp.ones_like(n))),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_softmax_is_the_same_however_it_is_found(name):
    assert proof(plain, SOFTMAX[name], Q, K, V).proved


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_softmax_is_not_taken_for_one(name):
    assert not proof(plain, OTHERS[name], Q, K, V).proved


# -- rows that may have no weights -----------------------------------------------------------------


def guarded(total, other=1.0):
    return jnp.where(total > 0, total, other)


def masked(q, k, v, seen=lambda i, j: j <= i, total=guarded):
    """A row without weights has a result of 0."""
    s = q @ k.T
    places = jnp.arange(8)
    mask = seen(places[:, None], places[None])
    s = jnp.where(mask, s, NONE)
    w = jnp.where(mask, jnp.exp(s - s.max(-1)[:, None]), 0)
    return w @ v / total(w.sum(-1))[:, None]


def skipping(
    q, k, v, mask=lambda i, j: j <= i, seen=lambda i, j: j.min() <= i.max(), weights=0.0, by=4
):
    """Blocks of keys that no row sees are left out."""
    places = jnp.arange(8)
    rows = places - by if by else places

    def turn(carry, block):
        k, v, j = block

        def joined(carry):
            output, top, total = carry
            visible = mask(rows[:, None], j[None])
            s = jnp.where(visible, q @ k.T, NONE)
            new = jnp.maximum(top, s.max(-1))
            w = jnp.where(visible, jnp.exp(s - new[:, None]), weights)
            old = jnp.exp(top - new)
            return output * old[:, None] + w @ v, new, total * old + w.sum(-1)

        return lax.cond(seen(rows, j), joined, lambda carry: carry, carry), None

    start = jnp.zeros((8, 4)), jnp.full(8, NONE), jnp.zeros(8)
    blocks = k.reshape(4, -1, 4), v.reshape(4, -1, 4), places.reshape(4, -1)
    (output, _, total), _ = lax.scan(turn, start, blocks)
    return output / guarded(total)[:, None]


def late(q, k, v, **how):
    return masked(q, k, v, lambda i, j: j <= i - 4, **how)


def test_blocks_that_no_row_sees_are_left_out():
    assert proof(late, skipping, Q, K, V).proved
    assert proof(late, lambda *x: late(*x, total=lambda t: guarded(t, 7.0)), Q, K, V).proved


@pytest.mark.parametrize(
    "other",
    [
        lambda q, k, v: skipping(q, k, v, seen=lambda i, j: j.min() <= i.min()),
        lambda q, k, v: skipping(q, k, v, seen=lambda i, j: j.max() <= i.max()),
        lambda q, k, v: skipping(q, k, v, seen=lambda i, j: j.min() < i.max()),
        lambda q, k, v: skipping(q, k, v, mask=lambda i, j: j <= i + 1),
        lambda q, k, v: skipping(q, k, v, mask=lambda i, j: i <= j),
        lambda q, k, v: skipping(q, k, v, weights=1.0),
        lambda q, k, v: late(q, k, v, total=lambda total: total),
        lambda q, k, v: late(q, k, v, total=lambda total: jnp.where(total > 1, total, 1)),
        lambda q, k, v: late(q, k, v, total=lambda total: jnp.where(total > 0, 1, total)),
    ],
)
def test_blocks_that_a_row_sees_are_not_left_out(other):
    assert not proof(late, other, Q, K, V).proved


def window(i, j):
    return (jnp.abs(i - j) < 3) & (j <= i)


def near(by=3):
    return lambda i, j: (j.min() <= i.max()) & (i.min() - j.max() < by) & (j.min() - i.max() < by)


def test_blocks_that_no_window_has_are_left_out():
    one = lambda *x: masked(*x, seen=window)
    assert proof(one, lambda *x: skipping(*x, mask=window, seen=near(), by=0), Q, K, V).proved
    for seen in near(2), lambda i, j: i.max() - j.max() < 3, lambda i, j: i.min() - j.min() < 3:
        other = lambda *x, seen=seen: skipping(*x, mask=window, seen=seen, by=0)
        assert not proof(one, other, Q, K, V).proved


def test_a_divisor_that_may_be_zero_does_not_cancel():
    one = lambda x, y: x * (jnp.abs(y) / jnp.abs(y))
    assert not proof(lambda x, y: x, one, V, V).proved
    zero = lambda x, y: x / guarded(jnp.where(y > 3, jnp.exp(y), 0).sum())
    assert not proof(lambda x, y: x / jnp.where(y > 3, jnp.exp(y), 0).sum(), zero, V, V).proved


def test_a_logarithm_is_larger_than_what_stands_for_none_only_if_there_is_something():
    none = lambda s: jnp.where(s > 2, jnp.exp(s), 0).sum(-1)
    found = lambda s: jnp.where(none(s) > 0, jnp.log(guarded(none(s))), NONE)
    share = lambda s, least: jnp.where(found(s) > least, jnp.exp(found(s)), 0)
    assert proof(none, lambda s: share(s, NONE / 2), V).proved
    assert not proof(none, lambda s: share(s, -10.0), V).proved
    assert not proof(none, lambda s: share(s, 2 * NONE), V).proved


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: (jnp.exp(x) * 2.6).astype(int), lambda x: jnp.exp(x).astype(int) * 2),
        (lambda x: jnp.round(x.sum() * jnp.exp(x)), lambda x: jnp.round(x.sum()) * jnp.exp(x)),
        (lambda x: jnp.log(jnp.exp(x) + 1), lambda x: x + jnp.log(1 + jnp.exp(x))),
        (lambda x: jnp.exp(x + x.T), lambda x: jnp.exp(x) + jnp.exp(x.T)),
        (lambda x: jnp.exp(x) > 1, lambda x: jnp.exp(x) > 0),
        (lambda x: jnp.exp(2 * x), lambda x: jnp.exp(x)),
        (lambda x: jnp.exp(x) - jnp.exp(2 * x), lambda x: jnp.exp(x) * (1 - jnp.exp(2 * x))),
        (lambda x: jnp.exp(jnp.log(x)), lambda x: x),
        (lambda x: jnp.abs(jnp.exp(x) - 1), lambda x: jnp.exp(x) - 1),
        (lambda x: x / (jnp.exp(x) - 1) * (jnp.exp(x) - 1), lambda x: x),
    ],
)
def test_exponentials_go_out_of_products_and_sums_only(one, other):
    x = V[:4]
    assert not proof(one, other, x).proved
    assert not proof(other, one, x).proved
