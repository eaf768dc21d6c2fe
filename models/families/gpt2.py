"""GPT-2."""

from __future__ import annotations

from typing import Any

from meshdsl.models.families.adapter import MOST, Names, Said
from meshdsl.models.families.decoder import ACTIVATIONS, BIASES, Decoder
from meshdsl.schema import number, only, switch, whole, word


class GPT2(Decoder):
    """GPT-2: LayerNorm, learned positions, biases, and matrices that are `[ins, outs]`."""

    name = "gpt2"
    types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    settings = {
        "vocab_size": whole(50_257),
        "n_positions": whole(1024),
        "n_embd": whole(768),
        "n_layer": whole(12, most=MOST),
        "n_head": whole(12),
        "n_inner": whole(None),
        "activation_function": word("gelu_new", tuple(ACTIVATIONS)),
        "layer_norm_epsilon": number(1e-5, above=0),
        "scale_attn_weights": switch(True),
        "tie_word_embeddings": switch(True),
        "scale_attn_by_inverse_layer_idx": only(False),
        "is_causal": only(True),
    }
    aliases = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    names = {
        "vocab": "vocab_size",
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "layers": "n_layer",
        "heads": "n_head",
        "length": "n_positions",
        "norm_epsilon": "layer_norm_epsilon",
    }
    tables = {
        "transformer.wte": ("embedding",),
        "transformer.wpe": ("positions",),
        "transformer.ln_f": ("norm",),
        "lm_head": ("head",),
    }
    layers = {
        "ln_1": ("attention_norm",),
        "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
        "attn.c_proj": ("attention.out",),
        "ln_2": ("mlp_norm",),
        "mlp.c_fc": ("mlp.up",),
        "mlp.c_proj": ("mlp.down",),
    }
    prefix = "transformer.h."
    outs_first = False
    activation = "activation_function"
    choices = {
        "norm": "layer",
        "positions": "learned",
        "mlp": "plain",
        "activation": "gelu",
        "biases": BIASES,
        "tied": "yes",
    }

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        ours = super().more(said, found, tensors)
        return ours if said["scale_attn_weights"] else ours | {"query_scale": 1.0}

    def rotary(self, said: Said) -> dict[str, Any]:
        return {}

    def written(self, model: Any) -> dict[str, Any]:
        return super().written(model) | {"scale_attn_weights": model.query_scale != 1}
