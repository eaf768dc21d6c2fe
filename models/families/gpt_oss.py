"""gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshdsl.models.families.adapter import MOST, Said
from meshdsl.models.families.decoder import (
    ATTENTION,
    BIASES,
    CLAMPED,
    EXPERTS_TOO,
    KINDS,
    NORMS_BEFORE,
    PROJECTIONS,
    SETTINGS,
    WithExperts,
    alternating,
    with_experts,
)
from meshdsl.schema import number, only, switch, whole, with_defaults

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


class GptOss(WithExperts):
    """gpt-oss: sinks, a clamped activation, and biases everywhere."""

    name = "gpt_oss"
    types = ("gpt_oss",)
    architecture = "GptOssForCausalLM"
    settings = with_experts(
        with_defaults(
            SETTINGS,
            vocab_size=201_088,
            hidden_size=2880,
            intermediate_size=2880,
            num_hidden_layers=36,
            num_attention_heads=64,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=150_000.0,
        ),
        hidden_act=only("silu"),
        num_key_value_heads=whole(8),
        head_dim=whole(64),
        num_local_experts=whole(128, most=MOST),
        num_experts_per_tok=whole(4),
        sliding_window=whole(128, null=True),
        layer_types=KINDS,
        attention_bias=switch(True),
        swiglu_limit=number(7.0, above=0),
        swiglu_alpha=number(1.702, above=0),
    )
    aliases = {"num_experts": "num_local_experts"}
    names = {
        **EXPERTS_TOO,
        "experts": "num_local_experts",
        "activation_limit": "swiglu_limit",
        "activation_slope": "swiglu_alpha",
    }
    choices = {"biases": BIASES, "activation": CLAMPED, "sinks": "yes", "router_bias": "yes"}
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, "mlp.router": ("mlp.router",), **NORMS_BEFORE}
    vectors = {"self_attn.sinks": "attention.sinks"}
    experts = {
        "mlp.experts.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.experts.gate_up_proj_bias": ("mlp.biases.0", "mlp.biases.1"),
        "mlp.experts.down_proj": ("mlp.down",),
        "mlp.experts.down_proj_bias": ("mlp.biases.2",),
    }

    def rotary(self, said: Said) -> dict[str, Any]:
        if said["rope_parameters"] is None:
            said = {**said, "rope_parameters": _YARN}
        return super().rotary(said)

    def usual_window(self, said: Said, window: int | None) -> Callable[[int], bool]:
        return alternating

    def written(self, model: Any) -> dict[str, Any]:
        theirs = super().written(model)
        # Without a word they would be scaled.
        return theirs | {"rope_scaling": theirs["rope_scaling"] or {"rope_type": "default"}}
