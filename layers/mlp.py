"""The feed-forward layer: two matrices and a nonlinearity, or three with a gate."""

from __future__ import annotations

from collections.abc import Callable

import jax
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


class SwiGLU(PyTreeNode):
    """A matrix with a gate, and a matrix: `down(silu(gate(x)) * up(x))` (Shazeer, 2020).

        mlp = SwiGLU.init(key, d_model, d_ff)
        mlp(x)   # [batch, length, d_model] -> the same

    Attributes:
      gate: from d_model to d_ff.
      up: the same.
      down: from d_ff to d_model.
      activation: of the gate, a component-wise function of a Tensor; with `md.gelu` it is GeGLU.
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[md.Tensor], md.Tensor] = struct.field(pytree_node=False, default=md.silu)

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
    ):
        """Weights as those of `Linear`.

        Args:
          out_std: the standard deviation of the weights of `down`.
        """
        gate, up, down = jax.random.split(key, 3)
        return cls(
            gate=Linear.init(gate, d_model, d_ff, bias=bias),
            up=Linear.init(up, d_model, d_ff, bias=bias),
            down=Linear.init(down, d_ff, d_model, bias=bias, std=out_std),
            activation=activation,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The other dims of `x`, then d_model, which `x` has too."""
        # Both can be kept as they come from their matrices: what follows is cheap to compute again,
        # and their product alone would not do for the slopes.
        gate, up = (md.checkpoint_name(matrix(x), HIDDEN) for matrix in (self.gate, self.up))
        return self.down(md.materialize(self.activation(gate) * up))


MLPS = {"gelu": MLP, "swiglu": SwiGLU}
