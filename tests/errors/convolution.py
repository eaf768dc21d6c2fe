"""Errors of convolution and pooling."""

import jax.numpy as jnp
import numpy as np

import meshdsl as md
from tests.errors.common import IMAGE, A, C, T
from tests.helpers import dims, weight

P, V = dims(p=3, v=2)
KERNEL = weight(P, C, V)


def conv(over=None, x=IMAGE, k=KERNEL, fn=md.conv, **how):
    return fn(x, k, {"b": "p"} if over is None else over, **{"out": (..., V), **how})


def pool(window=None, fn=md.max_pool, **how):
    return fn(IMAGE, window or {"b": 3}, **how)


ERRORS = {
    # Convolution.
    "conv of an array": (
        lambda: md.conv(jnp.ones((4, 8)), KERNEL, {"b": "p"}, out=(V,)),
        ["conv", "`x` is a Tensor, not of type ArrayImpl", "md.tensor"],
    ),
    "conv, no spatial dim there": (
        lambda: conv({"height": "p"}),
        ["conv, over", "no dim `height` in [a=4, b=8, c=3]"],
    ),
    "conv, no kernel dim there": (
        lambda: conv({"b": "q"}),
        ["conv, kernel", "no dim `q` in [p=3, c=3, v=2]"],
    ),
    "conv, one kernel dim for two": (
        lambda: conv({"a": "p", "b": "p"}),
        ["conv, kernel", "`p` occurs twice"],
    ),
    "conv, a dim of both": (
        lambda: conv({"c": "p"}),
        ["conv", "c=3 of [a=4, b=8, c=3]", "p=3 of [p=3, c=3, v=2]", "one operand each"],
    ),
    "conv over nothing": (
        lambda: conv({}),
        ["conv", "no spatial dim in [a=4, b=8, c=3]", "einsum"],
    ),
    "conv over a list": (lambda: conv(["b"]), ["conv", "`over` is a mapping, not of type list"]),
    "conv, other channels": (
        lambda: conv(k=weight(P, md.Dim("c", 5), V)),
        ["conv", "`c` is 3 in operand 0", "5 in operand 1"],
    ),
    "conv, a dim of nothing": (
        lambda: conv(out=(..., T)),
        ["conv", "out has t=2", "[a=4, b=8, c=3, v=2]"],
    ),
    "conv, a window in the result": (
        lambda: conv(out=(..., P, V)),
        ["conv", "out has p=3", "[a=4, b=8, c=3, v=2]"],
    ),
    "conv, another size": (
        lambda: conv(out=(A, md.Dim("b", 7), V), stride=2),
        ["conv", "out has b=7", "[a=4, b=4, c=3, v=2]"],
    ),
    "conv, a lost dim": (lambda: conv(out=(A, V), stride=2), ["conv", "out lacks [b=4]", "sum"]),
    "conv, no stride": (
        lambda: conv(stride=0),
        ["conv", "stride along b=8", "at least 1", "not 0"],
    ),
    "conv, half a dilation": (
        lambda: conv(dilation={"b": 1.5}),
        ["conv", "dilation along b=8", "whole number", "1.5"],
    ),
    "conv, a stride for no dim": (
        lambda: conv(stride={"h": 2}),
        ["conv, stride", "no dim `h` in [b=8]"],
    ),
    "conv, no such padding": (
        lambda: conv(padding="SAM"),
        ["conv", "no padding 'SAM' for b=8", "did you mean `SAME`?"],
    ),
    "conv, negative padding": (
        lambda: conv(padding=(1, -1)),
        ["conv", "padding of b=8", "(1, -1)", "slice"],
    ),
    "conv, three paddings": (
        lambda: conv(padding={"b": (1, 2, 3)}),
        ["conv", "padding of b=8", "(1, 2, 3)"],
    ),
    "conv, a large window": (
        lambda: conv(dilation=5, padding=1),
        ["conv", "3 taps, 5 apart", "larger than b=8 with 1 and 1"],
    ),
    "conv, into another size": (
        lambda: conv(stride=2, into={"b": md.Dim("w", 5)}),
        ["conv", "of b=8 come 4 elements, not w=5"],
    ),
    "conv, into a name that is taken": (
        lambda: conv(into={"b": "a"}),
        ["conv", "b=8 cannot become `a`", "[a=4, b=8, c=3, p=3, v=2]"],
    ),
    "conv, half a stride": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=(..., V), stride=1.5),
        ["conv: the stride along b=8", "at least 1, not 1.5"],
    ),
    "conv, an array as stride": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=(..., V), stride=np.ones(2)),
        ["conv: the stride along b=8", "of type ndarray"],
    ),
    "conv, out of nothing": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=None),
        ["conv: dims are Dims such as", "not None"],
    ),
    "conv_transpose, into another size": (
        lambda: conv(fn=md.conv_transpose, stride=3, into={"b": md.Dim("b", 25)}),
        ["conv_transpose", "of b=8 come 22 to 24 elements, not b=25"],
    ),
    "conv_transpose, nothing left": (
        lambda: conv(fn=md.conv_transpose, padding=9),
        ["conv_transpose", "nothing is left of b=8", "window of 3", "padding 9"],
    ),
    # Pooling.
    "pool, no such dim": (
        lambda: pool({"h": 2}),
        ["max_pool, window", "no dim `h` in [a=4, b=8, c=3]"],
    ),
    "pool, a window of nothing": (
        lambda: pool({"b": 0}),
        ["max_pool", "window along b=8", "at least 1", "not 0"],
    ),
    "pool of padding alone": (
        lambda: pool(padding=3),
        ["max_pool", "3 and 3 around b=8", "a window of 3", "only padding"],
    ),
    "pool, half a window": (
        lambda: md.max_pool(IMAGE, {"b": 1.5}),
        ["max_pool: the window along b=8", "at least 1, not 1.5"],
    ),
    "pool, a large window": (
        lambda: pool({"b": 9}, fn=md.mean_pool),
        ["mean_pool", "a window of 9 is larger than b=8 with 0 and 0"],
    ),
}
