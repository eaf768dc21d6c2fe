"""Stack: one layer repeated, its parameters stacked over a dim, run by one scan."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md

CARRY = "layer input"  # the name under which an offloaded carry is known to `md.checkpoint`


class Stack(PyTreeNode):
    """Copies of a layer over the dim `layers`.

    Attributes:
      layer: one layer whose Tensors have `layers` in front.
      remat: what the backward pass recomputes: "none", or a policy of `md.checkpoint`.
    """

    layer: PyTreeNode
    layers: md.Dim = struct.field(pytree_node=False)
    remat: str = struct.field(pytree_node=False, default="full")

    @classmethod
    def init(cls, key, init: Callable, layers: md.Dim, *, remat: str = "full"):
        """`init(key)` makes one layer; each copy gets a key of its own."""
        stacked = jax.vmap(init)(jax.random.split(key, layers.size))
        add = lambda t: md.Tensor(t.array, (layers, *t.dims), t.role)
        return cls(
            jax.tree.map(add, stacked, is_leaf=lambda x: isinstance(x, md.Tensor)), layers, remat
        )

    def scan(self, fn: Callable, carry, xs=(), *, offload: bool = False):
        """Run `carry, y = fn(layer, carry, x)` for each layer in turn.

        Args:
          xs: a tree of Tensors with the dim `layers`; each layer gets its own `x` of it.
          offload: the carry, a Tensor, waits for the backward pass in the memory of the host.

        Returns:
          The last carry, and the results `y` with the dim `layers` in front.

        Raises:
          MeshDSLError: `offload` where nothing is recomputed, so that more than the carry waits.
        """
        if offload and self.remat == "none":
            raise md.MeshDSLError(
                "offload of activations: needs layers that are recomputed, `model.remat` other "
                "than none"
            )

        def body(carry, both):
            layer, x = both
            return fn(layer, md.checkpoint_name(carry, CARRY) if offload else carry, x)

        if self.remat != "none":
            body = md.checkpoint(body, self.remat, offload=(CARRY,) if offload else ())
        return md.scan(body, carry, (self.layer, xs), dim=self.layers)
