"""Mistral and Mixtral."""

from __future__ import annotations

from meshdsl.models.families.adapter import MOST
from meshdsl.models.families.decoder import (
    EXPERTS_TOO,
    NORMS_BEFORE,
    PROJECTIONS,
    SETTINGS,
    Decoder,
    WithExperts,
    with_experts,
)
from meshdsl.schema import Setting, only, whole, with_defaults

# `transformers` reads a file with this setting, whatever it says, as another family.
_MINISTRAL = Setting("none: a mistral with it is a ministral, not known here", lambda value: False)
_SETTINGS = with_defaults(
    SETTINGS, intermediate_size=14_336, max_position_embeddings=131_072, num_key_value_heads=8
)


class Mistral(Decoder):
    """Mistral, of which all layers have the window."""

    name = "mistral"
    types = ("mistral",)
    architecture = "MistralForCausalLM"
    settings = {
        **_SETTINGS,
        "sliding_window": whole(4096, null=True),
        "layer_types": _MINISTRAL,
    }


class Mixtral(WithExperts):
    """Mixtral: Mistral with experts."""

    name = "mixtral"
    types = ("mixtral",)
    architecture = "MixtralForCausalLM"
    settings = with_experts(
        with_defaults(_SETTINGS, rms_norm_eps=1e-5, rope_theta=1e6),
        num_local_experts=whole(8, most=MOST),
        num_experts_per_tok=whole(2),
        sliding_window=whole(None),
        layer_types=only(None),
    )
    aliases = {"num_experts": "num_local_experts"}
    names = {**EXPERTS_TOO, "experts": "num_local_experts"}
    layers = {**PROJECTIONS, "block_sparse_moe.gate": ("mlp.router",), **NORMS_BEFORE}
    experts = {
        "block_sparse_moe.experts.{}.w1.weight": ("mlp.gate",),
        "block_sparse_moe.experts.{}.w3.weight": ("mlp.up",),
        "block_sparse_moe.experts.{}.w2.weight": ("mlp.down",),
    }
