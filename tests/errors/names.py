"""What is wrong with names of dims of operands, and what the error says."""

import jax
import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import A, B, C, X, Y
from tests.errors.convolution import conv
from tests.helpers import data

KEY = jax.random.key(0)
ERRORS = {
    # No operand has the dim, and it could be no new one.
    "einsum": (
        lambda: md.einsum(X, Y, out=("a", "cc")),
        ["einsum, out: no dim `cc` in [a=4, b=8, c=3]", "did you mean `c`?"],
    ),
    "einsum, one name": (
        lambda: md.einsum(X, Y, out="all"),
        ["einsum, out: no dim `all` in [a=4, b=8, c=3]"],
    ),
    "einsum, two sizes": (
        lambda: md.einsum(X, data(C, md.Dim("b", 4)), out=("a", "b")),
        ["einsum", "`b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [c=3, b=4]"],
    ),
    "conv": (
        lambda: conv(out=("a", "b", "w")),
        ["conv, out: no dim `w` in"],
    ),
    "over": (
        lambda: md.over("aa", md.sin)(X),
        ["over: no dim `aa` in [a=4, b=8]", "did you mean `a`?"],
    ),
    "value_and_grad, microbatches": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate="aa")(X, X),
        ["value_and_grad, accumulate: no dim `aa` in [a=4, b=8]", "did you mean `a`?"],
    ),
    # A dim that no operand has needs a size.
    "broadcast": (
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
    "reshape": (
        lambda: md.reshape(X, ("a", md.Dim("c", 2), "t")),
        ["reshape: no dim `t` in [a=4, b=8]", "with its size, such as Dim('t', 8)"],
    ),
    "local": (
        lambda: md.local(jnp.sin, X, out=("a", "heads")),
        ["local, out: no dim `heads` in [a=4, b=8]", "with its size, such as Dim('heads', 8)"],
    ),
    "normal": (
        lambda: md.random.normal(KEY, ("a", "heads"), like=X),
        ["random: no dim `heads` in [a=4, b=8]", "with its size"],
    ),
    "scan": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim="aa"),
        ["scan: no dim `aa` in [a=4, b=8]", "such as Dim('aa', 8)", "did you mean `a`?"],
    ),
    "scan over a number": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=4),
        ["scan: a dim is given as a Dim or by its name, not 4", "[a=4, b=8]"],
    ),
    "map_over": (
        lambda: md.map_over(md.sin, X, dim="t"),
        ["map_over: no dim `t` in [a=4, b=8]", "such as Dim('t', 8)"],
    ),
    # There is no operand.
    "scan of nothing": (
        lambda: md.scan(lambda c, _: (c, ()), X, (), dim="turns"),
        ["scan: a dim that no operand has is given with its size, such as Dim('turns', 8)"],
    ),
    "iota": (
        lambda: md.iota("a"),
        ["iota: a dim that no operand has is given with its size, such as Dim('a', 8), not as"],
    ),
    "permutation": (
        lambda: md.random.permutation(KEY, "a"),
        ["permutation: a dim that no operand has", "its size, such as Dim('a', 8), not as 'a'"],
    ),
    "diagonal, a number": (lambda: md.diagonal(X, A, B, 3), ["identifier", "not 3"]),
}
