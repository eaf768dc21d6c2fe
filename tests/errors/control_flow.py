"""Errors of loops, branches and rematerialisation."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import SCALAR, A, C, W, X

ERRORS = {
    # Loops.
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
    "scan, another kind of carry": (
        lambda: md.scan(lambda c, x: (X, x), jnp.ones(3), (), dim=A),
        ["scan", "array of shape (3,)", "[a=4, b=8] of float32"],
    ),
    "unroll, a fraction": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=A, unroll=1.5),
        ["scan: `unroll`", "not 1.5"],
    ),
    "unroll, less than none": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=A, unroll=-1),
        ["scan: `unroll`", "at least 0, not -1"],
    ),
    "a body that is none": (lambda: md.scan(3, X, X, dim=A), ["scan: `fn` is a function, not 3"]),
    "a body that returns one": (
        lambda: md.scan(lambda c, x: c, X, (), dim=A),
        ["scan: the body returns the carry and a result", "`(carry, y)`"],
    ),
    "a carry of words": (
        lambda: md.scan(lambda c, x: (c, x), "c", X, dim=A),
        ["scan: the carry is a pytree of Tensors, arrays and numbers", "'c'"],
    ),
    "while_loop, many": (
        lambda: md.while_loop(lambda c: c > 0, lambda c: c, X),
        ["while_loop", "bool without dims", "[a=4, b=8] of bool", "md.any"],
    ),
    "while_loop, another carry": (
        lambda: md.while_loop(lambda c: md.any(c > 0), md.sum, X),
        ["while_loop", "[a=4, b=8] of float32", "[] of float32"],
    ),
    "while_loop, its gradient": (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.while_loop(lambda c: md.sum(c) < 0, lambda c: c, w))
        )(W),
        ["while_loop", "no gradient", "md.scan", "md.jvp"],
    ),
    "map_over an array": (
        lambda: md.map_over(len, jnp.ones(4), dim=A),
        ["map_over", "Tensors that have a=4", "Array", "close over"],
    ),
    "map_over, no batch": (
        lambda: md.map_over(md.sin, X, dim=A, batch=0),
        ["map_over", "at least 1", "not 0"],
    ),
    "map_over, no such dim": (
        lambda: md.map_over(md.sin, X, dim=C, batch=2),
        ["map_over", "no dim `c` in [a=4, b=8]"],
    ),
    "map_over, half a batch": (
        lambda: md.map_over(md.sin, X, dim=A, batch=1.5),
        ["map_over: `batch` is a whole number or None", "1.5"],
    ),
    "map_over, a word": (
        lambda: md.map_over(lambda x: "y", X, dim=A),
        ["map_over: the result of the body", "one leaf 'y'"],
    ),
    "map_over, no such dim, no batch": (
        lambda: md.map_over(md.sin, X, dim=C),
        ["map_over: no dim `c` in [a=4, b=8]"],
    ),
    "map_over, the dim again": (
        lambda: md.map_over(lambda x: X, X, dim=A),
        ["map_over: `a` occurs twice"],
    ),
    "over, no such dim": (
        lambda: md.over(C, md.sin)(X),
        ["over", "no argument has c=3", "[a=4, b=8]"],
    ),
    "over, another size": (
        lambda: md.over(md.Dim("a", 5), md.sin)(X),
        ["over", "`a` is 5 here and 4 in [a=4, b=8]"],
    ),
    "over, an array": (
        lambda: md.over(A, lambda x: x.array)(X),
        ["over", "returns Tensors", "md.tensor"],
    ),
    "over, a result with the dim": (
        lambda: md.over(A, lambda x: X)(X),
        ["over", "`a` occurs twice"],
    ),
    # Branches.
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
    "cond, no weights": (
        lambda: md.cond(SCALAR > 0, md.sin, md.cos, X, weights=(0, 0)),
        ["cond: `weights` is (0, 0); expected two numbers of at least 0, not both 0"],
    ),
    "a branch of words": (
        lambda: md.cond(md.tensor(True, ()), lambda: "y", lambda: "n"),
        ["cond: the result of a branch", "one leaf 'y'"],
    ),
    "switch, fractions": (
        lambda: md.switch(SCALAR, [md.sin], X),
        ["switch", "whole numbers without dims", "[] of float32"],
    ),
    "switch, a number": (
        lambda: md.switch(1, [md.sin], X),
        ["switch", "`index` is a Tensor, not 1"],
    ),
    "switch, no branch": (lambda: md.switch(md.tensor(1, ()), [], X), ["switch", "no branch"]),
    "switch, other dims": (
        lambda: md.switch(md.tensor(1, ()), [md.sin, md.cos, md.sum], X),
        ["switch", "[a=4, b=8] of float32 and [] of float32"],
    ),
    "branches that are none": (
        lambda: md.switch(md.tensor(1, ()), [md.sin, 3], X),
        ["switch: there is a branch 3"],
    ),
    # Rematerialisation.
    "checkpoint, no such policy": (
        lambda: md.checkpoint(len, "gather"),
        ["checkpoint", "'gather'", "did you mean `gathers`?"],
    ),
    "checkpoint, a name twice": (
        lambda: md.checkpoint(len, save="y", offload="y"),
        ["checkpoint", "`y`", "name it once"],
    ),
    "checkpoint, a name of nothing": (
        lambda: md.checkpoint(lambda x: md.checkpoint_name(x, "hidden"), save="hiden")(X),
        ["checkpoint", "no save point `hiden`", "did you mean `hidden`?"],
    ),
    "checkpoint, no names": (
        lambda: md.checkpoint(md.sin, offload="hidden")(X),
        ["checkpoint", "`hidden`", "marks none", "checkpoint_name"],
    ),
    "checkpoint, a number as a name": (
        lambda: md.checkpoint(md.sin, save=3),
        ["checkpoint: save points are called by names", "not 3"],
    ),
    "checkpoint_name of an array": (
        lambda: md.checkpoint_name(jnp.ones(3), "y"),
        ["checkpoint_name", "`x` is a Tensor", "md.tensor"],
    ),
}
