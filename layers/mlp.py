"""The feed-forward layer: two matrices and a nonlinearity, or three with a gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.linear import Linear
from meshdsl.ops.checkpoint import HIDDEN


class MLP(PyTreeNode):
    """A matrix, a nonlinearity and a matrix: `down(activation(up(x)))`.

        mlp = MLP.init(key, d_model, d_ff)
        mlp(x)   # [batch, length, d_model] -> the same

    Attributes:
      up: from d_model to d_ff.
      down: from d_ff to d_model.
      activation: a component-wise function of a Tensor.
    """

    up: Linear
    down: Linear
    activation: Callable[[md.Tensor], md.Tensor] = struct.field(pytree_node=False, default=md.gelu)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        d_ff: md.Dim,
        *,
        bias: bool = False,
        out_std: float | None = None,
        activation: Callable[[md.Tensor], md.Tensor] = md.gelu,
    ):
        """Weights as those of `Linear`.

        Args:
          out_std: the standard deviation of the weights of `down`.
        """
        up, down = jax.random.split(key)
        return cls(
            up=Linear.init(up, d_model, d_ff, bias=bias),
            down=Linear.init(down, d_ff, d_model, bias=bias, std=out_std),
            activation=activation,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The other dims of `x`, then d_model, which `x` has too."""
        hidden = self.activation(md.checkpoint_name(self.up(x), HIDDEN))
        return self.down(md.materialize(hidden))


@cache  # so that models with the same numbers have the same function
def clamped_swiglu(limit: float, slope: float) -> Callable[[Any, Any], Any]:
    """The activation of gpt-oss: `gate * sigmoid(slope * gate) * (up + 1)` of clamped arrays.

    Args:
      limit: `gate` is at most so much, and `up` from minus that on.
    """

    def activation(gate, up):
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return gate * jax.nn.sigmoid(slope * gate) * (up + 1)

    return activation


class SwiGLU(PyTreeNode):
    """A matrix with a gate, and a matrix: `down(silu(gate(x)) * up(x))` (Shazeer, 2020).

        mlp = SwiGLU.init(key, d_model, d_ff)
        mlp(x)   # [batch, length, d_model] -> the same

    Attributes:
      gate: from d_model to d_ff.
      up: the same.
      down: from d_ff to d_model.
      activation: of the gate, a component-wise function of a Tensor; with `md.gelu` it is GeGLU.
      both: of the arrays that gate and up give, in the place of `activation(gate) * up`; None for
        that.
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[md.Tensor], md.Tensor] = struct.field(pytree_node=False, default=md.silu)
    both: Callable[[Any, Any], Any] | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        d_ff: md.Dim,
        *,
        bias: bool = False,
        out_std: float | None = None,
        activation: Callable[[md.Tensor], md.Tensor] = md.silu,
        both: Callable[[Any, Any], Any] | None = None,
    ):
        """Weights as those of `Linear`.

        Args:
          out_std: the standard deviation of the weights of `down`.
          activation, both: see the attributes.
        """
        gate, up, down = jax.random.split(key, 3)
        return cls(
            gate=Linear.init(gate, d_model, d_ff, bias=bias),
            up=Linear.init(up, d_model, d_ff, bias=bias),
            down=Linear.init(down, d_ff, d_model, bias=bias, std=out_std),
            activation=activation,
            both=both,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The other dims of `x`, then d_model, which `x` has too."""
        # Both can be kept as they come from their matrices: what follows is cheap to compute again,
        # and their product alone would not do for the slopes.
        gate, up = (md.checkpoint_name(matrix(x), HIDDEN) for matrix in (self.gate, self.up))
        if self.both is not None:
            return self.down(md.materialize(md.map(self.both, gate, up, name="activation")))
        return self.down(md.materialize(self.activation(gate) * up))


MLPS = {"gelu": MLP, "swiglu": SwiGLU}
