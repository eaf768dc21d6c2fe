"""The layers of a transformer as they are before training, of what its architecture says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import meshdsl as md
from meshdsl.layers.attention import Attention
from meshdsl.layers.experts import Experts, swiglu
from meshdsl.layers.latent_attention import LatentAttention
from meshdsl.layers.mlp import MLP, SwiGLU, clamped_swiglu
from meshdsl.layers.norm import LayerNorm, Norm, RMSNorm
from meshdsl.models.architecture import ACTIVATIONS, CLAMPED, Architecture


def new_norm(config: Architecture, dims: Any) -> Norm:
    """A norm over `dims` as it is before training."""
    if config.choice("norm") == "layer":
        return LayerNorm.init(dims, epsilon=config.norm_epsilon)
    from_one = config.choice("norm_from_one") == "yes"
    return RMSNorm.init(dims, epsilon=config.norm_epsilon, from_one=from_one)


def new_attention(config: Architecture, key) -> Attention | LatentAttention:
    """The attention of a layer as it is before training."""
    dims, over = config.dims, config.choice("query_norm")
    if config.latent:
        return _new_latent_attention(config, key)
    heads, group = dims.get("heads") or dims["kv_heads"], dims.get("group")
    head_dim = dims["head_dim"]
    of_queries = (heads, head_dim) if group is None else (heads, group, head_dim)
    normed = {
        "none": (None, None),
        "head": (head_dim, head_dim),
        "heads": (of_queries, (heads, head_dim)),
    }[over]
    query_norm, key_norm = (None if each is None else new_norm(config, each) for each in normed)
    return Attention.init(
        key,
        dims["d_model"],
        heads,
        head_dim,
        group,
        bias=config.choice("biases"),
        out_std=_shrink(config) * (head_dim.size * config.heads) ** -0.5,
        query_norm=query_norm,
        key_norm=key_norm,
        scale=config.query_scale**-0.5 if config.query_scale else None,
        softcap=config.attention_softcap or None,
        sinks=config.choice("sinks") == "yes",
    )


def _new_latent_attention(config: Architecture, key) -> LatentAttention:
    names = ("d_model", "heads", "head_dim", "latent", "turned")
    dims = config.dims
    both = dims["head_dim"].size + config.turned
    scale = config.query_scale or float(both)
    if config.rotary_score_gain and config.rotary_factor > 1:
        gain = 1 + 0.1 * config.rotary_score_gain * math.log(config.rotary_factor)
        scale /= gain**4
    return LatentAttention.init(
        key,
        *(dims[name] for name in names),
        value_dim=dims["value_dim"],
        query_latent=dims.get("query_latent"),
        out_std=_shrink(config) * (dims["value_dim"].size * config.heads) ** -0.5,
        scale=None if scale == both else scale**-0.5,
    )


def new_mlp(config: Architecture, key, *, dense: bool = False) -> MLP | SwiGLU | Experts:
    """The feed-forward layer of a layer as it is before training.

    Args:
      dense: of one of the `dense_layers`, which have no experts.
    """
    if config.experts and not dense:
        return Experts.init(
            key,
            config.dims["d_model"],
            config.dims["d_ff"],
            config.dims["experts"],
            config.experts_used,
            out_std=_shrink(config) * config.dims["d_ff"].size ** -0.5,
            shared=config.experts_shared,
            shared_gate=config.experts_shared_gate,
            capacity=config.capacity,
            bias="mlp" in config.choice("biases"),
            activation=_of_both(config),
            biased=config.choice("router_bias") == "yes",
            scores=config.router_scores,
            normalise=config.router_normalise,
            scale=config.router_scale,
            groups=config.router_groups,
            groups_used=config.router_groups_used,
            offset=config.router_offset,
        )
    d_ff = config.dims["d_ff"]
    if dense and config.dense_d_ff:
        d_ff = md.Dim("d_ff", config.dense_d_ff)
    how: dict[str, Any] = {"bias": "mlp" in config.choice("biases")}
    how["out_std"] = _shrink(config) * d_ff.size**-0.5
    if config.choice("activation") == CLAMPED:
        how["both"] = _of_both(config)
    else:
        how["activation"] = ACTIVATIONS[config.choice("activation")]
    kind = SwiGLU if config.gated else MLP
    return kind.init(key, config.dims["d_model"], d_ff, **how)


def _of_both(config: Architecture) -> Callable[[Any, Any], Any]:
    """What comes of the arrays of gate and up, between the matrices."""
    if config.choice("activation") != CLAMPED:
        return swiglu
    return clamped_swiglu(config.activation_limit, config.activation_slope)


def _shrink(config: Architecture) -> float:
    """GPT-2: what is added to the residual stream starts smaller the more layers add to it."""
    return (2 * config.layers) ** -0.5
