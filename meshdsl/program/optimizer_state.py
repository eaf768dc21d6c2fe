"""Finds the state of an optimizer in a tree, by the classes that optax makes of it.

What an optimizer keeps is split by other lists of a layout than what it updates. A Tensor doesn't
say which it is: the moments of Adam have the dims and the role of their parameters.
"""

from __future__ import annotations

from typing import Any

import jax

from meshdsl.tensor import is_tensor


def in_optimizer_state(tree: Any) -> list[bool]:
    """For each leaf of `tree` (a Tensor is one) whether it is in the state of an optax optimizer.

    That is so below a class of optax whose name ends in `State`, such as `ScaleByAdamState`.
    """
    found: list[bool] = []
    for piece in jax.tree.leaves(tree, is_leaf=lambda x: is_tensor(x) or _is_state(x)):
        is_state = _is_state(piece)
        leaves = jax.tree.leaves(piece, is_leaf=is_tensor) if is_state else [piece]
        found += [is_state] * len(leaves)
    return found


def _is_state(x: Any) -> bool:
    cls = type(x)
    return cls.__module__.partition(".")[0] == "optax" and cls.__name__.endswith("State")
