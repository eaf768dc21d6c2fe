"""A block of a transformer: attention and a feed-forward layer; and figures of their experts."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.attended import Cache
from meshdsl.layers.attention import Attention
from meshdsl.layers.experts import Experts, Load
from meshdsl.layers.latent_attention import LatentAttention
from meshdsl.layers.mlp import MLP, SwiGLU
from meshdsl.layers.norm import Norm
from meshdsl.models.architecture import Architecture
from meshdsl.models.initial_layers import new_attention, new_mlp, new_norm


class Block(PyTreeNode):
    """Two sublayers, attention and a feed-forward layer, whose results are added to `x`.

    Attributes:
      attention_norm: the norm of attention's input; None if the input is `x` itself.
      mlp_norm: the norm of the feed-forward layer's input; None if the input is `x` itself, or if
        both sublayers share the norm of attention.
      attention_out_norm: the norm of attention's result, before it is added; None for none.
      mlp_out_norm: the norm of the feed-forward layer's result, before it is added; None for none.
      parallel: whether both sublayers read the `x` of the block. If not, the second one reads `x`
        after the first one's result was added.
    """

    attention_norm: Norm | None
    attention: Attention | LatentAttention
    mlp_norm: Norm | None
    mlp: MLP | SwiGLU | Experts
    attention_out_norm: Norm | None = None
    mlp_out_norm: Norm | None = None
    parallel: bool = struct.field(pytree_node=False, default=False)

    @classmethod
    def init(cls, key, config: Architecture, *, dense: bool = False):
        """A block before training.

        Args:
          dense: whether it is one of the blocks without experts before those that have some.
        """
        attention, mlp = jax.random.split(key)
        norm = lambda here: new_norm(config, config.dims["d_model"]) if here else None
        place = config.choice("norm_place")
        before, after = place != "after", place != "before"
        return cls(
            attention_norm=norm(before),
            attention=new_attention(config, attention),
            mlp_norm=norm(before and config.parallel != "shared"),
            mlp=new_mlp(config, mlp, dense=dense),
            attention_out_norm=norm(after),
            mlp_out_norm=norm(after),
            parallel=config.parallel != "none",
        )

    def __call__(
        self,
        x: md.Tensor,
        length: md.Dim,
        dropout: Callable[[md.Tensor, int], md.Tensor],
        *,
        with_load: bool = False,
        **options,
    ) -> tuple[md.Tensor, Cache, Load | None]:
        """The next `x`, the keys and values, and how experts were used.

        Args:
          dropout: called with the result of a sublayer, and with the number of the sublayer.
          with_load: whether the last result is a `Load`, if there are experts; else it is None.
          options: further arguments of `Attention.prefill`.
        """
        attend = lambda h: self.attention.prefill(h, length=length, **options)
        return self._around(x, attend, dropout, with_load=with_load)

    def step(
        self, x: md.Tensor, cache: Cache, position: md.Tensor, layer: md.Tensor, **options
    ) -> tuple[md.Tensor, Cache]:
        """The next `x` and the cache, for one position of each sequence.

        Args:
          options: further arguments of `Attention.step`.
        """
        attend = lambda h: self.attention.step(h, cache, position, layer=layer, **options)
        return self._around(x, attend, lambda y, _: y)[:2]

    def _around(
        self, x: md.Tensor, attend: Callable, dropout: Callable, *, with_load: bool = False
    ):
        given = _normed(self.attention_norm, x)
        attended, cache = attend(given)
        after = x + dropout(_normed(self.attention_out_norm, attended), 0)
        if not self.parallel:
            given = _normed(self.mlp_norm, after)
        elif self.mlp_norm is not None:
            given = self.mlp_norm(x)
        if with_load and isinstance(self.mlp, Experts):
            result, load = self.mlp.with_load(given)
        else:
            result, load = self.mlp(given), None
        return after + dropout(_normed(self.mlp_out_norm, result), 1), cache, load


def _normed(norm: Norm | None, x: md.Tensor) -> md.Tensor:
    return x if norm is None else norm(x)


def figures_of(load: Load) -> dict[str, md.Tensor]:
    """The figures of experts that a run writes down, for each layer and as means over all layers.

    `load_max` is the load of the most loaded expert as a multiple of the mean load. `load_entropy`
    is the entropy of the shares of the experts, as a fraction of that of equal shares.
    """
    routes = load.share.dim("routes")
    share = md.replicate(load.share)
    entropy = -md.sum(share * md.log(md.maximum(share, 1e-30)), routes)
    figures = {
        "load_max": md.max(share, routes) * routes.size,
        "load_entropy": entropy / max(math.log(routes.size), 1e-9),
        "dropped": md.replicate(load.dropped),
    }
    report = {"balance": md.mean(load.balance)}
    report |= {name: md.mean(t) for name, t in figures.items()}
    for name, t in figures.items():
        report |= {f"{name}_{i}": t["layers", i] for i in range(t.dim("layers").size)}
    return {name: md.stop_gradient(t) for name, t in report.items()}
