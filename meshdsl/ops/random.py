"""`md.random`: everything that is drawn with a key."""

from meshdsl.checked import hold
from meshdsl.ops.distributions import (
    bernoulli,
    bits,
    dropout,
    exponential,
    gumbel,
    normal,
    randint,
    truncated_normal,
    uniform,
)
from meshdsl.ops.sampling import categorical, permutation, permute

__all__ = [
    "bernoulli", "bits", "categorical", "dropout", "exponential", "gumbel", "normal", "permutation", "permute", "randint",
    "truncated_normal", "uniform",
]  # fmt: skip

hold(__all__, globals())
