"""OLMo 2 and OLMoE."""

from __future__ import annotations

from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.models.families.adapter import MOST, Names, Said
from meshdsl.models.families.decoder import (
    ATTENTION,
    EXPERTS_TOO,
    NO_HEAD_DIM,
    NORMS_BEFORE,
    PROJECTIONS,
    QUERY_NORMS,
    SETTINGS,
    SHARED_MLP,
    Decoder,
    WithExperts,
    with_experts,
)
from meshdsl.models.families.qwen_moe import EXPERTS, ROUTER
from meshdsl.schema import switch, whole, with_defaults

NORMS_AFTER = {
    "post_attention_layernorm": ("attention_out_norm",),
    "post_feedforward_layernorm": ("mlp_out_norm",),
}
_SETTINGS = {
    **with_defaults(SETTINGS, vocab_size=50_304, rms_norm_eps=1e-5),
    "attention_bias": switch(False),
}


class Olmo2(Decoder):
    """OLMo 2: norms after sublayers, and of all queries and keys at once."""

    name = "olmo2"
    types = ("olmo2",)
    architecture = "Olmo2ForCausalLM"
    settings = {**_SETTINGS, "head_dim": NO_HEAD_DIM}
    choices = {"norm_place": "after", "query_norm": "heads"}
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, **QUERY_NORMS, **SHARED_MLP, **NORMS_AFTER}


class Olmoe(WithExperts):
    """OLMoE: norms of all queries and keys at once, and experts."""

    name = "olmoe"
    types = ("olmoe",)
    architecture = "OlmoeForCausalLM"
    settings = with_experts(
        with_defaults(
            _SETTINGS,
            hidden_size=2048,
            intermediate_size=2048,
            num_hidden_layers=16,
            num_attention_heads=16,
            max_position_embeddings=4096,
        ),
        head_dim=NO_HEAD_DIM,
        num_experts=whole(64, most=MOST),
        num_experts_per_tok=whole(8),
        norm_topk_prob=switch(False),
    )
    aliases = {"num_local_experts": "num_experts"}
    names = {key: name for key, name in EXPERTS_TOO.items() if key != "head_dim"}
    choices = {"query_norm": "heads"}
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, **QUERY_NORMS, **ROUTER, **NORMS_BEFORE}
    experts = EXPERTS

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        if (
            said.get("head_dim", found["d_model"] / found["heads"]) * found["heads"]
            != (found["d_model"])
        ):
            raise MeshDSLError(
                f"config.json: head_dim={said['head_dim']}: norms of queries have the size of the "
                f"residual stream, hidden_size={found['d_model']}"
            )
        return super().more(said, found, tensors)
