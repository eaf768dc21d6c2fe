"""Errors of random numbers, permutations and dropout."""

import jax
import numpy as np

import meshdsl as md
from tests.errors.common import A, B, X

KEY = jax.random.key(0)

ERRORS = [
    # Keys.
    (lambda: md.random.uniform(3, (A,)), "random … jax.random.key … 3"),
    (lambda: md.random.bits(jax.random.key(0, impl="rbg"), (A,)), "random … rbg … threefry2x32"),
    # Distributions.
    (
        lambda: md.random.truncated_normal(KEY, (A,), 2.0, 1.0),
        "truncated_normal … 2.0 is not below 1.0",
    ),
    (lambda: md.random.randint(KEY, (A,), 3, 3), "randint … from 3 to 3"),
    (lambda: md.random.bernoulli(KEY, np.ones(4), (A,)), "bernoulli … shape (4,) … md.tensor"),
    (
        lambda: md.random.categorical(KEY, X, B, temperature=-1.0),
        "categorical … temperature … at least 0 … -1.0",
    ),
    (lambda: md.random.categorical(KEY, X, B, top_k=9), "categorical: top_k … b=8, not 9"),
    (lambda: md.random.categorical(KEY, X, B, top_p=0.0), "categorical: top_p … above 0 … not 0.0"),
    (
        lambda: md.random.categorical(KEY, X, B, top_k=1.5),
        "categorical: `top_k` is a whole number or None, not 1.5",
    ),
    # Permutations and dropout.
    (lambda: md.dropout(X, 1, KEY), "dropout … less than 1, not 1"),
    (lambda: md.dropout(X, "0.1", KEY), "dropout: `rate` is a number, not '0.1'"),
]
