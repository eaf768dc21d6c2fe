"""A device's own part of an array that is whole: free, and its transpose is one all_gather.

By itself a slice of a replica transposes to a full-size psum of mostly zeros.
"""

from __future__ import annotations

import math

import jax
from jax import lax

from meshdsl.lowering.collectives import Axes, all_gather, position, varying
from meshdsl.lowering.linear import linear


def own_part(x, axes: Axes, dim: int, sizes) -> jax.Array:
    """This device's part along `dim`, of equal parts over `axes`. The transpose is free where `x` varies over `axes`."""
    parts = math.prod(sizes[a] for a in axes)
    size = x.shape[dim] // parts
    cut = lambda x: lax.dynamic_slice_in_dim(x, position(axes) * size, size, dim)  # noqa: E731
    if not varying(x).isdisjoint(axes):
        return cut(x)
    return linear(cut, lambda ct: all_gather(ct, axes, dim, varies=False), x)
