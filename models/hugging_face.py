"""The settings of a model that writes text, from a `config.json` of Hugging Face and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import meshdsl as md
from meshdsl.errors import nearest
from meshdsl.models.architecture import BIASES, CLAMPED, SCALINGS, STYLES, Architecture
from meshdsl.models.formats import (
    ACTIVATIONS,
    FORMATS,
    QUANTIZED,
    QUERY_LATENT,
    SHARED,
    TYPES,
    Format,
)

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def settings_of(config: Mapping[str, Any], tensors: Collection[str] = ()) -> dict[str, Any]:
    """The settings of the model that a `config.json` describes.

    Args:
      tensors: the names of the tensors in its files; an output layer that is among them is one of
        its own.

    Raises:
      MeshDSLError: it is of no family that is known here, or it asks for what is not.
    """
    kind = config.get("model_type")
    if kind not in TYPES:
        raise md.MeshDSLError(
            f"config.json: the architecture `{kind}` is not known{nearest(str(kind), TYPES)}"
        )
    style = TYPES[kind]
    form = FORMATS[style]
    inner = config.get("text_config") or {}
    said = {**form.absent, **{k: v for k, v in {**config, **inner}.items() if v is not None}}
    # A window of null is none, and not the usual one.
    said |= {
        k: None
        for k in ("sliding_window", *_SOFTCAPS, QUERY_LATENT)
        if {**config, **inner}.get(k, 0) is None
    }
    refuse(said, form)
    lacking = [
        name
        for key, name in form.names.items()
        if name not in said and key not in ("kv_heads", "head_dim", "d_ff", "norm_epsilon")
    ]
    if lacking:
        raise md.MeshDSLError(f"config.json: says no {', '.join(f'`{name}`' for name in lacking)}")
    made: dict[str, Any] = {"style": style}
    made |= {key: said[name] for key, name in form.names.items() if name in said}
    made.setdefault("norm_epsilon", 1e-6)
    if made.get("kv_heads") == made["heads"]:
        del made["kv_heads"]
    activation = said.get(form.activation, "silu")
    if activation not in ACTIVATIONS:
        raise md.MeshDSLError(
            f"config.json: {form.activation}={activation} is not known"
            f"{nearest(activation, ACTIVATIONS)}"
        )
    made["activation"] = ACTIVATIONS[activation]
    if STYLES[style]["activation"] == CLAMPED:
        if made["activation"] != "silu":
            raise md.MeshDSLError(f"config.json: {form.activation}={activation}: expected silu")
        made["activation"] = CLAMPED
    own = any(name.endswith("lm_head.weight") for name in tensors)
    made["tied"] = "yes" if said.get("tie_word_embeddings") and not own else "no"
    made["biases"] = _biases(said, style)
    if style != "gpt2":
        made |= _rotary(said, form)
    elif not said.get("scale_attn_weights", True):
        made["query_scale"] = 1.0
    made |= _windows(said, form, made["layers"])
    if form.experts:
        made |= _experts(said, form)
    if form.scores:
        made |= _deep(said, form, made)
    for key, name in zip(("attention_softcap", "logit_softcap"), _SOFTCAPS, strict=True):
        # Gemma 3 has a setting for scores, which its code does not use.
        if name in form.absent or style == "gemma3":
            used = style != "gemma3" or key == "logit_softcap"
            made[key] = float(said.get(name) or 0) if used else 0.0
    if "query_pre_attn_scalar" in form.absent:
        made["query_scale"] = float(said["query_pre_attn_scalar"])
    return made


def refuse(said: Mapping[str, Any], form: Format | None = None) -> None:
    """Raise a MeshDSLError for what changes the result and is not known here."""
    known = form.counts if form else ()
    method = (said.get("quantization_config") or {}).get("quant_method")
    if said.get("quantization_config") and method not in QUANTIZED:
        raise md.MeshDSLError(
            f"config.json: quantization_config: quant_method={method} is not known here; "
            f"{' and '.join(QUANTIZED)} are"
        )
    for name in (
        "use_bidirectional_attention",
        "add_cross_attention",
        "scale_attn_by_inverse_layer_idx",
        "num_experts",
        "num_local_experts",
        "mlp_only_layers",
        "clip_qkv",
    ):
        if said.get(name) and name not in known:
            raise md.MeshDSLError(f"config.json: `{name}` is set, which is not known here")


def _experts(said: Mapping[str, Any], form: Format) -> dict[str, Any]:
    """The settings of experts.

    Raises:
      MeshDSLError: it does not say how many there are, or some layers have none.
    """
    counts = {said[name] for name in form.counts if said.get(name)}
    if len(counts) != 1:
        raise md.MeshDSLError(
            f"config.json: {' and '.join(form.counts)}: expected one number of experts, "
            f"not {', '.join(map(str, sorted(counts))) or 'none'}"
        )
    if said.get("decoder_sparse_step", 1) != 1:
        raise md.MeshDSLError(
            f"config.json: decoder_sparse_step={said['decoder_sparse_step']}: layers without "
            "experts among others are not known here"
        )
    normalised = bool(said.get("norm_topk_prob", False)) if form.normalises else True
    return {
        "experts": counts.pop(),
        "experts_used": said["num_experts_per_tok"],
        "experts_shared_gate": SHARED in form.names.values(),
        "router_normalise": normalised,
    }


def _deep(said: Mapping[str, Any], form: Format, made: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the files of DeepSeek beside those of other experts.

    Raises:
      MeshDSLError: they ask for what is not known here.
    """
    methods = {"softmax": ("greedy", "group_limited_greedy"), "sigmoid": ("noaux_tc",)}[form.scores]
    method = said.get("topk_method", methods[0])
    expected = {
        "moe_layer_freq": 1,
        "scoring_func": form.scores,
        "rope_interleave": True,
        "attention_bias": False,
        "mlp_bias": False,
    }
    if not form.normalises:
        expected["norm_topk_prob"] = False
    for name, value in expected.items():
        if said.get(name, value) != value:
            raise md.MeshDSLError(f"config.json: {name}={said[name]} is not known here; {value} is")
    if method not in methods:
        raise md.MeshDSLError(
            f"config.json: topk_method={method} is not known here; "
            + (f"{' and '.join(methods)} are" if methods[1:] else f"{methods[0]} is")
        )
    grouped = method != "greedy"
    return {
        "query_latent": made["query_latent"] or 0,
        "experts_shared": said["n_shared_experts"] * made["d_ff"],
        "experts_shared_gate": False,
        "router_normalise": form.normalises and bool(said.get("norm_topk_prob")),
        "router_scores": form.scores,
        "router_offset": form.scores == "sigmoid",
        "router_groups": (said.get("n_group") or 1) if grouped else 1,
        "router_groups_used": (said.get("topk_group") or 0) if grouped else 0,
    }


def _biases(said: Mapping[str, Any], style: str) -> tuple[str, ...]:
    """Which layers have biases: those of the style, unless a setting is about them."""
    known = {"attention_bias": BIASES[:4], "mlp_bias": ("mlp",)}
    told = {bias: bool(said.get(name)) for name in FORMATS[style].biases for bias in known[name]}
    return tuple(bias for bias in BIASES if told.get(bias, bias in STYLES[style]["biases"]))


def _rotary(said: Mapping[str, Any], form: Format) -> dict[str, Any]:
    """The settings of rotary positions, written in the old way or in that of version 5."""
    parameters = said.get("rope_parameters") or said.get("rope_scaling") or {}
    local = said.get("rope_local_base_freq", 0)
    if _GLOBAL in parameters:
        near, parameters = parameters.get(_LOCAL) or {}, parameters[_GLOBAL] or {}
        local = near.get("rope_theta", local)
        if near.get("rope_type", "default") != "default":
            raise md.MeshDSLError(
                "config.json: rotary positions of layers with a window are scaled, which is not "
                "known here"
            )
    base = float(parameters.get("rope_theta", said.get("rope_theta", 10_000.0)))
    made: dict[str, Any] = {"rotary_base": base}
    if local:
        made["rotary_local_base"] = float(local)
    fraction = parameters.get("partial_rotary_factor", said.get("partial_rotary_factor", 1.0))
    made["rotary_fraction"] = float(fraction)
    if fraction != 1 and not form.part_turned:
        raise md.MeshDSLError(
            f"config.json: partial_rotary_factor={fraction} is not known of a {form.architecture}"
        )
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if form.architecture.startswith("Phi3") and kind in ("su", "yarn"):  # as they were called
        kind = "longrope"
    if kind == "default":
        return made
    if kind not in SCALINGS[1:]:
        raise md.MeshDSLError(
            f"config.json: rope_type={kind}: rotary positions of this type are not known here; "
            f"{', '.join(SCALINGS[1:-1])} and {SCALINGS[-1]} are"
        )
    first, longest = "original_max_position_embeddings", said.get("max_position_embeddings", 0)
    length = said.get(first) or parameters.get(first) or longest
    if kind == "dynamic":
        length = longest
    factor = parameters.get("factor") or longest / length
    made |= {"rotary_scaling": kind, "rotary_factor": float(factor)}
    if form.scores:
        made["rotary_score_gain"] = float(parameters.get("mscale_all_dim") or 0)
    if kind == "linear":
        return made
    made["rotary_length"] = int(length)
    if kind == "dynamic":
        return made
    if kind == "longrope":
        usual = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
        given = parameters.get("attention_factor")
        made["rotary_gain"] = float(usual if given is None else given)
        for name in ("short", "long"):
            made[f"rotary_{name}"] = tuple(map(float, parameters[f"{name}_factor"]))
        return made
    if kind == "llama3":
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    else:
        low, high = parameters.get("beta_slow") or 1, parameters.get("beta_fast") or 32
        made["rotary_gain"] = _yarn_gain(parameters, factor)
        made["rotary_whole"] = bool(parameters.get("truncate", True))
    return made | {"rotary_low": float(low), "rotary_high": float(high)}


def _yarn_gain(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    gain = lambda weight: 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0
    first, second = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return gain(first) / gain(second) if first and second else gain(1)


def _windows(said: Mapping[str, Any], form: Format, layers: int) -> dict[str, Any]:
    """The window, and the pattern of the layers that have it."""
    window = said.get("sliding_window") or 0
    if "switched on" in form.windows and not said.get("use_sliding_window"):
        window = 0
    if not window or not form.windows:
        return {}
    if form.windows.startswith("all"):
        return {"window": window}
    types = said.get("layer_types")
    if types is None and "sliding_window_pattern" in said:
        every = said["sliding_window_pattern"]
        types = [_GLOBAL if (i + 1) % every == 0 else _LOCAL for i in range(layers)]
    elif types is None:
        full = said.get("max_window_layers", 28)
        types = [_GLOBAL if i < full else _LOCAL for i in range(layers)]
    unknown = [kind for kind in types if kind not in (_LOCAL, _GLOBAL)]
    if unknown or len(types) != layers:
        raise md.MeshDSLError(
            f"config.json: layer_types has {len(types)} layers"
            + (f", one of them `{unknown[0]}`" if unknown else "")
            + f"; expected {layers}, each {_LOCAL} or {_GLOBAL}"
        )
    if _LOCAL not in types:
        return {}
    kinds = tuple("local" if kind == _LOCAL else "global" for kind in types)
    return {"window": window, "pattern": _shortest(kinds)}


def _shortest(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest beginning of `kinds` that gives all of it when it is repeated."""
    return next(
        kinds[:size]
        for size in range(1, len(kinds) + 1)
        if all(kind == kinds[i % size] for i, kind in enumerate(kinds))
    )


def config_of(model: Architecture) -> dict[str, Any]:
    """The `config.json` of a model, which `settings_of` reads as the same.

    Raises:
      MeshDSLError: their files of its style cannot say what it chooses.
    """
    style, form = model.style, FORMATS[model.style]
    dims, heads = model.dims, model.heads
    values = {
        "vocab": model.vocab,
        "d_model": model.d_model,
        "d_ff": dims["d_ff"].size,
        "layers": model.layers,
        "heads": heads,
        "kv_heads": model.kv_heads or heads,
        "head_dim": dims["head_dim"].size,
        "length": model.length,
        "norm_epsilon": model.norm_epsilon,
        "dense_d_ff": model.dense_d_ff or dims["d_ff"].size,
        "value_dim": model.value_dim or dims["head_dim"].size,
        "query_latent": model.query_latent or None,
    }
    kind = "gemma3_text" if style == "gemma3" else style
    made: dict[str, Any] = {"architectures": [form.architecture], "model_type": kind}
    made |= {name: values.get(key, getattr(model, key, None)) for key, name in form.names.items()}
    spelled = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {CLAMPED: "silu"}
    if style.startswith("gemma"):
        spelled["gelu"] = "gelu_pytorch_tanh"
    made[form.activation] = spelled[model.choice("activation")]
    made["tie_word_embeddings"] = model.tables_tied
    if style == "phi3":  # their own default is a token that a small vocabulary lacks
        made["pad_token_id"] = None
    biases = set(model.choice("biases"))
    said = {"attention_bias": set(BIASES[:4]) <= biases, "mlp_bias": "mlp" in biases}
    made |= {name: said[name] for name in form.biases}
    if style != "gpt2":
        made |= _rope(model)
    elif model.query_scale == 1:
        made["scale_attn_weights"] = False
    if form.windows:
        local, some = model.local_layers, any(model.local_layers)
        made["sliding_window"] = model.window if some else None
        if "switched on" in form.windows:
            made["use_sliding_window"] = some
        if "layers" in form.windows:
            made["layer_types"] = [_LOCAL if each else _GLOBAL for each in local]
            if not some:  # a window that no layer has
                made["sliding_window"] = 4096
    if form.experts:
        made |= dict.fromkeys(form.counts, model.experts)
        made["num_experts_per_tok"] = model.experts_used
        if form.normalises:
            made["norm_topk_prob"] = model.router_normalise
    if form.scores:
        made["n_shared_experts"] = model.experts_shared // dims["d_ff"].size
        made["n_group"] = model.router_groups
        made["topk_group"] = model.router_groups_used or model.router_groups
        made["num_key_value_heads"] = heads
        if not form.normalises:
            made["topk_method"] = "greedy" if model.router_groups == 1 else "group_limited_greedy"
    if style.startswith("gemma"):
        caps = model.attention_softcap or None, model.logit_softcap or None
        made |= dict(zip(_SOFTCAPS, caps, strict=True))
        made["query_pre_attn_scalar"] = model.query_scale or float(dims["head_dim"].size)
        if made["query_pre_attn_scalar"] == int(made["query_pre_attn_scalar"]):
            made["query_pre_attn_scalar"] = int(made["query_pre_attn_scalar"])
    read = Architecture(**settings_of(made))
    other = [key for key, value in _said(model).items() if _said(read)[key] != value]
    if other:
        raise md.MeshDSLError(
            f"model.{other[0]}: a {style} of Hugging Face has no setting for what this model "
            "chooses"
        )
    return made


def _rope(model: Architecture) -> dict[str, Any]:
    """Rotary positions in the old way to write them, which every version reads."""
    made: dict[str, Any] = {"rope_theta": model.rotary_base, "rope_scaling": None}
    if model.style == "gemma3":
        made["rope_local_base_freq"] = model.rotary_local_base or model.rotary_base
    if FORMATS[model.style].part_turned:
        made["partial_rotary_factor"] = model.rotary_fraction
    if model.rotary_scaling == "none":
        if "rope_scaling" in FORMATS[model.style].absent:  # which would be theirs
            made["rope_scaling"] = {"rope_type": "default"}
        return made
    scaling: dict[str, Any] = {"rope_type": model.rotary_scaling, "factor": model.rotary_factor}
    low, high = model.rotary_low, model.rotary_high
    if model.rotary_scaling == "llama3":
        scaling |= {"low_freq_factor": low, "high_freq_factor": high}
    if model.rotary_scaling == "longrope":
        scaling |= {
            "short_factor": list(model.rotary_short),
            "long_factor": list(model.rotary_long),
        }
        scaling |= {"attention_factor": model.rotary_gain or 1.0}
    if model.rotary_scaling == "yarn":
        assert model.scaling is not None
        scaling |= {"beta_slow": low, "beta_fast": high, "attention_factor": model.scaling.gain}
        if not model.rotary_whole:
            scaling["truncate"] = False
        if model.rotary_score_gain:
            scaling["mscale_all_dim"] = model.rotary_score_gain
    if model.rotary_length and model.rotary_scaling == "longrope":
        made["original_max_position_embeddings"] = model.rotary_length
    if (
        model.rotary_scaling == "dynamic"
    ):  # which goes by it, and longer texts are read all the same
        made["max_position_embeddings"] = model.rotary_length
    if model.rotary_length and model.rotary_scaling != "dynamic":
        scaling["original_max_position_embeddings"] = model.rotary_length
    return made | {"rope_scaling": scaling}


def _said(model: Architecture) -> dict[str, Any]:
    """What a model computes, as far as settings say it, in one way for each."""
    names = [each.name for each in dataclasses.fields(Architecture)]
    made = {name: model.choice(name) for name in names if not name.startswith("rotary_")}
    del made["style"], made["pattern"]
    if model.rotary_scaling == "dynamic":  # their files say `rotary_length` in its place
        del made["length"]
    if made["activation"] != CLAMPED:
        del made["activation_limit"], made["activation_slope"]
    dims, local = model.dims, model.local_layers
    made["dense_d_ff"] = (model.dense_d_ff or dims["d_ff"].size) if model.dense_layers else 0
    made["value_dim"] = dims["value_dim"].size if model.latent else 0
    groups = model.router_groups
    made["router_groups_used"] = (model.router_groups_used or groups) if groups > 1 else 1
    made |= {"kv_heads": model.kv_heads or model.heads, "head_dim": dims["head_dim"].size}
    made |= {"d_ff": dims["d_ff"].size, "biases": set(model.choice("biases"))}
    made |= {"query_scale": model.query_scale or float(dims["head_dim"].size)}
    made |= {"window": model.window if any(local) else 0, "pattern": local}
    if model.rotary:
        near = model.rotary_local_base or (0.0 if model.scaling else model.rotary_base)
        made |= {"rotary_base": model.rotary_base, "rotary_fraction": model.rotary_fraction}
        made |= {"rotary_local_base": near if any(local) else 0, "rotary_scaling": model.scaling}
    return made
