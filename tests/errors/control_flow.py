"""Errors of loops, branches and rematerialisation."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import SCALAR, A, C, W, X

ERRORS = [
    # Loops.
    (lambda: md.scan(lambda c, x: (c, x), (), jnp.ones(3), dim=A), "scan … (3,) … a=4 in front"),
    (
        lambda: md.scan(lambda c, x: (md.sum(c), x), X, (), dim=A),
        "scan … [a=4, b=8] of float32 … [] of float32",
    ),
    (lambda: md.scan(lambda c, x: ((c, c), x), X, (), dim=A), "scan … another structure"),
    (lambda: md.scan(lambda c, x: (c, X), (), X, dim=A), "scan: `a` occurs twice"),
    (
        lambda: md.scan(lambda c, x: (X, x), jnp.ones(3), (), dim=A),
        "scan … array of shape (3,) … [a=4, b=8] of float32",
    ),
    (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=A, unroll=-1),
        "scan: `unroll` … at least 0, not -1",
    ),
    (
        lambda: md.scan(lambda c, x: c, X, (), dim=A),
        "scan: the body returns the carry and a result, `(carry, y)`",
    ),
    (
        lambda: md.scan(lambda c, x: (c, x), "c", X, dim=A),
        "scan: the carry is a pytree of Tensors, arrays and numbers … 'c'",
    ),
    (
        lambda: md.while_loop(lambda c: c > 0, lambda c: c, X),
        "while_loop … bool without dims … [a=4, b=8] of bool … md.any",
    ),
    (
        lambda: md.while_loop(lambda c: md.any(c > 0), md.sum, X),
        "while_loop … [a=4, b=8] of float32 … [] of float32",
    ),
    (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.while_loop(lambda c: md.sum(c) < 0, lambda c: c, w))
        )(W),
        "while_loop … no gradient … md.scan, md.jvp",
    ),
    (
        lambda: md.map_over(len, jnp.ones(4), dim=A),
        "map_over … Tensors that have a=4 … Array … close over",
    ),
    (lambda: md.map_over(md.sin, X, dim=A, batch=0), "map_over … at least 1, not 0"),
    (lambda: md.map_over(md.sin, X, dim=C, batch=2), "map_over: no dim `c` in [a=4, b=8]"),
    (
        lambda: md.map_over(lambda x: "y", X, dim=A),
        "map_over: the result of the body … one leaf 'y'",
    ),
    (lambda: md.over(C, md.sin)(X), "over: no argument has c=3 … [a=4, b=8]"),
    (lambda: md.over(md.Dim("a", 5), md.sin)(X), "over: `a` is 5 here and 4 in [a=4, b=8]"),
    (lambda: md.over(A, lambda x: x.array)(X), "over … returns Tensors … md.tensor"),
    (lambda: md.over(A, lambda x: X)(X), "over: `a` occurs twice"),
    # Branches.
    (lambda: md.cond(X > 0, lambda: X, lambda: X), "cond … without dims … [a=4, b=8] … md.any"),
    (lambda: md.cond(True, lambda: X, lambda: X), "cond: `predicate` is a Tensor, not True"),
    (
        lambda: md.cond(SCALAR > 0, lambda x: x, lambda x: md.sum(x, A), X),
        "cond … [a=4, b=8] of float32 and [b=8] of float32",
    ),
    (
        lambda: md.cond(SCALAR > 0, md.sin, md.cos, X, weights=(0, 0)),
        "cond: `weights` is (0, 0); expected two numbers of at least 0, not both 0",
    ),
    (
        lambda: md.cond(md.tensor(True, ()), lambda: "y", lambda: "n"),
        "cond: the result of a branch … one leaf 'y'",
    ),
    (lambda: md.switch(SCALAR, [md.sin], X), "switch … whole numbers without dims … [] of float32"),
    (lambda: md.switch(md.tensor(1, ()), [], X), "switch … no branch"),
    (
        lambda: md.switch(md.tensor(1, ()), [md.sin, md.cos, md.sum], X),
        "switch … [a=4, b=8] of float32 and [] of float32",
    ),
    # Rematerialisation.
    (lambda: md.checkpoint(len, "gather"), "checkpoint … 'gather'; did you mean `gathers`?"),
    (lambda: md.checkpoint(len, save="y", offload="y"), "checkpoint: `y` … name it once"),
    (
        lambda: md.checkpoint(lambda x: md.checkpoint_name(x, "hidden"), save="hiden")(X),
        "checkpoint … no save point `hiden`; did you mean `hidden`?",
    ),
    (
        lambda: md.checkpoint(md.sin, offload="hidden")(X),
        "checkpoint … `hidden` … marks none … checkpoint_name",
    ),
    (lambda: md.checkpoint(md.sin, save=3), "checkpoint: save points are called by names … not 3"),
]
