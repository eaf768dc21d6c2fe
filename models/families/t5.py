"""T5: a text that answers another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshdsl.models.families.adapter import MOST, Adapter, Modules, Names, Said
from meshdsl.models.families.decoder import ACTIVATIONS, THEIRS
from meshdsl.schema import Setting, number, only, switch, whole, word

_RELATIVE = "block.0.layer.0.SelfAttention.relative_attention_bias"
_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}
_FORWARD = (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))


class T5(Adapter):
    """T5, and T5 1.1, whose feed-forward layers have a gate."""

    name = "t5"
    types = ("t5",)
    family = "t5"
    architecture = "T5ForConditionalGeneration"
    settings = {
        "vocab_size": whole(32_128),
        "d_model": whole(512),
        "d_kv": whole(64),
        "d_ff": whole(2048),
        "num_layers": whole(6, most=MOST),
        "num_decoder_layers": whole(None, most=MOST),
        "num_heads": whole(8),
        "relative_attention_num_buckets": whole(32),
        "relative_attention_max_distance": whole(128),
        "layer_norm_epsilon": number(1e-6, above=0),
        "feed_forward_proj": Setting(
            "an activation, or one after `gated-`",
            lambda value: value in _FORWARD,
            "relu",
            _FORWARD,
        ),
        "dense_act_fn": word(known=tuple(ACTIVATIONS)),  # both win over the words before
        "is_gated_act": switch(),
        "is_causal": only(True),
        "tie_word_embeddings": switch(True, null=True),
        "scale_decoder_outputs": switch(),
        "decoder_start_token_id": whole(None, least=0),
        "pad_token_id": whole(0, least=0, null=True),
    }
    aliases = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    names = {
        "vocab": "vocab_size",
        "d_model": "d_model",
        "head_dim": "d_kv",
        "d_ff": "d_ff",
        "layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "heads": "num_heads",
        "buckets": "relative_attention_num_buckets",
        "reach": "relative_attention_max_distance",
        "norm_epsilon": "layer_norm_epsilon",
    }
    tables = {
        "shared": ("embedding",),
        f"encoder.{_RELATIVE}": ("encoder.relative",),
        "encoder.final_layer_norm": ("encoder.norm",),
        f"decoder.{_RELATIVE}": ("decoder.relative",),
        "decoder.final_layer_norm": ("decoder.norm",),
        "lm_head": ("head",),
    }
    # Copies of `shared`, and a bias that their code leaves unread.
    unused = (
        *("encoder.embed_tokens.", "decoder.embed_tokens."),
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",
    )
    copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}

    def stacks(self, parameters: Names) -> Iterator[tuple[str, str, Modules]]:
        gated = any(".mlp.gate." in name for name in parameters)
        yield "encoder.blocks", "encoder.block.", _layer("layer.1", decodes=False, gated=gated)
        yield "decoder.blocks", "decoder.block.", _layer("layer.2", decodes=True, gated=gated)

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        gate, _, name = said["feed_forward_proj"].rpartition("-")
        if gate and name == "gelu":  # their code means the approximation
            name = "gelu_new"
        tied = said["tie_word_embeddings"] is not False
        start = said["decoder_start_token_id"]
        return {
            "gated": said.get("is_gated_act", bool(gate)),
            "tied": tied and "lm_head.weight" not in tensors,
            "activation": ACTIVATIONS[said.get("dense_act_fn", name)],
            "scaled_logits": said.get("scale_decoder_outputs", tied),
            "decoder_layers": said["num_decoder_layers"] or said["num_layers"],
            "start_token": (said["pad_token_id"] or 0) if start is None else start,
        }

    def written(self, model: Any) -> dict[str, Any]:
        act = THEIRS[model.activation]
        if model.gated:  # `gated-gelu` is read as the approximation
            act = f"gated-{'gelu_python' if act == 'gelu' else act}"
        return {
            "feed_forward_proj": act,
            "is_encoder_decoder": True,
            "tie_word_embeddings": model.tied,
            "scale_decoder_outputs": model.scaled_logits,
            "decoder_start_token_id": model.start_token,
        }


def _layer(mlp: str, *, decodes: bool, gated: bool) -> dict[str, tuple[str, ...]]:
    """The modules of a layer of one side."""
    found = {f"layer.0.SelfAttention.{a}": (f"attention.{b}",) for a, b in _PROJECTIONS.items()}
    found["layer.0.layer_norm"] = ("attention_norm",)
    if decodes:
        found |= {f"layer.1.EncDecAttention.{a}": (f"source.{b}",) for a, b in _PROJECTIONS.items()}
        found["layer.1.layer_norm"] = ("source_norm",)
    ups = {"wi_0": ("mlp.gate",), "wi_1": ("mlp.up",)} if gated else {"wi": ("mlp.up",)}
    found |= {f"{mlp}.DenseReluDense.{name}": each for name, each in ups.items()}
    found[f"{mlp}.DenseReluDense.wo"] = ("mlp.down",)
    found[f"{mlp}.layer_norm"] = ("mlp_norm",)
    return found
