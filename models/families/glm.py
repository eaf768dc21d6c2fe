"""GLM-4 of 2024 and of 2025."""

from __future__ import annotations

from meshdsl.models.families.decoder import NORMS_BEFORE, PROJECTIONS, QKV, SETTINGS, Decoder
from meshdsl.schema import switch, whole, with_defaults

_SETTINGS = {
    **with_defaults(
        SETTINGS,
        vocab_size=151_552,
        intermediate_size=13_696,
        num_hidden_layers=40,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1.5625e-7,
        partial_rotary_factor=0.5,
    ),
    "num_key_value_heads": whole(2, null=True),
    "attention_bias": switch(True),
}


class Glm(Decoder):
    """GLM-4-9B: rotary positions turn neighbours in the first half of each head."""

    name = "glm"
    types = ("glm",)
    architecture = "GlmForCausalLM"
    settings = _SETTINGS
    choices = {"biases": QKV}
    biased = {"attention_bias": QKV}
    fraction = 0.5
    pairs = {"attention.query": 0.5, "attention.key": 0.5}
    layers = {
        **PROJECTIONS,
        "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.down_proj": ("mlp.down",),
        **NORMS_BEFORE,
    }


class Glm4(Glm):
    """GLM-4-0414: the same with norms after sublayers too."""

    name = "glm4"
    types = ("glm4",)
    architecture = "Glm4ForCausalLM"
    settings = {**_SETTINGS, "num_key_value_heads": whole(2)}
    choices = {**Glm.choices, "norm_place": "both"}
    layers = {
        **Glm.layers,
        "post_self_attn_layernorm": ("attention_out_norm",),
        "post_mlp_layernorm": ("mlp_out_norm",),
    }
