"""The feed-forward layer: two matrices and a nonlinearity, or three with a gate."""

from __future__ import annotations

import jax
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.linear import Linear


class MLP(PyTreeNode):
    """A matrix, a GELU and a matrix: `down(gelu(up(x)))`."""

    up: Linear
    down: Linear

    @classmethod
    def init(cls, key, d_model: md.Dim, d_ff: md.Dim, *, bias: bool, out_std: float):
        up, down = jax.random.split(key)
        return cls(
            up=Linear.init(up, (d_model,), (d_ff,), bias=bias),
            down=Linear.init(down, (d_ff,), (d_model,), bias=bias, std=out_std),
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        return self.down(md.gelu(self.up(x)))


class SwiGLU(PyTreeNode):
    """A matrix with a gate, and a matrix: `down(silu(gate(x)) * up(x))` (Shazeer, 2020)."""

    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def init(cls, key, d_model: md.Dim, d_ff: md.Dim, *, bias: bool, out_std: float):
        gate, up, down = jax.random.split(key, 3)
        return cls(
            gate=Linear.init(gate, (d_model,), (d_ff,), bias=bias),
            up=Linear.init(up, (d_model,), (d_ff,), bias=bias),
            down=Linear.init(down, (d_ff,), (d_model,), bias=bias, std=out_std),
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        return self.down(md.silu(self.gate(x)) * self.up(x))


MLPS = {"gelu": MLP, "swiglu": SwiGLU}
