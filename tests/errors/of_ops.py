"""What is wrong with the arguments of an op, and what the error says."""

import jax
import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import (
    COMPLEX,
    EMPTY,
    IDS,
    IMAGE,
    KERNEL,
    KEY,
    SCALAR,
    A,
    B,
    C,
    P,
    T,
    V,
    X,
    Y,
    conv,
    pool,
)
from tests.helpers import data, integers, weight

ERRORS = {
    # Component-wise ops.
    "unequal sizes": (
        lambda: X + data(md.Dim("b", 7)),
        ["add", "`b` is 8 in operand 0 [a=4, b=8] and 7 in operand 1 [b=7]"],
    ),
    "an outer product": (
        lambda: X * Y,
        ["multiply", "[a=4, b=8] and [b=8, c=3]", "lacks `c`", "broadcast", "einsum"],
    ),
    "an array": (lambda: X + jnp.ones((4, 8)), ["add", "shape (4, 8)", "md.tensor"]),
    "a word": (lambda: X + "y", ["add", "Tensors and numbers", "str"]),
    "no tensor": (lambda: md.maximum(1, 2), ["maximum", "at least one operand"]),
    "not component-wise": (lambda: md.map(jnp.sum, X), ["sum", "shape ()", "[a=4, b=8]", "(4, 8)"]),
    # einsum.
    "einsum, unequal sizes": (
        lambda: md.einsum(X, data(C, md.Dim("b", 4)), out=(A, C)),
        ["einsum", "`b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [c=3, b=4]"],
    ),
    "einsum, a dim of nothing": (
        lambda: md.einsum(X, Y, out=(A, T)),
        ["einsum", "out has t=2", "none of [a=4, b=8], [b=8, c=3]", "known"],
    ),
    "einsum, a name of nothing": (
        lambda: md.einsum(X, Y, out=("a", "cc")),
        ["einsum, out: no dim `cc` in [a=4, b=8, c=3]", "did you mean `c`?"],
    ),
    "einsum, names of unequal sizes": (
        lambda: md.einsum(X, data(C, md.Dim("b", 4)), out=("a", "b")),
        ["einsum", "`b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [c=3, b=4]"],
    ),
    "einsum, a dim twice": (lambda: md.einsum(X, out=(A, A)), ["einsum", "`a` occurs twice"]),
    "einsum of numbers": (
        lambda: md.einsum(X, 3.0, out=(A,)),
        ["einsum", "each of `tensors` is a Tensor, not 3.0", "[a=4, b=8]"],
    ),
    "einsum of nothing": (lambda: md.einsum(out=(A,)), ["einsum", "Tensors"]),
    "einsum, a rest that may be of attention": (
        lambda: md.einsum(data(A, B, C), data(A, B, T), out=(..., B, C, T)),
        [
            "einsum",
            "[a=4, b=8, c=3], [a=4, b=8, t=2] share [a=4]",
            "`out` does not name",
            "Write contract=a, less what is to be kept",
            "`...` stands for all other dims",
            "one by one, without `...`",
        ],
    ),
    "einsum, a rest of several": (
        lambda: md.einsum(IMAGE, data(A, B, T), out=(..., T)),
        ["share [a=4, b=8]", "contract=(a, b), less"],
    ),
    "einsum, contract and out": (
        lambda: md.einsum(X, Y, out=(A, B), contract=(B, C)),
        ["einsum", "[b=8] cannot be in `out` and in `contract`"],
    ),
    "einsum, neither contract nor out": (
        lambda: md.einsum(X, Y, out=(A,), contract=B),
        ["[c=3] of [a=4, b=8], [b=8, c=3] is neither in `out` nor in `contract`", "write `...`"],
    ),
    "einsum, contract a dim of nothing": (
        lambda: md.einsum(X, Y, out=(...,), contract="bb"),
        ["einsum, contract", "no dim `bb` in [a=4, b=8, c=3]", "did you mean `b`?"],
    ),
    "einsum, two rests": (lambda: md.einsum(X, Y, out=(..., ...)), ["einsum", "ellipsis"]),
    # dot.
    "dot with what contracts nothing": (
        lambda: md.dot(X, Y),
        ["dot", "the second operand [b=8, c=3] does not say", "ins=...", "md.einsum(x, w, out="],
    ),
    "dot, a dim that is missing": (
        lambda: md.dot(X, weight(P, C, ins=P)),
        ["dot", "the weight [p=3, c=3] contracts p=3, which [a=4, b=8] lacks", "known: `a`, `b`"],
    ),
    "dot, unequal sizes": (
        lambda: md.dot(X, weight(md.Dim("b", 4), C, ins="b")),
        ["dot", "`b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [b=4, c=3]"],
    ),
    "dot of whole numbers": (
        lambda: md.dot(IDS, weight(A, B, ins=A)),
        ["dot", "[a=4] is int32", "a weight of float32", "md.cast", "md.take"],
    ),
    # Reductions.
    "the largest of nothing": (
        lambda: md.max(EMPTY, "n"),
        ["max", "[n=0] of [n=0, b=8]", "no element", "a size of 1 or more"],
    ),
    "the largest of complex numbers": (
        lambda: md.argmax(COMPLEX, A),
        ["argmax", "[a=4, b=8] is complex64", "md.real", "md.abs"],
    ),
    "a function of complex numbers": (
        lambda: md.floor(COMPLEX),
        ["floor", "not defined for [a=4, b=8] of complex64", "md.real"],
    ),
    "a function of bools": (
        lambda: (X > 0) - (X > 1),
        ["subtract", "[a=4, b=8] of bool and [a=4, b=8] of bool", "md.cast"],
    ),
    "argmax over two dims": (
        lambda: md.argmax(X, (A, B)),
        ["argmax", "one dim", "tuple", "[a=4, b=8]"],
    ),
    "argmin of all": (lambda: md.argmin(X, None), ["argmin", "one dim", "None"]),
    # Names and shapes.
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
    "broadcast, a new name": (
        lambda: md.broadcast(X, ("a", "b", "heads")),
        [
            "broadcast: no dim `heads` in [a=4, b=8]",
            "a dim that no operand has is given with its size, such as Dim('heads', 8), not as",
        ],
    ),
    "broadcast, no word": (
        lambda: md.broadcast(X, ("a", "b", "d model")),
        ["broadcast: no dim `d model`", "such as Dim('batch', 8)"],
    ),
    "reshape, a new name": (
        lambda: md.reshape(X, ("a", md.Dim("c", 2), "t")),
        ["reshape: no dim `t` in [a=4, b=8]", "with its size, such as Dim('t', 8)"],
    ),
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
    # Picking and placing.
    "take, fractions": (
        lambda: md.take(X, md.cast(IDS, jnp.float32), B),
        ["take", "[a=4]", "float32", "whole numbers"],
    ),
    "take, the same dim": (
        lambda: md.take(X, IDS, A),
        ["take", "[a=4]", "a=4 that they index", "rename"],
    ),
    "one_hot, the same dim": (
        lambda: md.one_hot(IDS, md.Dim("a", 9)),
        ["one_hot", "[a=4] has a dim `a` already"],
    ),
    "one_hot, fractions": (
        lambda: md.one_hot(X, C),
        ["one_hot", "[a=4, b=8]", "float32", "whole numbers"],
    ),
    "slice, too far": (lambda: md.slice(X, B, 6, 4), ["slice", "6 to 10", "b=8 of [a=4, b=8]"]),
    "split, unequal": (lambda: md.split(X, B, 3), ["split", "b=8", "3 equal parts"]),
    "split, too little": (
        lambda: md.split(X, B, [3, 4]),
        ["split", "[b=3, b=4] do not add up to b=8"],
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
    "pad, negative": (lambda: md.pad(X, B, -1), ["pad", "-1", "b=8", "slice"]),
    # Control.
    "scan over a name of nothing": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim="aa"),
        ["scan: no dim `aa` in [a=4, b=8]", "such as Dim('aa', 8)", "did you mean `a`?"],
    ),
    "scan over a number": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=4),
        ["scan: a dim is given as a Dim or by its name, not 4", "[a=4, b=8]"],
    ),
    "scan of nothing over a name": (
        lambda: md.scan(lambda c, _: (c, ()), X, (), dim="turns"),
        ["scan: a dim that no operand has is given with its size, such as Dim('turns', 8)"],
    ),
    "map_over, a name of nothing": (
        lambda: md.map_over(md.sin, X, dim="t"),
        ["map_over: no dim `t` in [a=4, b=8]", "such as Dim('t', 8)"],
    ),
    "scan, no such dim": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=C),
        ["scan", "no dim `c` in [a=4, b=8]"],
    ),
    "scan, an array": (
        lambda: md.scan(lambda c, x: (c, x), (), jnp.ones(3), dim=A),
        ["scan", "(3,)", "a=4 in front"],
    ),
    "scan, another carry": (
        lambda: md.scan(lambda c, x: (md.sum(c), x), X, (), dim=A),
        ["scan", "[a=4, b=8] of float32", "[] of float32"],
    ),
    "scan, another dtype": (
        lambda: md.scan(lambda c, x: (c > 0, x), X, (), dim=A),
        ["scan", "[a=4, b=8] of float32", "of bool"],
    ),
    "scan, another structure": (
        lambda: md.scan(lambda c, x: ((c, c), x), X, (), dim=A),
        ["scan", "another structure"],
    ),
    "scan, a result with the dim": (
        lambda: md.scan(lambda c, x: (c, X), (), X, dim=A),
        ["scan", "`a` occurs twice"],
    ),
    "cond, many": (
        lambda: md.cond(X > 0, lambda: X, lambda: X),
        ["cond", "without dims", "[a=4, b=8]", "md.any"],
    ),
    "cond, no tensor": (
        lambda: md.cond(True, lambda: X, lambda: X),
        ["cond", "`predicate` is a Tensor, not True"],
    ),
    "cond, other dims": (
        lambda: md.cond(SCALAR > 0, lambda x: x, lambda x: md.sum(x, A), X),
        ["cond", "[a=4, b=8] of float32 and [b=8] of float32"],
    ),
    "checkpoint, no such policy": (
        lambda: md.checkpoint(len, "gather"),
        ["checkpoint", "'gather'", "did you mean `gathers`?"],
    ),
    "local, another shape": (
        lambda: md.local(lambda x: x.T, X, out=(A, B)),
        ["(8, 4)", "[a=4, b=8]", "(4, 8)"],
    ),
    "local, no such dim": (
        lambda: md.local(len, X, out=(A,), whole="c"),
        ["local", "no dim `c` in [a=4, b=8]"],
    ),
    # Random.
    "a key that is a number": (
        lambda: md.random.uniform(3, (A,)),
        ["random", "jax.random.key", "3"],
    ),
    "many keys": (
        lambda: md.random.uniform(jax.random.split(KEY), (A,)),
        ["random", "one jax.random.key", "(2,)"],
    ),
    "another kind of key": (
        lambda: md.random.bits(jax.random.key(0, impl="rbg"), (A,)),
        ["random", "rbg", "threefry2x32"],
    ),
    "dropout of everything": (lambda: md.dropout(X, 1, KEY), ["dropout", "less than 1", "not 1"]),
    # Cutting and joining.
    "pad, another size": (
        lambda: md.pad(X, B, 1, 2, out=md.Dim("v", 12)),
        ["pad", "1, b=8 and 2 together are 11 elements, not v=12"],
    ),
    "concat, another result": (
        lambda: md.concat([X, X], "b", out=md.Dim("v", 12)),
        ["concat", "[b=8, b=8] do not add up to v=12", "16"],
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
    # Order, scatter and triangles.
    "top_k, too many": (
        lambda: md.top_k(X, A, 5),
        ["top_k", "5 elements along a=4 of [a=4, b=8]", "which has 4"],
    ),
    "top_k, a name that is taken": (
        lambda: md.top_k(X, A, md.Dim("b", 2)),
        ["top_k", "`b` occurs twice", "[b=2, b=8]"],
    ),
    "nth_largest, too far": (
        lambda: md.nth_largest(X, A, 5),
        ["nth_largest", "no element number 5 along a=4 of [a=4, b=8]", "1 to 4"],
    ),
    "nth_smallest, none": (
        lambda: md.nth_smallest(X, "a", 0),
        ["nth_smallest", "no element number 0 along a=4", "count from 1"],
    ),
    "sort, no such dim": (lambda: md.sort(X, "c"), ["sort", "no dim `c` in [a=4, b=8]"]),
    "searchsorted, a side": (
        lambda: md.searchsorted(X, IDS, B, side="middle"),
        ["searchsorted", "'left' or 'right'", "'middle'"],
    ),
    "searchsorted, the same dim": (
        lambda: md.searchsorted(X, IDS, A),
        ["searchsorted", "[a=4]", "a=4 that is searched", "rename"],
    ),
    "scatter, another how": (
        lambda: md.scatter(Y, IDS, X, C, how="mx"),
        ["scatter", "'add', 'max', 'min', 'set'", "'mx'", "did you mean `max`?"],
    ),
    "scatter, fractions": (
        lambda: md.scatter(Y, X, X, C),
        ["scatter", "[a=4, b=8] are float32", "whole numbers"],
    ),
    "scatter, the same dim": (
        lambda: md.scatter(X, IDS, X, A),
        ["scatter", "[a=4]", "a=4 that they index", "rename"],
    ),
    "scatter, another dim in the updates": (
        lambda: md.scatter(Y, IDS, data(T), C),
        ["scatter", "the updates have [t=2]", "among [b=8, a=4]"],
    ),
    "scatter, another size": (
        lambda: md.scatter(Y, integers(md.Dim("b", 7), below=3), X, C),
        ["scatter", "`b` is 8 in operand 0", "7 in operand 1 [b=7]"],
    ),
    "segment_sum, ids without the dim": (
        lambda: md.segment_sum(X, IDS, B, C),
        ["segment_sum", "no dim `b` in [a=4]"],
    ),
    "segment_sum, the same dim": (
        lambda: md.segment_sum(X, IDS, A, A),
        ["segment_sum", "[a=4]", "a=4 that they index", "rename"],
    ),
    "bincount, fractions": (
        lambda: md.bincount(X, C),
        ["bincount", "[a=4, b=8] are float32", "whole numbers"],
    ),
    "diagonal of one dim": (
        lambda: md.diagonal(X, A, "a", C),
        ["diagonal", "two dims of [a=4, b=8]", "not a=4 twice"],
    ),
    "diagonal, another size": (
        lambda: md.diagonal(X, A, B, C),
        ["diagonal", "c=3 instead of [a=4, b=8]", "it has 4 elements"],
    ),
    "tril of one dim": (
        lambda: md.tril(X, B, B),
        ["tril", "two dims of [a=4, b=8]", "not b=8 twice"],
    ),
    "eye of one dim": (lambda: md.eye(A, A), ["eye", "`a` occurs twice"]),
    # Convolution and pooling.
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
    "conv_transpose, into another size": (
        lambda: conv(fn=md.conv_transpose, stride=3, into={"b": md.Dim("b", 25)}),
        ["conv_transpose", "of b=8 come 22 to 24 elements, not b=25"],
    ),
    "conv_transpose, nothing left": (
        lambda: conv(fn=md.conv_transpose, padding=9),
        ["conv_transpose", "nothing is left of b=8", "window of 3", "padding 9"],
    ),
    "pool, no such dim": (
        lambda: pool({"h": 2}),
        ["max_pool, window", "no dim `h` in [a=4, b=8, c=3]"],
    ),
    "pool, a window of nothing": (
        lambda: pool({"b": 0}),
        ["max_pool", "window along b=8", "at least 1", "not 0"],
    ),
    "pool, a large window": (
        lambda: pool({"b": 9}, fn=md.mean_pool),
        ["mean_pool", "a window of 9 is larger than b=8 with 0 and 0"],
    ),
    "pool of padding alone": (
        lambda: pool(padding=3),
        ["max_pool", "3 and 3 around b=8", "a window of 3", "only padding"],
    ),
    # Random.
    "truncated_normal of nothing": (
        lambda: md.random.truncated_normal(KEY, (A,), 2.0, 1.0),
        ["truncated_normal", "2.0 is not below 1.0"],
    ),
    "randint of nothing": (lambda: md.random.randint(KEY, (A,), 3, 3), ["randint", "from 3 to 3"]),
    "randint of fractions": (
        lambda: md.random.randint(KEY, (A,), 0.5, 3),
        ["randint", "whole number", "0.5"],
    ),
    "categorical, cold": (
        lambda: md.random.categorical(KEY, X, B, temperature=-1.0),
        ["categorical", "temperature", "at least 0", "-1.0"],
    ),
    "categorical, top_k": (
        lambda: md.random.categorical(KEY, X, B, top_k=9),
        ["categorical", "top_k", "b=8", "not 9"],
    ),
    "categorical, top_p": (
        lambda: md.random.categorical(KEY, X, B, top_p=0.0),
        ["categorical", "top_p", "above 0", "not 0.0"],
    ),
    "permutation of a name": (
        lambda: md.random.permutation(KEY, "a"),
        ["permutation: a dim that no operand has", "its size, such as Dim('a', 8), not as 'a'"],
    ),
    "permute, no such dim": (
        lambda: md.random.permute(KEY, X, C),
        ["permute", "no dim `c` in [a=4, b=8]"],
    ),
}
