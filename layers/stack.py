"""Stack: one layer repeated, its parameters stacked over a dim, run by one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md

CARRY = "layer input"  # the name under which an offloaded carry is known to `md.checkpoint`


class Stack(PyTreeNode):
    """Copies of a layer over the dim `layers`, one after another.

        blocks = Stack.init(key, lambda key: Block.init(key, d_model), layers)
        blocks(x)          # blocks of `block(x)`, each with parameters of its own
        blocks(x, causal=True)

    Attributes:
      layer: one layer whose Tensors have `layers` in front.
      remat: what the backward pass recomputes: "none", or a policy of `md.checkpoint`.
    """

    layer: Any
    layers: md.Dim = struct.field(pytree_node=False)
    remat: str = struct.field(pytree_node=False, default="full")

    @classmethod
    def init(cls, key, init: Callable, layers: md.Dim, *, remat: str = "full"):
        """`init(key)` makes one layer, of Tensors and dims; each copy gets a key of its own."""
        keys = md.tensor(jax.random.split(key, layers.size), layers)
        return cls(md.over(layers, lambda key: init(key.array))(keys), layers, remat)

    def __call__(self, x, *args, key=None, **how):
        """`x = layer(x, *args, **how)` for each layer in turn: the last `x`.

        Args:
          x: a Tensor, or a tree of them, whose dims and dtypes no layer changes.
          args, how: the same for each layer.
          key: a JAX PRNG key; with it, each layer is given one of its own, as `key=`.
        """
        if key is None:
            return self.scan(lambda layer, x, _: (layer(x, *args, **how), ()), x)[0]
        keys = jax.random.split(key, self.layers.size)
        return self.scan(lambda layer, x, k: (layer(x, *args, key=k, **how), ()), x, keys)[0]

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
