"""Gemma 2 and Gemma 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from meshdsl.errors import MeshDSLError
from meshdsl.models.families import rope
from meshdsl.models.families.adapter import Names, Said
from meshdsl.models.families.decoder import (
    ACTIVATIONS,
    ATTENTION,
    KINDS,
    PROJECTIONS,
    QUERY_NORMS,
    SETTINGS,
    SHARED_MLP,
    Decoder,
    alternating,
)
from meshdsl.models.families.olmo import NORMS_AFTER
from meshdsl.models.families.rope import FULL, LOCAL
from meshdsl.schema import number, only, read, shown, switch, table, whole, with_defaults, word

_CHOICES = {
    "norm_from_one": "yes",
    "norm_place": "both",
    "activation": "gelu",
    "tied": "yes",
    "embedding_scale": "root",
}
# What a model that reads images too says beside the settings for texts.
_BESIDE = ("quantization_config", "architectures", "dtype", "torch_dtype")
_TEXT = {"text_config": table(None), "tie_word_embeddings": only(True)}
_INNER = {"model_type": only("gemma3_text"), "tie_word_embeddings": only(True)}
_NORMS = {
    **NORMS_AFTER,
    "input_layernorm": ("attention_norm",),
    "pre_feedforward_layernorm": ("mlp_norm",),
}
_SETTINGS = {
    **with_defaults(
        SETTINGS,
        vocab_size=256_000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=8192,
        num_key_value_heads=4,
        head_dim=256,
        tie_word_embeddings=True,
    ),
    "hidden_activation": word("gelu_pytorch_tanh", tuple(ACTIVATIONS)),
    "query_pre_attn_scalar": whole(256),
    "sliding_window": whole(4096, null=True),
    "layer_types": KINDS,
    "attention_bias": switch(False),
    "attn_logit_softcapping": number(50.0, least=0, null=True),
    "final_logit_softcapping": number(30.0, least=0, null=True),
}


class Gemma2(Decoder):
    """Gemma 2: norms around sublayers, bounded scores, a window in every second layer."""

    name = "gemma2"
    types = ("gemma2",)
    architecture = "Gemma2ForCausalLM"
    settings = _SETTINGS
    choices: ClassVar[Mapping[str, Any]] = _CHOICES
    activation = "hidden_activation"
    divides = True
    biased = {"attention_bias": ATTENTION}
    layers = {**PROJECTIONS, **SHARED_MLP, **_NORMS}

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        ours = super().more(said, found, tensors)
        ours["attention_softcap"] = said["attn_logit_softcapping"] or 0.0
        ours["logit_softcap"] = said["final_logit_softcapping"] or 0.0
        return ours | {"query_scale": float(said["query_pre_attn_scalar"])}

    def usual_window(self, said: Said, window: int | None) -> Callable[[int], bool]:
        return alternating

    def written(self, model: Any) -> dict[str, Any]:
        theirs = super().written(model)
        if model.choice("activation") == "gelu":
            theirs["hidden_activation"] = "gelu_pytorch_tanh"
        theirs["attn_logit_softcapping"] = model.attention_softcap or None
        theirs["final_logit_softcapping"] = model.logit_softcap or None
        scale = model.query_scale or float(model.dims["head_dim"].size)
        return theirs | {"query_pre_attn_scalar": int(scale) if scale == int(scale) else scale}


class Gemma3(Gemma2):
    """Gemma 3 (text): norms of queries and keys, and rotary positions for each kind of layers."""

    name = "gemma3"
    types = ("gemma3_text", "gemma3")
    architecture = "Gemma3ForCausalLM"
    settings = {
        **with_defaults(
            _SETTINGS,
            vocab_size=262_208,
            max_position_embeddings=131_072,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            rope_theta=1e6,
        ),
        "rope_local_base_freq": number(1e4, above=1),
        "sliding_window_pattern": whole(6),
    }
    choices = {**_CHOICES, "query_norm": "head"}
    layers = {**PROJECTIONS, **QUERY_NORMS, **SHARED_MLP, **_NORMS}

    def read(self, config: Said, tensors: Names = ()) -> dict[str, Any]:
        if config["model_type"] == "gemma3":  # which reads images too, and has settings for texts
            text = read(_TEXT, config, "config.json")["text_config"] or {}
            read(_INNER, text, "config.json: text_config")
            config = {**text, **{key: config[key] for key in _BESIDE if key in config}}
        return super().read(config, tensors)

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        # There is a setting for scores, which the code of `transformers` does not use.
        return super().more(said, found, tensors) | {"attention_softcap": 0.0}

    def usual_window(self, said: Said, window: int | None) -> Callable[[int], bool]:
        return lambda layer: (layer + 1) % said["sliding_window_pattern"] != 0

    def rotary(self, said: Said) -> dict[str, Any]:
        tables, scaling = said["rope_parameters"], said["rope_scaling"]
        if tables is None:
            tables = {kind: {"rope_type": "default"} for kind in (FULL, LOCAL)}
        for kind in (FULL, LOCAL):
            table(None).checked(tables.get(kind), kind, "config.json: rope_parameters")
        if scaling is not None:
            if tables.get(FULL) is None:
                raise MeshDSLError(
                    f"config.json: rope_scaling={shown(scaling)} is for rope_parameters of {FULL}, "
                    "which are not there"
                )
            tables = {**tables, FULL: {**tables[FULL], **scaling}}
        beside = {"partial_rotary_factor": said["partial_rotary_factor"]}
        far = {**beside, "rope_theta": said["rope_theta"], **(tables.get(FULL) or {})}
        near = {**beside, "rope_theta": said["rope_local_base_freq"], **(tables.get(LOCAL) or {})}
        longest, name = said["max_position_embeddings"], f"rope_parameters of {LOCAL}"
        if rope.kind_of(near, name) != "default":
            raise MeshDSLError(
                f"config.json: {name}={shown(near)}: rotary positions of layers with a window are "
                "scaled, which is not known here"
            )
        local = self.rotary_of(near, name, longest)["rotary_base"]
        name = f"rope_parameters of {FULL}" if scaling is None else "rope_scaling"
        found = self.rotary_of(far, name, longest)
        return found | {"rotary_local_base": local}

    def written(self, model: Any) -> dict[str, Any]:
        local = model.rotary_local_base or model.rotary_base
        return super().written(model) | {"rope_local_base_freq": local}
