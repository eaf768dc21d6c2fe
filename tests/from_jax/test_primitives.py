"""Each primitive with a rule, and some without, equals plain JAX under a layout that splits it.

All cases are one program, which is compiled once.
"""

from functools import cache
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshdsl as md
from tests.helpers import distance

IDS = jnp.array([3, 0, 1, -2])
PERMUTATION = jnp.array([5, 2, 7, 0, 1, 3, 6, 4])


@jax.custom_jvp
def clipped(x):
    return jnp.where(x > 0.3, 0.3, x)


@clipped.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return clipped(x), t * 0.5 + 0 * x


def summed(x):
    """Sums beside a logarithm that is taken twice, or not at all."""
    top = x.max(1, keepdims=True)
    terms = jnp.exp(x - top).sum(1, keepdims=True)
    return (x - jnp.log(jnp.log(jnp.exp(x).sum(1, keepdims=True)))) / 4 + (terms + top)


# Functions of x (4, 8) and y (8, 4), named "a b" and "b c".
CASES = {
    "elementwise": lambda x, y: jnp.sin(x) * 2 + x.astype(jnp.bfloat16).astype(jnp.float32),
    "broadcast": lambda x, y: x + y[:, 0] * x[:, :1] - 1.5,
    "select": lambda x, y: jnp.where(x > y[:, 1], x, y.sum(1)),
    "clamp": lambda x, y: jnp.clip(x, -0.5, y.max()),
    "outer": lambda x, y: x[:, None, :] * y.T[None],
    "custom jvp": lambda x, y: jax.nn.relu(x) + clipped(x) + jax.nn.silu(x) + jax.nn.relu6(4 * x),
    "custom jvp of a number": lambda x, y: jnp.logaddexp(0.0, x) + jnp.logaddexp(x, y[:, 0]),
    "transposed": lambda x, y: x.T @ x + (y @ y.T),
    "product": lambda x, y: x @ y,
    "square": lambda x, y: x @ x.T,
    "batched": lambda x, y: jnp.einsum("ab,bc,ab->ac", x, y, x),
    "products of one": lambda x, y: jnp.einsum("ab,ab->a", x, x) + jnp.einsum("ab->a", x),
    "lazy product": lambda x, y: jnp.broadcast_to(x[:, :1], (4, 8)) @ jnp.ones((8, 3)),
    "reshape": lambda x, y: x.reshape(2, 2, 4, 2).sum(1).reshape(16),
    "merge": lambda x, y: x.reshape(32) * jnp.arange(32.0),
    "regroup": lambda x, y: (x.reshape(32)).reshape(8, 4) * y,
    "regroup odd": lambda x, y: x[:3, :6].reshape(2, 9).sum(0),
    "heads": lambda x, y: x.reshape(4, 2, 4).transpose(1, 0, 2) @ y.reshape(2, 4, 4),
    "squeeze": lambda x, y: x[:, None].squeeze(1)[..., None, :],
    "sum": lambda x, y: x.sum(0) + y.sum(1) + x.sum(),
    "logsumexp in other forms": lambda x, y: (
        jax.nn.logsumexp(4 * x, 1)
        + jax.nn.logsumexp(y, 0, keepdims=True)
        + jax.scipy.special.logsumexp(jnp.where(x > 0.2, x, -jnp.inf)[:1, :4])
    ),
    "max": lambda x, y: x.max(1) + y.min() + jnp.prod(y, 0),
    "whole numbers": lambda x, y: (
        (x * 4).astype(int).sum(0) // 3 * 0.5
        + lax.div((x * 4).astype(jnp.int32).sum(), jnp.int32(3))
    ),
    "short numbers": lambda x, y: jnp.sum((x * 40).astype(jnp.int8), 1, dtype=jnp.int8) * 1.0,
    "any": lambda x, y: jnp.where((x > 0).any(0) & (y > 0).all(1), x, -x),
    "argmax": lambda x, y: x.argmax(1) + y.argmin(0) * 1.0,
    "mean of broadcast": lambda x, y: jnp.broadcast_to(y[None], (4, 8, 4)).mean(0),
    "cumsum": lambda x, y: jnp.cumsum(x, 1) + jnp.cumsum(x[:, ::-1], 0),
    "softmax": lambda x, y: jax.nn.softmax(3 * x, -1) + jax.nn.log_softmax(x, 0),
    "softmax of all": lambda x, y: jax.nn.softmax(x, (0, 1)) * jax.nn.logsumexp(x),
    "nearly softmax": lambda x, y: (
        x - jnp.exp(x).sum(1, keepdims=True) + summed(x) + jnp.exp(x) / y.max()
    ),
    "split": lambda x, y: sum(s * (i + 1) for i, s in enumerate(jnp.split(x, 4, 1))),
    "split unequally": lambda x, y: jnp.split(x, [3, 5], 1)[2] * jnp.split(y, [3], 0)[0].T,
    "slice": lambda x, y: x[1:3, 4:] * x[:2, 3:7],
    "slice with a step": lambda x, y: x[:, 1::2] + x[::-1, ::2],
    "pad": lambda x, y: jnp.pad(x, ((1, 2), (0, 3)), constant_values=0.5)[1:],
    "pad within": lambda x, y: lax.pad(x, 0.0, ((0, 0, 1), (-1, 2, 0))),
    "concatenate": lambda x, y: jnp.concatenate([x, 2 * x, y.T], 0),
    "concatenate unequally": lambda x, y: jnp.concatenate([x, x[:, :3], jnp.ones((4, 1))], 1),
    "halves": lambda x, y: jnp.concatenate([-x[:, 4:], x[:, :4]], 1) * x,
    "stack": lambda x, y: jnp.stack([x, y.T, x * 2], 1),
    "tile": lambda x, y: jnp.tile(x, (2, 1)) + jnp.repeat(x, 2, 0),
    "iota": lambda x, y: x * lax.broadcasted_iota(jnp.float32, (4, 8), 1),
    "tril": lambda x, y: jnp.tril(x) @ y,
    "lookup": lambda x, y: x[:, PERMUTATION] + x[IDS],
    "lookup by argument": lambda x, y: y[(jnp.abs(jnp.sin(x)) * 7).astype(int)],
    "diagonal": lambda x, y: jnp.diagonal(y[:4] * 2) + x[jnp.arange(4), jnp.arange(4)],
    "window": lambda x, y: lax.dynamic_slice(x, (1, 2), (2, 4)),
    "window computed": lambda x, y: lax.dynamic_slice_in_dim(x, x.argmax(), 3, 1),
    "window replaced": lambda x, y: lax.dynamic_update_slice(x, y[:2, :3], (1, x.argmax())),
    "row replaced": lambda x, y: lax.dynamic_update_slice_in_dim(x, 2 * x[1:2], 2, 0),
    "at set": lambda x, y: x.at[1].set(y[:, 2]).at[:, 3].add(1.0),
    "reversed": lambda x, y: x[::-1] + jnp.flip(x, 1),
    "roll": lambda x, y: jnp.roll(x, 3, 1) + jnp.roll(x, 1, 0),
    "sort": lambda x, y: jnp.sort(x, 1) + jnp.sort(x, 0),
    "top": lambda x, y: lax.top_k(x, 3)[0] * lax.top_k(x, 3)[1],
    "scan": lambda x, y: lax.scan(lambda c, r: (c * 0.5 + r, c.sum() * r), x[0], x),
    "scan of counts": lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * x + i, x),
    "reversed scan": lambda x, y: lax.scan(
        lambda c, r: (c + r @ y, r), x @ y, jnp.stack([x, x]), reverse=True
    ),
    "one turn": lambda x, y: lax.scan(lambda c, r: (c + r, c), x, x[None])[0],
    "checkpoint": lambda x, y: jax.checkpoint(lambda x: jnp.sin(x) @ y)(x),
    "cond": lambda x, y: lax.cond(x.sum() > y.sum(), lambda: x @ y, lambda: x[:, :4] * 2),
    "convolution": lambda x, y: lax.conv(x.reshape(2, 2, 8), y.reshape(8, 2, 2), (1,), "SAME"),
    "strided convolution": lambda x, y: lax.conv_general_dilated(
        jnp.stack([x, x[::-1]])[..., None],
        y.reshape(2, 4, 1, 4),
        (1, 2),
        ((1, 0), (2, 1)),
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "pointwise convolution": lambda x, y: lax.conv_general_dilated(
        x[None], y[None], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "associative scan": lambda x, y: lax.associative_scan(jnp.multiply, x, axis=1),
    "where of while": lambda x, y: (
        x
        * lax.stop_gradient(
            lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5 + y.mean()), (0, x))[
                1
            ]
        )
    ),
    "vmap": lambda x, y: jax.vmap(lambda r: r @ y * r.max())(x),
    "linalg": lambda x, y: jnp.linalg.inv(jnp.eye(4) * 5 + x[:, :4]),
    "fft": lambda x, y: jnp.abs(jnp.fft.rfft(x, axis=1)),
    "trace time": lambda x, y: x * np.arange(8.0, dtype=np.float32),
}
NAMES = {"x": "a b", "y": "b c"}
LAYOUTS = {
    "inner": md.Layout(["a? -> data", "b? -> model", "c? -> data"], mesh={"data": 2, "model": 2}),
    "swapped": md.Layout(
        ["b? -> model, data", "dim8_1? -> data"], ["a? -> data"], mesh={"data": 2, "model": 2}
    ),
    "uneven": md.Layout(
        ["a? -> data", {"rule": "b? -> model", "order": "zigzag"}, "c? -> data"],
        mesh={"data": 3, "model": 2},
        uneven="pad",
    ),
    "unnamed": md.Layout(
        [
            f"{d}? -> model"
            for d in ("dim2_1", "dim4_1", "dim4_2", "dim2_2", "dim8_1", "b_2", "a_2")
        ],
        mesh={"data": 1, "model": 2},
    ),
}


def operands(seed):
    one, two = jax.random.split(jax.random.key(seed))
    return jax.random.normal(one, (4, 8)), jax.random.normal(two, (8, 4)) / 2


def mixed(tree):
    """A number that depends on every float of the tree."""
    parts = [
        jnp.sum(jnp.sin(1 + x) * jnp.cos(jnp.arange(x.size)).reshape(x.shape))
        for x in jax.tree.leaves(tree)
    ]
    return sum(parts)


QUICK = (
    "broadcast",
    "custom jvp",
    "square",
    "regroup odd",
    "split",
    "lookup",
    "cumsum",
    "nearly softmax",
)


def test_some_primitives_equal_plain_jax():
    check({case: CASES[case] for case in QUICK}, LAYOUTS["inner"])


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_primitives_equal_plain_jax(name):
    check(in_turn(CASES, LAYOUTS, name), LAYOUTS[name])


def in_turn(cases, layouts, name):
    """The cases for a layout, which is one half of them: each case is for two layouts in a row."""
    number, count = [*layouts].index(name), len(layouts)
    turns = {number, (number - 1) % count}
    return {case: fn for i, (case, fn) in enumerate(cases.items()) if i % count in turns}


def of_case(fn):
    """A function of a pair: a number that depends on all results of `fn`, and these results."""

    def loss_and_results(pair):
        made = fn(*pair)
        return mixed(made), made

    return loss_and_results


@cache
def on_one_device(case, fn, operands):
    """Operands for a case; the gradients of its loss, and its results, by plain JAX."""
    pair = operands(crc32(case.encode()))
    return pair, *jax.jit(jax.grad(of_case(fn), has_aux=True))(pair)


def check(cases, layout, names=("a b", "b c"), operands=operands):
    """That functions of two arrays, and their gradients, are the same under a layout.

    Returns:
      For each case what `md.from_jax` makes of its loss and its results.
    """
    of_pair = dict(zip("01", names, strict=True))
    wanted = {case: on_one_device(case, fn, operands) for case, fn in cases.items()}
    functions = {case: md.from_jax(of_case(fn), of_pair) for case, fn in cases.items()}
    packed = {case: functions[case].pack(wanted[case][0]) for case in cases}

    def program(packed):
        made = {case: fn(packed[case]) for case, fn in functions.items()}
        return sum(loss for loss, _ in made.values()), made

    step = md.lower(md.value_and_grad(program, has_aux=True), layout)
    (_, made), gradients = step(packed)
    wrong = []
    for case, named in functions.items():
        _, gradient, value = wanted[case]
        found = jax.tree.leaves(named.unpack_result(made[case])[1])
        pairs = [*zip(found, jax.tree.leaves(value), strict=True)]
        pairs += zip(named.unpack(gradients[case]), gradient, strict=True)
        error = max(distance(np.asarray(a), np.asarray(b)) for a, b in pairs)
        if not error < 1e-5:
            wrong.append(f"{case}: {error}")
    assert not wrong, wrong
    return functions
