"""Errors of random numbers, permutations and dropout."""

import jax
import numpy as np

import meshdsl as md
from tests.errors.common import A, B, C, X

KEY = jax.random.key(0)

ERRORS = {
    # Keys.
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
    # Distributions.
    "truncated_normal of nothing": (
        lambda: md.random.truncated_normal(KEY, (A,), 2.0, 1.0),
        ["truncated_normal", "2.0 is not below 1.0"],
    ),
    "randint of nothing": (lambda: md.random.randint(KEY, (A,), 3, 3), ["randint", "from 3 to 3"]),
    "randint of fractions": (
        lambda: md.random.randint(KEY, (A,), 0.5, 3),
        ["randint", "whole number", "0.5"],
    ),
    "bernoulli of an array": (
        lambda: md.random.bernoulli(KEY, np.ones(4), (A,)),
        ["bernoulli", "shape (4,)", "md.tensor"],
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
    "categorical, half an index": (
        lambda: md.random.categorical(KEY, X, B, top_k=1.5),
        ["categorical: `top_k` is a whole number or None", "not 1.5"],
    ),
    # Permutations and dropout.
    "permute, no such dim": (
        lambda: md.random.permute(KEY, X, C),
        ["permute", "no dim `c` in [a=4, b=8]"],
    ),
    "dropout of everything": (lambda: md.dropout(X, 1, KEY), ["dropout", "less than 1", "not 1"]),
    "dropout, a word": (
        lambda: md.dropout(X, "0.1", KEY),
        ["dropout: `rate` is a number, not '0.1'"],
    ),
}
