"""Errors of ops that rename, reorder, reshape, cut, join, pad or move."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import IDS, A, B, C, X, Y, lowered, traced

ERRORS = {
    # Names and order.
    "rename, another size": (lambda: md.rename(X, A, C), ["rename", "a=4", "c=3"]),
    "rename, no name": (lambda: md.rename(X, "a", None), ["rename", "a=4", "None"]),
    "rename, taken": (lambda: md.rename(X, "a", "b"), ["rename", "`b` occurs twice", "[b=4, b=8]"]),
    "transpose, missing": (
        lambda: md.transpose(X, (B,)),
        ["transpose", "[b=8] lacks [a=4] of [a=4, b=8]"],
    ),
    "broadcast, missing": (
        lambda: md.broadcast(X, (A, C)),
        ["broadcast", "[a=4, c=3] lacks [b=8] of [a=4, b=8]"],
    ),
    # reshape.
    "reshape, another size": (
        lambda: md.reshape(X, (A, C)),
        ["reshape", "[b=8] has 8 elements", "[c=3] has 3", "[a=4, b=8]"],
    ),
    "reshape, malformed": (
        lambda: md.reshape(X, "a b"),
        ["reshape", "'a b'", '"a (b c) -> (a b) c"'],
    ),
    "reshape, unbalanced": (
        lambda: md.reshape(X, "a (b -> a b"),
        ["reshape", "'a (b -> a b'", "form"],
    ),
    "reshape, an ellipsis": (
        lambda: md.reshape(X, "... b -> b ..."),
        ["reshape", "'... b -> b ...'", "names every dim"],
    ),
    "reshape, other names": (
        lambda: md.reshape(X, "a b -> a c"),
        ["reshape", "'a b -> a c'", "['a', 'b']", "['a', 'c']"],
    ),
    "reshape, a name twice": (
        lambda: md.reshape(X, "a a -> a a"),
        ["reshape", "'a a -> a a'", 'duplicate dimension "a"'],
    ),
    "reshape, too few names": (
        lambda: md.reshape(X, "a -> a"),
        ["reshape", "1 items", "[a=4, b=8]"],
    ),
    "reshape, open sizes": (
        lambda: md.reshape(X, "a (u v) -> a u v"),
        ["reshape", "sizes of u, v open", "all but one"],
    ),
    "reshape, indivisible": (
        lambda: md.reshape(X, "a (u v) -> a u v", u=3),
        ["reshape", "b=8 cannot be split into [u=3, v=2]"],
    ),
    "reshape, a fraction": (
        lambda: md.reshape(X, "a (u v) -> a u v", u=2.0),
        ["Dim: the size of `u` is a whole number", "2.0"],
    ),
    "reshape, a size of nothing": (
        lambda: md.reshape(X, "a (u v) -> a u v", u=2, w=4),
        ["reshape", "no `w`", "known", "`u`"],
    ),
    "reshape, another size for a dim": (
        lambda: md.reshape(X, "a b -> b a", a=5),
        ["reshape", "`a` is 5 here and 4 in [a=4, b=8]"],
    ),
    "reshape, merged into another size": (
        lambda: md.reshape(X, "a b -> (a b)", a_b=md.Dim("z", 5)),
        ["reshape", "[a=4, b=8] cannot be merged into z=5"],
    ),
    # Cutting and joining.
    "slice, too far": (lambda: md.slice(X, B, 6, 4), ["slice", "6 to 10", "b=8 of [a=4, b=8]"]),
    "slice, a fraction": (lambda: md.slice(X, B, 0.5, 2), ["slice: `start`", "not 0.5"]),
    "slice, a traced start": (
        lambda: traced(lambda i: md.slice(X, B, i, 2)),
        ["slice: `start` is a whole number, not a value that is being traced", "md.take"],
    ),
    "slice, a Tensor to start at": (
        lambda: md.slice(X, B, X, 2),
        ["slice: `start` is a whole number, not of type Tensor"],
    ),
    "slice, half a size": (
        lambda: md.slice(X, B, 0, 1.5),
        ["slice: `size` is a whole number or a Dim", "not 1.5"],
    ),
    "slice, a negative size": (
        lambda: md.slice(X, B, 0, -1),
        ["slice: `size` along b=8", "at least 0, not -1"],
    ),
    "split, unequal": (lambda: md.split(X, B, 3), ["split", "b=8", "3 equal parts"]),
    "split, too little": (
        lambda: md.split(X, B, [3, 4]),
        ["split", "[b=3, b=4] do not add up to b=8"],
    ),
    "split, a fraction": (
        lambda: md.split(X, B, 2.0),
        ["split: `sizes` is a whole number or a list", "not 2.0", "[a=4, b=8]"],
    ),
    "split, a fraction among sizes": (
        lambda: md.split(X, B, [3.0, 5]),
        ["split: a part of b=8 is a whole number", "not 3.0"],
    ),
    "concat of nothing": (lambda: md.concat([], B), ["concat", "one Tensor or more"]),
    "concat, the sum": (
        lambda: md.concat([X, X], B),
        ["concat", "[b=8, b=8] do not add up to b=8", "16"],
    ),
    "concat, other dims": (
        lambda: md.concat([X, Y], "b"),
        ["concat", "[a=4, b=8]", "[b=8, c=3]", "more than `b`"],
    ),
    "concat, another result": (
        lambda: md.concat([X, X], "b", out=md.Dim("v", 12)),
        ["concat", "[b=8, b=8] do not add up to v=12", "16"],
    ),
    "concat of a Tensor": (
        lambda: md.concat(X, B),
        ["concat: `tensors` is a list or tuple, not of type Tensor"],
    ),
    "concat of numbers": (
        lambda: md.concat([X, 1], B),
        ["concat", "one Tensor or more", "['Tensor', 'int']"],
    ),
    "stack of nothing": (lambda: md.stack([], "v"), ["stack", "one Tensor or more"]),
    "stack, another number": (
        lambda: md.stack([X, X], md.Dim("v", 3)),
        ["stack", "v=3 for 2 tensors"],
    ),
    "stack, other dims": (
        lambda: md.stack([X, md.sum(X, A)], "v"),
        ["stack", "[a=4, b=8] and [b=8] differ"],
    ),
    # Padding and moving.
    "pad, negative": (lambda: md.pad(X, B, -1), ["pad", "-1", "b=8", "slice"]),
    "pad, another size": (
        lambda: md.pad(X, B, 1, 2, out=md.Dim("v", 12)),
        ["pad", "1, b=8 and 2 together are 11 elements, not v=12"],
    ),
    "pad, a fraction": (lambda: md.pad(X, B, 0.5), ["pad: `before`", "not 0.5"]),
    "pad, a fraction among whole numbers": (
        lambda: md.pad(IDS, A, 1, value=1.5),
        ["pad: [a=4] of int32 cannot hold 1.5", "md.cast"],
    ),
    "pad, too much": (
        lambda: md.pad(IDS, A, 1, value=2**40),
        ["pad: [a=4] of int32 cannot hold 1099511627776"],
    ),
    "pad, infinity": (
        lambda: md.pad(IDS, A, 1, value=-jnp.inf),
        ["pad: [a=4] of int32 cannot hold -inf"],
    ),
    "roll, a fraction": (
        lambda: md.roll(X, B, 1.5),
        ["roll: `by` is a whole number, not 1.5", "[a=4, b=8]"],
    ),
    "roll, lowered": (
        lambda: lowered(lambda x: md.roll(x, B, 1.5)),
        ["roll: `by` is a whole number, not 1.5", "[a=4, b=8]"],
    ),
    "roll, True": (lambda: md.roll(X, B, True), ["roll: `by` is a whole number, not True"]),
    "roll, a Tensor": (
        lambda: md.roll(X, B, md.tensor(1, ())),
        ["roll: `by`", "of type Tensor", "before the program runs", "md.take"],
    ),
    "shift, a fraction": (lambda: md.shift(X, B, 1.5), ["shift: `by`", "not 1.5"]),
    "shift, a fraction for a truth value": (
        lambda: md.shift(X > 0, B, 1, 0.5),
        ["shift: [a=4, b=8] of bool cannot hold 0.5"],
    ),
    "shift, nothing to fill with": (
        lambda: md.shift(X, B, 1, None),
        ["shift: [a=4, b=8] is filled up with a number, not None"],
    ),
}
