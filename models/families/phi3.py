"""Phi-3."""

from __future__ import annotations

from typing import Any

from meshdsl.models.families import rope
from meshdsl.models.families.adapter import Said
from meshdsl.models.families.decoder import NO_HEAD_DIM, NORMS_BEFORE, SETTINGS, Decoder
from meshdsl.schema import only, whole, with_defaults


class Phi3(Decoder):
    """Phi-3: matrices that stand together in one, and factors for long texts."""

    name = "phi3"
    types = ("phi3",)
    architecture = "Phi3ForCausalLM"
    settings = {
        **with_defaults(
            SETTINGS,
            vocab_size=32_064,
            hidden_size=3072,
            intermediate_size=8192,
            max_position_embeddings=4096,
            original_max_position_embeddings=4096,
            rms_norm_eps=1e-5,
        ),
        "head_dim": NO_HEAD_DIM,
        "sliding_window": whole(None),
        "layer_types": only(None),
    }
    layers = {
        "self_attn.qkv_proj": ("attention.query", "attention.key", "attention.value"),
        "self_attn.o_proj": ("attention.out",),
        "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
        "mlp.down_proj": ("mlp.down",),
        **NORMS_BEFORE,
    }
    fractions = True
    ropes = ("longrope",)

    def rotary(self, said: Said) -> dict[str, Any]:
        table, name = rope.one_table(said)
        if table.get("rope_type", table.get("type")) in ("su", "yarn"):  # names of old for it
            table = {**table, "rope_type": "longrope"}
        return self.rotary_of(table, name, said["max_position_embeddings"])

    def written(self, model: Any) -> dict[str, Any]:
        # The usual token for padding is one that a small vocabulary lacks.
        theirs = super().written(model) | {"pad_token_id": None}
        return theirs | {"partial_rotary_factor": model.rotary_fraction}
