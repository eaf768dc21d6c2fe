"""Qwen2-MoE and Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshdsl.models.families.adapter import MOST, Names, Said
from meshdsl.models.families.decoder import (
    ATTENTION,
    EXPERTS_TOO,
    KINDS,
    NO_HEAD_DIM,
    NORMS_BEFORE,
    PROJECTIONS,
    QKV,
    QUERY_NORMS,
    SETTINGS,
    WithExperts,
    alternating,
    with_experts,
)
from meshdsl.models.families.qwen import WINDOWS
from meshdsl.schema import only, switch, whole, with_defaults

ROUTER = {"mlp.gate": ("mlp.router",)}
EXPERTS = {
    "mlp.experts.{}.gate_proj.weight": ("mlp.gate",),
    "mlp.experts.{}.up_proj.weight": ("mlp.up",),
    "mlp.experts.{}.down_proj.weight": ("mlp.down",),
}
_SETTINGS = with_experts(
    with_defaults(
        SETTINGS,
        vocab_size=151_936,
        hidden_size=2048,
        num_hidden_layers=24,
        max_position_embeddings=32_768,
    ),
    norm_topk_prob=switch(False),
    head_dim=NO_HEAD_DIM,
    **WINDOWS,
)


class Qwen2Moe(WithExperts):
    """Qwen2-MoE: an expert that all tokens use, with a gate."""

    name = "qwen2_moe"
    types = ("qwen2_moe",)
    architecture = "Qwen2MoeForCausalLM"
    settings = {
        **with_defaults(_SETTINGS, num_attention_heads=16),
        "num_key_value_heads": whole(16),
        "num_experts": whole(60, most=MOST),
        "num_experts_per_tok": whole(4),
        "moe_intermediate_size": whole(1408),
        "shared_expert_intermediate_size": whole(5632),
        "sliding_window": whole(4096, least=0, null=True),  # 0 is written for none
        "max_window_layers": whole(28, least=0),
        "layer_types": KINDS,
        "qkv_bias": switch(True),
    }
    names = {
        **EXPERTS_TOO,
        "d_ff": "moe_intermediate_size",
        "experts_shared": "shared_expert_intermediate_size",
    }
    choices = {"biases": QKV}
    biased = {"qkv_bias": QKV}
    layers = {
        **PROJECTIONS,
        **ROUTER,
        **NORMS_BEFORE,
        "mlp.shared_expert.gate_proj": ("mlp.shared.gate",),
        "mlp.shared_expert.up_proj": ("mlp.shared.up",),
        "mlp.shared_expert.down_proj": ("mlp.shared.down",),
        "mlp.shared_expert_gate": ("mlp.shared_gate",),
    }
    experts = EXPERTS

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        return super().more(said, found, tensors) | {"experts_shared_gate": True}

    def usual_window(self, said: Said, window: int | None) -> Callable[[int], bool]:
        some, full = said["use_sliding_window"], said["max_window_layers"]
        return lambda layer: some and layer < full and alternating(layer)


class Qwen3Moe(WithExperts):
    """Qwen3-MoE: Qwen3 with experts; where it has a window, all layers have it."""

    name = "qwen3_moe"
    types = ("qwen3_moe",)
    architecture = "Qwen3MoeForCausalLM"
    settings = {
        **_SETTINGS,
        "num_key_value_heads": whole(4),
        "num_experts": whole(128, most=MOST),
        "num_experts_per_tok": whole(8),
        "moe_intermediate_size": whole(768),
        "attention_bias": switch(False),
        "layer_types": only(None),
    }
    aliases = {"num_local_experts": "num_experts"}
    names = {**EXPERTS_TOO, "d_ff": "moe_intermediate_size"}
    choices = {"query_norm": "head"}
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, **QUERY_NORMS, **ROUTER, **NORMS_BEFORE}
    experts = EXPERTS

    def written(self, model: Any) -> dict[str, Any]:
        return super().written(model) | {"num_local_experts": model.experts}
