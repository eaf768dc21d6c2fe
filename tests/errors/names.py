"""What is wrong with names of dims of operands, and what the error says."""

import jax

import meshdsl as md
from tests.errors.common import A, B, X, Y

KEY = jax.random.key(0)
ERRORS = [
    # No operand has the dim, and it could be no new one.
    (
        lambda: md.einsum(X, Y, out=("a", "cc")),
        "einsum, out: no dim `cc` in [a=4, b=8, c=3]; did you mean `c`?",
    ),
    (lambda: md.over("aa", md.sin)(X), "over: no dim `aa` in [a=4, b=8]; did you mean `a`?"),
    (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate="aa")(X, X),
        "value_and_grad, accumulate: no dim `aa` in [a=4, b=8]; did you mean `a`?",
    ),
    # A dim that no operand has needs a size.
    (
        lambda: md.broadcast(X, ("a", "b", "heads")),
        "broadcast: no dim `heads` in [a=4, b=8]; a dim that no operand has is given with "
        "its size, such as Dim('heads', 8), not as",
    ),
    (
        lambda: md.reshape(X, ("a", md.Dim("c", 2), "t")),
        "reshape: no dim `t` in [a=4, b=8] … with its size, such as Dim('t', 8)",
    ),
    (
        lambda: md.random.normal(KEY, ("a", "heads"), like=X),
        "random: no dim `heads` in [a=4, b=8] … with its size",
    ),
    (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim="aa"),
        "scan: no dim `aa` in [a=4, b=8] … such as Dim('aa', 8) … did you mean `a`?",
    ),
    # There is no operand.
    (
        lambda: md.scan(lambda c, _: (c, ()), X, (), dim="turns"),
        "scan: a dim that no operand has is given with its size, such as Dim('turns', 8)",
    ),
    (lambda: md.diagonal(X, A, B, 3), "identifier … not 3"),
]
