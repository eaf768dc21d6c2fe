"""How each primitive is evaluated. Importing this package fills the table of rules."""

from meshdsl.plain_jax.rules import (
    attention,
    control,
    convolution,
    elementwise,
    index,
    keys,
    lookup,
    order,
    pool,
    product,
    ragged,
    reduce,
    shape,
)

__all__ = [
    "attention",
    "control",
    "convolution",
    "elementwise",
    "index",
    "keys",
    "lookup",
    "order",
    "pool",
    "product",
    "ragged",
    "reduce",
    "shape",
]
