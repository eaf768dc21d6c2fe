"""Layers: frozen dataclasses of Tensors that compute with them.

They know nothing of meshes, axes or collectives. Each says which dims go in, which come out and
which its parameters have; docs/layers.md has them on one page. A layer of your own is written as
these are:

    class Gated(PyTreeNode):                     # flax.struct.PyTreeNode: a frozen dataclass
        up: md.Tensor

        @classmethod
        def init(cls, key, d_model: md.Dim, d_ff: md.Dim):
            return cls(md.normal(key, (d_model, d_ff), ins=d_model))

        def __call__(self, x: md.Tensor) -> md.Tensor:
            return md.silu(md.dot(x, self.up))
"""

from meshdsl.layers.attended import Cache, Documents, Window
from meshdsl.layers.attention import Attention
from meshdsl.layers.conv import Conv, ConvTranspose
from meshdsl.layers.dropout import Dropout
from meshdsl.layers.embedding import Embedding
from meshdsl.layers.experts import Experts, Load
from meshdsl.layers.latent_attention import LatentAttention
from meshdsl.layers.linear import Linear
from meshdsl.layers.loss import classification_loss, cross_entropy
from meshdsl.layers.mlp import MLP, MLPS, SwiGLU
from meshdsl.layers.norm import NORMS, GroupNorm, LayerNorm, RMSNorm
from meshdsl.layers.relative import RelativeBias
from meshdsl.layers.rotary import LinearScaling, Llama3Scaling, YarnScaling, angles, rotate
from meshdsl.layers.router import Router
from meshdsl.layers.stack import REMATS, Stack, recomputed

__all__ = [
    "MLP",
    "MLPS",
    "NORMS",
    "REMATS",
    "Attention",
    "Cache",
    "Conv",
    "ConvTranspose",
    "Documents",
    "Dropout",
    "Embedding",
    "Experts",
    "GroupNorm",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "Load",
    "RMSNorm",
    "RelativeBias",
    "Router",
    "Stack",
    "SwiGLU",
    "Window",
    "YarnScaling",
    "angles",
    "classification_loss",
    "cross_entropy",
    "recomputed",
    "rotate",
]

if __name__ != "meshdsl.layers":  # a second copy of each class, from the root of a clone
    raise ImportError("import this package as `meshdsl.layers`")
