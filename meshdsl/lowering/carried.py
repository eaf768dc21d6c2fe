"""Tensors as the loops, branches and transformations of JAX carry them: with all their arrays.

As a node of a pytree a Tensor is one array, and inside a lowering that array is brought to a split
in which it can meet those of other Tensors with its dims, see `resharding.leaf`. For a body that
JAX traces nothing is to be moved: what enters it is wrapped by `carried`, and what it gets is
unwrapped by `uncarried`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from meshdsl.lowering.scope import copy_of, with_copy
from meshdsl.tensor import Tensor, is_tensor


@jax.tree_util.register_pytree_node_class
class Carried:
    """A Tensor as a node of a pytree whose leaves are its arrays: its own, and that of its copy."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def tree_flatten(self):
        x = self.tensor
        copy = copy_of(x)
        # The level stands beside the placement, whose equality passes over it.
        level = x.placement and x.placement.level
        copies = () if copy is None else (Carried(copy),)
        return (x.stored, *copies), (x.dims, x.role, x.placement, level)

    @classmethod
    def tree_unflatten(cls, aux, children):
        dims, role, placement, level = aux
        placement = placement and placement._replace(level=level)
        stored, *copies = children
        return cls(with_copy(Tensor(stored, dims, role, placement), *[c.tensor for c in copies]))


def carried(tree):
    """`tree` with every Tensor wrapped."""
    return jax.tree.map(lambda x: Carried(x) if is_tensor(x) else x, tree, is_leaf=is_tensor)


def uncarried(tree):
    """The inverse of `carried`."""
    wrapped = lambda x: isinstance(x, Carried)
    return jax.tree.map(lambda x: x.tensor if wrapped(x) else x, tree, is_leaf=wrapped)


def carrying(fn: Callable) -> Callable:
    """`fn`, which takes and returns trees of Tensors, as a function of carried trees."""
    return lambda *args: carried(fn(*uncarried(args)))
