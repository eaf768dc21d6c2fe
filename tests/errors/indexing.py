"""What is wrong with an index by name, and what the error says."""

import jax
import jax.numpy as jnp

from tests.errors.common import X

ERRORS = [
    (lambda: X[0], 't[...] … names, no order … t["a", 3], t["a", 0:4]'),
    (lambda: X["b"], 't["b", 3] … nothing stands after `b` … [a=4, b=8]'),
    (lambda: X["bb", 3], "t[...]: no dim `bb` in [a=4, b=8] … `b`?"),
    (lambda: X["b", 8], "8 is outside of b=8 … [a=4, b=8] … from -8 to 7"),
    (lambda: X["b", -9], "-9 is outside of b=8"),
    (lambda: X["b", 0:0]["b", 0], "0 is outside of b=0 … has no element"),
    (lambda: X["b", 0:4, "b", 1], '`b` is indexed twice … t["b", ...]["b", ...]'),
    (lambda: X["b", 1.5], "along b=8 of [a=4, b=8] … not 1.5"),
    (lambda: X["b", jnp.arange(2)], "give an array dims with md.tensor"),
    (lambda: X["b", ::0], "the step of a slice of b=8 is 0"),
    (lambda: X["b", :1.5], "the stop of a slice of b=8 … not 1.5"),
    (
        lambda: jax.eval_shape(lambda i: X["b", i:], jnp.int8(1)),
        "the start of a slice of b=8 … being traced … md.take picks elements",
    ),
]
