"""DeepSeek-V2 and DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from meshdsl.errors import MeshDSLError
from meshdsl.models.families import rope
from meshdsl.models.families.adapter import MOST, Modules, Names, Said
from meshdsl.models.families.decoder import (
    EXPERTS_TOO,
    NO_HEAD_DIM,
    NORMS_BEFORE,
    SETTINGS,
    SHARED_MLP,
    WithExperts,
    with_experts,
)
from meshdsl.models.families.qwen_moe import EXPERTS, ROUTER
from meshdsl.schema import REQUIRED, number, only, switch, whole, with_defaults

_QUERY = ("attention.query", "attention.query_turned")
_LAYER = {
    "self_attn.kv_a_proj_with_mqa": ("attention.latent", "attention.key_turned"),
    "self_attn.kv_a_layernorm": ("attention.latent_norm",),
    "self_attn.kv_b_proj": ("attention.key", "attention.value"),
    "self_attn.o_proj": ("attention.out",),
    **ROUTER,
    "mlp.shared_experts.gate_proj": ("mlp.shared.gate",),
    "mlp.shared_experts.up_proj": ("mlp.shared.up",),
    "mlp.shared_experts.down_proj": ("mlp.shared.down",),
    **SHARED_MLP,
    **NORMS_BEFORE,
}
_PLAIN = {"self_attn.q_proj": _QUERY, **_LAYER}  # queries of the residual stream
_LATENT = {
    "self_attn.q_a_proj": ("attention.query_latent",),
    "self_attn.q_a_layernorm": ("attention.query_norm",),
    "self_attn.q_b_proj": _QUERY,
    **_LAYER,
}
_ALIKE = {"num_key_value_heads": "num_attention_heads", "head_dim": "qk_rope_head_dim"}
_GREEDY = ("greedy", "group_limited_greedy")
_SETTINGS = with_experts(
    with_defaults(SETTINGS, vocab_size=102_400),
    attention_bias=only(False),
    mlp_bias=only(False),
    moe_layer_freq=only(1),
    rope_interleave=only(True),
    qk_nope_head_dim=whole(128),
    qk_rope_head_dim=whole(64),
    v_head_dim=whole(128),
    kv_lora_rank=whole(512),
    q_lora_rank=whole(1536, null=True),
    n_routed_experts=whole(64, most=MOST),
    n_shared_experts=whole(2),
    moe_intermediate_size=whole(1407),
    first_k_dense_replace=whole(0, least=0),
    routed_scaling_factor=number(1.0, above=0),
)


class DeepseekV2(WithExperts):
    """DeepSeek-V2: latent attention, experts in groups, and some layers without experts first."""

    name = "deepseek_v2"
    types = ("deepseek_v2",)
    architecture = "DeepseekV2ForCausalLM"
    settings = {
        **_SETTINGS,
        "num_experts_per_tok": whole(REQUIRED),
        "topk_method": only(*_GREEDY),
        "scoring_func": only("softmax"),
        "norm_topk_prob": only(False, None),
        "n_group": whole(None),
        "topk_group": whole(None),
    }
    aliases = {"num_experts": "n_routed_experts"}
    names = {
        **{key: name for key, name in EXPERTS_TOO.items() if key != "kv_heads"},
        "experts": "n_routed_experts",
        "d_ff": "moe_intermediate_size",
        "dense_d_ff": "intermediate_size",
        "dense_layers": "first_k_dense_replace",
        "head_dim": "qk_nope_head_dim",
        "turned": "qk_rope_head_dim",
        "value_dim": "v_head_dim",
        "latent": "kv_lora_rank",
        "query_latent": "q_lora_rank",
        "router_scale": "routed_scaling_factor",
    }
    by_head = ("self_attn.q_proj", "self_attn.q_b_proj", "self_attn.kv_b_proj")
    pairs = {"attention.query_turned": 1.0, "attention.key_turned": 1.0}
    experts = EXPERTS
    divides = True
    scores: ClassVar[str] = "softmax"

    def stacks(self, parameters: Names) -> Iterator[tuple[str, str, Modules]]:
        latent = any(".query_latent." in name for name in parameters)
        for stack in ("first", "blocks"):
            yield stack, self.prefix, _LATENT if latent else _PLAIN

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        for name, other in _ALIKE.items():
            if said.get(name) not in (None, said[other]):
                raise MeshDSLError(
                    f"config.json: {name}={said[name]}: latent attention has {other}={said[other]}"
                )
        dense, layers = said["first_k_dense_replace"], said["num_hidden_layers"]
        if dense >= layers:
            raise MeshDSLError(
                f"config.json: first_k_dense_replace={dense}: leaves no layer with experts of "
                f"num_hidden_layers={layers}, which is not known here"
            )
        return {
            **super().more(said, found, tensors),
            "query_latent": said["q_lora_rank"] or 0,
            "experts_shared": said["n_shared_experts"] * said["moe_intermediate_size"],
            "router_scores": self.scores,
            "router_offset": self.scores == "sigmoid",
            **self.groups(said),
        }

    def groups(self, said: Said) -> dict[str, Any]:
        """The settings of groups of experts."""
        if said.get("topk_method") == _GREEDY[0]:
            return {}
        for name in ("n_group", "topk_group"):
            if not said[name]:
                raise MeshDSLError(f"config.json: {name}=null: expected a number of groups")
        return {"router_groups": said["n_group"], "router_groups_used": said["topk_group"]}

    def rotary(self, said: Said) -> dict[str, Any]:
        found = super().rotary(said)
        table, name = rope.one_table(said)
        gain = table.get("mscale_all_dim")
        if not gain or "rotary_scaling" not in found:
            return found
        if table["factor"] is None:
            raise MeshDSLError(f"config.json: {name}: mscale_all_dim={gain} needs a factor")
        return found | {"rotary_score_gain": float(gain)}

    def written(self, model: Any) -> dict[str, Any]:
        groups = model.router_groups
        theirs = super().written(model) | {
            "n_shared_experts": model.experts_shared // model.dims["d_ff"].size,
            "n_group": groups,
            "topk_group": model.router_groups_used or groups,
            "num_key_value_heads": model.heads,
        }
        if "topk_method" in self.settings and self.scores == "softmax":
            theirs["topk_method"] = _GREEDY[groups > 1]
        return theirs


class DeepseekV3(DeepseekV2):
    """DeepSeek-V3: scores by sigmoids, and offsets that balance the load."""

    name = "deepseek_v3"
    types = ("deepseek_v3",)
    architecture = "DeepseekV3ForCausalLM"
    settings = {
        **with_defaults(
            _SETTINGS,
            vocab_size=129_280,
            hidden_size=7168,
            intermediate_size=18_432,
            num_hidden_layers=61,
            num_attention_heads=128,
            max_position_embeddings=4096,
            n_routed_experts=256,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            routed_scaling_factor=2.5,
        ),
        "num_key_value_heads": whole(128, null=True),
        "head_dim": NO_HEAD_DIM,
        "num_experts_per_tok": whole(8),
        "topk_method": only("noaux_tc"),
        "scoring_func": only("sigmoid"),
        "norm_topk_prob": switch(True, null=True),
        "n_group": whole(8),
        "topk_group": whole(4),
    }
    aliases = {"num_local_experts": "n_routed_experts"}
    vectors = {"mlp.gate.e_score_correction_bias": "mlp.router.offset"}
    ahead = True
    scores = "sigmoid"
    divides = False
