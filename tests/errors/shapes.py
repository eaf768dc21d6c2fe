"""Errors of ops that rename, reorder, reshape, cut, join, pad or move."""

import meshdsl as md
from tests.errors.common import IDS, A, B, C, X, Y, lowered, traced

ERRORS = [
    # Names and order.
    (lambda: md.rename(X, A, C), "rename: a=4 … c=3"),
    (lambda: md.rename(X, "a", "b"), "rename: `b` occurs twice … [b=4, b=8]"),
    (lambda: md.transpose(X, (B,)), "transpose: [b=8] lacks [a=4] of [a=4, b=8]"),
    (lambda: md.broadcast(X, (A, C)), "broadcast: [a=4, c=3] lacks [b=8] of [a=4, b=8]"),
    # reshape.
    (lambda: md.reshape(X, (A, C)), "reshape: [b=8] has 8 elements … [c=3] has 3 … [a=4, b=8]"),
    (lambda: md.reshape(X, "a b"), "reshape: 'a b' … \"a (b c) -> (a b) c\""),
    (lambda: md.reshape(X, "a (b -> a b"), "reshape: 'a (b -> a b' … form"),
    (lambda: md.reshape(X, "... b -> b ..."), "reshape: '... b -> b ...' names every dim"),
    (lambda: md.reshape(X, "a b -> a c"), "reshape … 'a b -> a c' … ['a', 'b'] … ['a', 'c']"),
    (lambda: md.reshape(X, "a a -> a a"), "reshape: 'a a -> a a' … duplicate dimension \"a\""),
    (lambda: md.reshape(X, "a -> a"), "reshape … 1 items … [a=4, b=8]"),
    (lambda: md.reshape(X, "a (u v) -> a u v"), "reshape … sizes of u, v open … all but one"),
    (
        lambda: md.reshape(X, "a (u v) -> a u v", u=3),
        "reshape: b=8 cannot be split into [u=3, v=2]",
    ),
    (lambda: md.reshape(X, "a (u v) -> a u v", u=2, w=4), "reshape … no `w` … known … `u`"),
    (
        lambda: md.reshape(X, "a b -> (a b)", a_b=md.Dim("z", 5)),
        "reshape: [a=4, b=8] cannot be merged into z=5",
    ),
    # Cutting and joining.
    (lambda: md.slice(X, B, 6, 4), "slice … 6 to 10 … b=8 of [a=4, b=8]"),
    (
        lambda: traced(lambda i: md.slice(X, B, i, 2)),
        "slice: `start` is a whole number, not a value that is being traced … md.take",
    ),
    (lambda: md.slice(X, B, 0, 1.5), "slice: `size` is a whole number or a Dim … not 1.5"),
    (lambda: md.slice(X, B, 0, -1), "slice: `size` along b=8 … at least 0, not -1"),
    (lambda: md.split(X, B, 3), "split: b=8 … 3 equal parts"),
    (lambda: md.split(X, B, [3, 4]), "split … [b=3, b=4] do not add up to b=8"),
    (lambda: md.split(X, B, [3.0, 5]), "split: a part of b=8 is a whole number … not 3.0"),
    (lambda: md.concat([], B), "concat … one Tensor or more"),
    (lambda: md.concat([X, X], B), "concat … [b=8, b=8] do not add up to b=8 … 16"),
    (lambda: md.concat([X, Y], "b"), "concat: [a=4, b=8] … [b=8, c=3] … more than `b`"),
    (
        lambda: md.concat([X, X], "b", out=md.Dim("v", 12)),
        "concat … [b=8, b=8] do not add up to v=12 … 16",
    ),
    (lambda: md.concat(X, B), "concat: `tensors` is a list or tuple, not of type Tensor"),
    (lambda: md.stack([], "v"), "stack … one Tensor or more"),
    (lambda: md.stack([X, X], md.Dim("v", 3)), "stack: v=3 for 2 tensors"),
    (lambda: md.stack([X, md.sum(X, A)], "v"), "stack: [a=4, b=8] and [b=8] differ"),
    # Padding and moving.
    (lambda: md.pad(X, B, -1), "pad: -1 … b=8 … slice"),
    (
        lambda: md.pad(X, B, 1, 2, out=md.Dim("v", 12)),
        "pad: 1, b=8 and 2 together are 11 elements, not v=12",
    ),
    (lambda: md.pad(IDS, A, 1, value=1.5), "pad: [a=4] of int32 cannot hold 1.5 … md.cast"),
    (lambda: md.pad(IDS, A, 1, value=2**40), "pad: [a=4] of int32 cannot hold 1099511627776"),
    (
        lambda: lowered(lambda x: md.roll(x, B, 1.5)),
        "roll: `by` is a whole number, not 1.5 … [a=4, b=8]",
    ),
    (lambda: md.roll(X, B, True), "roll: `by` is a whole number, not True"),
    (lambda: md.shift(X > 0, B, 1, 0.5), "shift: [a=4, b=8] of bool cannot hold 0.5"),
    (lambda: md.shift(X, B, 1, None), "shift: [a=4, b=8] is filled up with a number, not None"),
]
