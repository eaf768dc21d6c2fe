"""What is wrong with an index by name, and what the error says."""

import jax
import jax.numpy as jnp

from tests.errors.common import X

ERRORS = {
    "a position": (lambda: X[0], ["t[...]", "names, no order", 't["a", 3], t["a", 0:4]']),
    "a dim alone": (lambda: X["b"], ["nothing stands after `b`", "[a=4, b=8]", 't["b", 3]']),
    "no such dim": (lambda: X["bb", 3], ["t[...]: no dim `bb` in [a=4, b=8]", "`b`?"]),
    "no such dim alone": (lambda: X["bb"], ["t[...]: no dim `bb`", "did you mean `b`?"]),
    "outside": (lambda: X["b", 8], ["8 is outside of b=8", "[a=4, b=8]", "from -8 to 7"]),
    "before": (lambda: X["b", -9], ["-9 is outside of b=8"]),
    "of nothing": (lambda: X["b", 0:0]["b", 0], ["0 is outside of b=0", "has no element"]),
    "twice": (
        lambda: X["b", 0:4, "b", 1],
        ["`b` is indexed twice", 't["b", ...]["b", ...]'],
    ),
    "a fraction": (lambda: X["b", 1.5], ["along b=8 of [a=4, b=8]", "not 1.5"]),
    "True": (lambda: X["b", True], ["a whole number, a slice or a Tensor", "not True"]),
    "a list": (lambda: X["b", [1, 2]], ["not of type list"]),
    "an array": (lambda: X["b", jnp.arange(2)], ["give an array dims with md.tensor"]),
    "no step": (lambda: X["b", ::0], ["the step of a slice of b=8 is 0"]),
    "a slice to a fraction": (
        lambda: X["b", :1.5],
        ["the stop of a slice of b=8", "not 1.5"],
    ),
    "a computed slice": (
        lambda: jax.eval_shape(lambda i: X["b", i:], jnp.int8(1)),
        ["the start of a slice of b=8", "being traced", "md.take picks elements"],
    ),
    "ids of fractions": (lambda: X["b", X], ["take", "float32, not whole numbers"]),
}
