"""Errors of convolution and pooling."""

import meshdsl as md
from tests.errors.common import IMAGE, A, C, T
from tests.helpers import dims, weight

P, V = dims(p=3, v=2)
KERNEL = weight(P, C, V)


def conv(over=None, x=IMAGE, k=KERNEL, fn=md.conv, **how):
    return fn(x, k, {"b": "p"} if over is None else over, **{"out": (..., V), **how})


def pool(window=None, fn=md.max_pool, **how):
    return fn(IMAGE, window or {"b": 3}, **how)


ERRORS = [
    # Convolution.
    (lambda: conv({"height": "p"}), "conv, over: no dim `height` in [a=4, b=8, c=3]"),
    (
        lambda: conv({"c": "p"}),
        "conv: c=3 of [a=4, b=8, c=3] … p=3 of [p=3, c=3, v=2] … one operand each",
    ),
    (lambda: conv({}), "conv: no spatial dim in [a=4, b=8, c=3] … einsum"),
    (lambda: conv(["b"]), "conv: `over` is a mapping, not of type list"),
    (lambda: conv(k=weight(P, md.Dim("c", 5), V)), "conv: `c` is 3 in operand 0 … 5 in operand 1"),
    (lambda: conv(out=(..., T)), "conv: out has t=2 … [a=4, b=8, c=3, v=2]"),
    (lambda: conv(out=(..., P, V)), "conv: out has p=3 … [a=4, b=8, c=3, v=2]"),
    (lambda: conv(out=(A, V), stride=2), "conv: out lacks [b=4] … sum"),
    (lambda: conv(stride=0), "conv … stride along b=8 … at least 1, not 0"),
    (lambda: conv(stride={"h": 2}), "conv, stride: no dim `h` in [b=8]"),
    (lambda: conv(padding="SAM"), "conv: no padding 'SAM' for b=8; did you mean `SAME`?"),
    (lambda: conv(padding=(1, -1)), "conv … padding of b=8 … (1, -1); `slice"),
    (lambda: conv(dilation=5, padding=1), "conv … 3 taps, 5 apart … larger than b=8 with 1 and 1"),
    (lambda: conv(stride=2, into={"b": md.Dim("w", 5)}), "conv: of b=8 come 4 elements, not w=5"),
    (lambda: conv(into={"b": "a"}), "conv: b=8 cannot become `a` … [a=4, b=8, c=3, p=3, v=2]"),
    (
        lambda: conv(fn=md.conv_transpose, stride=3, into={"b": md.Dim("b", 25)}),
        "conv_transpose: of b=8 come 22 to 24 elements, not b=25",
    ),
    (
        lambda: conv(fn=md.conv_transpose, padding=9),
        "conv_transpose: nothing is left of b=8 … window of 3 … padding 9",
    ),
    # Pooling.
    (lambda: pool({"h": 2}), "max_pool, window: no dim `h` in [a=4, b=8, c=3]"),
    (lambda: pool({"b": 0}), "max_pool … window along b=8 … at least 1, not 0"),
    (lambda: pool(padding=3), "max_pool … 3 and 3 around b=8, a window of 3 … only padding"),
    (
        lambda: pool({"b": 9}, fn=md.mean_pool),
        "mean_pool: a window of 9 is larger than b=8 with 0 and 0",
    ),
]
