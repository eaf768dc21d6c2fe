"""Qwen2, Qwen2.5 and Qwen3."""

from __future__ import annotations

from meshdsl.models.families.decoder import (
    ATTENTION,
    KINDS,
    NO_HEAD_DIM,
    NORMS_BEFORE,
    PROJECTIONS,
    QKV,
    QUERY_NORMS,
    SETTINGS,
    SHARED_MLP,
    Decoder,
)
from meshdsl.schema import switch, whole, with_defaults

WINDOWS = {"use_sliding_window": switch(False), "sliding_window": whole(4096, null=True)}
_SETTINGS = {
    **with_defaults(
        SETTINGS, vocab_size=151_936, intermediate_size=22_016, max_position_embeddings=32_768
    ),
    "num_key_value_heads": whole(32, null=True),
    **WINDOWS,
    "max_window_layers": whole(28, least=0),
    "layer_types": KINDS,
}


class Qwen2(Decoder):
    """Qwen2 and Qwen2.5: biases of queries, keys and values."""

    name = "qwen2"
    types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"
    settings = {**_SETTINGS, "head_dim": NO_HEAD_DIM}
    choices = {"biases": QKV}


class Qwen3(Decoder):
    """Qwen3: norms of queries and keys, and no biases."""

    name = "qwen3"
    types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    settings = {**_SETTINGS, "head_dim": whole(128), "attention_bias": switch(False)}
    choices = {"query_norm": "head"}
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, **QUERY_NORMS, **SHARED_MLP, **NORMS_BEFORE}
