"""Stack: one layer repeated, its parameters stacked over a dim, run by one scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.fields import AUTO
from meshdsl.ops.checkpoint import POLICIES
from meshdsl.ops.scan import scan_as

CARRY = "activations"  # the save point of what each layer gets
# What `remat` may be, from what keeps the least for the backward pass to what keeps the most; and
# "auto", which the commands replace by one of the others, because they know the machine.
REMATS = (*POLICIES, "none", AUTO)


def recomputed(
    fn: Callable, remat: str, *, offload: tuple[str, ...] = (), in_scan: bool = False
) -> Callable:
    """`fn`, of which the backward pass computes again what `remat` does not keep.

        block = recomputed(lambda block, x: block(x), "attention")
        block(layer, x)

    Args:
      remat: one of `REMATS`: "none" gives `fn` as it is, "auto" is "full" where nobody has replaced
        it, and all others are policies of `md.checkpoint`.
      offload, in_scan: as for `md.checkpoint`.

    Raises:
      MeshDSLError: there is no such policy; `offload` where nothing is recomputed, so that more
        would wait than what it names.
    """
    if remat != "none":
        policy = "full" if remat == AUTO else remat
        return md.checkpoint(fn, policy, offload=offload, in_scan=in_scan)
    if offload:
        raise md.MeshDSLError(
            f"offload of {', '.join(offload)}: needs layers that are recomputed, `model.remat` "
            "other than none"
        )
    return fn


class Stack(PyTreeNode):
    """Copies of a layer over the dim `layers`, one after another.

        blocks = Stack.init(key, lambda key: Block.init(key, d_model), layers)
        blocks(x)          # blocks of `block(x)`, each with parameters of its own
        blocks(x, causal=True)

    Attributes:
      layer: one layer whose Tensors have `layers` in front.
      remat: what is kept for the backward pass, see `recomputed`.
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

    def scan(self, fn: Callable, carry, xs=(), *, offload: Iterable[str] = ()):
        """Run `carry, y = fn(layer, carry, x)` for each layer in turn.

        Args:
          xs: a tree of Tensors with the dim `layers`; each layer gets its own `x` of it.
          offload: save points of the layer that wait for the backward pass in the memory of the
            host, whether `remat` keeps them or not; "activations" is the carry, a Tensor.

        Returns:
          The last carry, and the results `y` with the dim `layers` in front.

        Raises:
          MeshDSLError: `offload` where nothing is recomputed, or of what the layer does not mark; a
        rule of the layout splits `layers` and does not say into which microbatches a pipeline cuts.
        """
        offload = tuple(offload)

        def body(carry, both):
            layer, x = both
            return fn(layer, md.checkpoint_name(carry, CARRY) if CARRY in offload else carry, x)

        # Compilers make no loop of a single turn.
        in_scan = self.layers.size > 1
        body = recomputed(body, self.remat, offload=offload, in_scan=in_scan)
        return scan_as("scan", body, carry, (self.layer, xs), self.layers, of_layers=True)
