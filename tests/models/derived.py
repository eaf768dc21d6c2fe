"""What a `config.json` means: as it is read here, and as `transformers` reads it.

`python -m tests.models.derived` writes `derived.json`: what `transformers` derives of whole files,
and of the same without one of their keys, as far as that differs.
"""

import importlib
import json
import math
import tempfile
from pathlib import Path

import numpy as np

from meshdsl.layers.rotary import DynamicScaling, LongScaling
from meshdsl.models.architecture import Architecture
from meshdsl.models.families import TYPES
from meshdsl.models.families.decoder import ACTIVATIONS, KINDS
from meshdsl.models.published import family_of
from tests.models import test_published, test_published_encoders

TABLE = Path(__file__).with_name("derived.json")
OLD = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}


def files():
    """A `config.json` for each case of the tests of published models, and some older ones."""
    found = {}
    for name, (_, settings) in test_published.CASES.items():
        kind = name.split(",")[0].split(" ")[0]
        found[name] = {"model_type": {"gemma3": "gemma3_text"}.get(kind, kind), **settings}
    for name, (reader, settings) in test_published_encoders.CASES.items():
        kind = name.split(",")[0].split(" ")[0]
        found[name] = {"model_type": kind, "architectures": [reader], **settings}
    for name in ("llama", "qwen2", "mixtral", "olmoe", "gpt_oss", "deepseek_v3"):
        found[f"{name}, old"] = {**found[name], **OLD}
    found["gemma3, old"] = {
        **found["gemma3"],
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    }
    found["gemma3, with images"] = {
        "model_type": "gemma3",
        "text_config": {**found["gemma3"], "model_type": "gemma3_text"},
    }
    found["qwen2_moe, older windows"] = {**found["qwen2_moe, plain"], "max_window_layers": 0}
    for name in ("gpt_oss", "gemma2", "gemma3"):  # with windows that are derived
        found[f"{name}, derived"] = {**found[name], "num_hidden_layers": 7}
    return found


def ours(said):
    """What the model of a file computes, read here."""
    family, settings = family_of(said)
    adapter = TYPES[said["model_type"]]
    if family != "transformer":
        return {**settings, "activation": settings["activation"]}
    model = Architecture(**settings)
    windows = [model.window if local else None for local in model.local_layers]
    found = {name: settings[name] for name in adapter.names if name in settings}
    found.pop("experts_used", None)
    found |= {
        "kv_heads": model.kv_heads or model.heads,
        "d_ff": model.dims["d_ff"].size,
        "head_dim": model.dims["head_dim"].size,
        "query_latent": model.query_latent,
        "activation": model.choice("activation"),
        "tied": model.tables_tied,
        "windows": windows,
        "biases": sorted(model.choice("biases")),
        "scale": model.query_scale or None,
        "caps": [model.attention_softcap, model.logit_softcap],
    }
    if model.experts:
        groups = model.router_groups
        found |= {
            "experts": [model.experts, model.experts_used, model.router_normalise],
            "shared": model.experts_shared,
            "groups": [groups, (model.router_groups_used or groups) if groups > 1 else 1],
        }
    if model.rotary:
        found["rope"] = _our_turns(model, model.rotary_base, model.scaling)
        found["gain"] = model.rotary_score_gain if model.rotary_factor > 1 else 0
        if model.rotary_local_base:
            found["local rope"] = _our_turns(model, model.rotary_local_base, None)
            if not any(model.local_layers):
                del found["local rope"]
            if all(model.local_layers):
                del found["rope"]
    return found


def _our_turns(model, base, scaling):
    size = model.rotary_dim.size
    plain = base ** (-np.arange(0, size, 2) / size)
    if scaling is None:
        return [plain.tolist(), 1.0]
    if isinstance(scaling, LongScaling):
        both = plain / np.array(scaling.short), plain / np.array(scaling.long)
        return [both[0].tolist(), scaling.gain, both[1].tolist(), scaling.length]
    if isinstance(scaling, DynamicScaling):
        return [plain.tolist(), 1.0, scaling.factor, scaling.length]
    return [scaling.scaled(plain, base).tolist(), scaling.gain]


def theirs(said):
    """What the model of a file computes, as `transformers` reads it.

    Raises:
      Exception: `transformers` refuses the file, or its code cannot run with it.
    """
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(said))
        config = AutoConfig.from_pretrained(folder)
    config = config.get_text_config() if config.model_type == "gemma3" else config
    adapter, kind = TYPES[said["model_type"]], config.model_type
    if kind not in adapter.types:
        raise ValueError(f"it is a {kind}")
    names = {ours: name for ours, name in adapter.names.items() if ours != "experts_used"}
    found = {ours: getattr(config, name, None) for ours, name in names.items()}
    found = {name: value for name, value in found.items() if value is not None}
    if adapter.family != "transformer":
        return found | _of_encoder(config)
    heads, width = found["heads"], found["d_model"]
    if "head_dim" in adapter.names and "latent" not in adapter.names:
        found["head_dim"] = config.head_dim if hasattr(config, "head_dim") else width // heads
        if kind in ("mistral", "mixtral"):
            found["head_dim"] = found["head_dim"] or width // heads
    if kind in ("gpt2", "olmoe"):
        found["head_dim"] = width // heads
        if getattr(config, "head_dim", found["head_dim"]) != found["head_dim"]:
            raise ValueError("the norms of queries do not fit")
    kv_heads = found.get("kv_heads", heads)
    if heads % kv_heads or found["head_dim"] < 1:
        raise ValueError("heads")
    layers = range(found["layers"])
    if "sliding_window" not in adapter.settings:
        windows = [None for _ in layers]
    elif adapter.settings["layer_types"] is KINDS:
        local = [kind == "sliding_attention" for kind in config.layer_types]
        windows = [config.sliding_window if each else None for each in local]
        if any(local) and not config.sliding_window:
            raise ValueError("a window of none")
    else:
        windows = [config.sliding_window for _ in layers]
    always = {*adapter.choices.get("biases", ())}
    for name, biases in adapter.biased.items():
        always = always | {*biases} if getattr(config, name) else always - {*biases}
    caps = [getattr(config, "attn_logit_softcapping", 0) or 0, 0]
    caps = [0 if kind == "gemma3_text" else caps[0], caps[1]]
    caps[1] = getattr(config, "final_logit_softcapping", 0) or 0
    scale = getattr(config, "query_pre_attn_scalar", None)
    if kind == "gpt2" and not config.scale_attn_weights:
        scale = 1
    found |= {
        "kv_heads": kv_heads,
        "d_ff": found.get("d_ff", 4 * width),
        "query_latent": found.get("query_latent", 0),
        "activation": ACTIVATIONS[getattr(config, adapter.activation)],
        "tied": config.tie_word_embeddings,
        "windows": windows,
        "biases": sorted(always),
        "scale": scale,
        "caps": caps,
    }
    if kind == "gpt_oss":
        found["activation"] = "clamped"
    if "experts" in adapter.names:
        found |= _of_experts(config, adapter, kind)
    return found | (_their_turns(config, adapter, kind) if kind != "gpt2" else {})


def _of_experts(config, adapter, kind):
    normalised = bool(getattr(config, "norm_topk_prob", True)) and kind != "deepseek_v2"
    found = {
        "experts": [
            getattr(config, adapter.names["experts"]),
            config.num_experts_per_tok,
            normalised,
        ],
        "shared": getattr(config, "shared_expert_intermediate_size", 0),
        "groups": [1, 1],
    }
    if not 1 <= found["experts"][1] <= found["experts"][0]:
        raise ValueError("experts")
    if kind.startswith("deepseek"):
        found["shared"] = config.n_shared_experts * config.moe_intermediate_size
        if kind == "deepseek_v3" or config.topk_method != "greedy":
            found["groups"] = [config.n_group, config.topk_group if config.n_group > 1 else 1]
        if config.num_key_value_heads != config.num_attention_heads:
            raise ValueError("latent attention has no groups")
    return found


def _their_turns(config, adapter, kind):
    module = kind.removesuffix("_text")
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    names = [name for name in dir(code) if name.endswith("RotaryEmbedding")]
    turns = getattr(code, names[0])(config)
    if kind == "gemma3_text":
        kinds = {"full_attention": "rope", "sliding_attention": "local rope"}
        found = {
            kinds[each]: [
                getattr(turns, f"{each}_inv_freq").tolist(),
                getattr(turns, f"{each}_attention_scaling"),
            ]
            for each in turns.layer_types
        }
        table = config.rope_parameters["full_attention"]
        if "rope" in found and table["rope_type"] == "dynamic":
            found["rope"] += [table["factor"], config.max_position_embeddings]
        return found | {"gain": 0}
    table = config.rope_parameters
    found = [turns.inv_freq.tolist(), turns.attention_scaling]
    if turns.rope_type == "longrope":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        first = table["original_max_position_embeddings"]
        far, _ = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=first + 1)
        found += [far.tolist(), first]
    if turns.rope_type == "dynamic":
        found += [table["factor"], config.max_position_embeddings]
    gain = 0
    if kind.startswith("deepseek") and turns.rope_type != "default":
        gain = table.get("mscale_all_dim") or 0
        gain = gain if not gain or table["factor"] > 1 else 0
    return {"rope": found, "gain": gain}


def _of_encoder(config):
    if config.model_type == "t5":
        return {
            "activation": ACTIVATIONS[config.dense_act_fn],
            "gated": config.is_gated_act,
            "decoder_layers": config.num_decoder_layers,
            "tied": None,  # the tensors say it
            "scaled_logits": config.scale_decoder_outputs,
        }
    found = {"activation": ACTIVATIONS[config.hidden_act]}
    reader = (config.architectures or [""])[0]
    if config.model_type == "vit" or reader.endswith("SequenceClassification"):
        found["classes"] = config.num_labels
    if config.model_type == "vit":
        size = config.image_size
        found["height"], found["width"] = size if isinstance(size, list | tuple) else (size, size)
    return found


def unlike(a, b):
    """The first name of which two files compute something else; None where there is none."""
    for name in sorted({*a, *b}):
        if name in ("start_token", "tied") and (a.get(name) is None or b.get(name) is None):
            continue
        if not _alike(a.get(name), b.get(name)):
            return name
    return None


def _alike(a, b):
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-12)
    return a == b


def without_each():
    """Each file with a name, whole and without one of its keys; first the name of the whole one."""
    for name, said in files().items():
        yield name, name, said
        for key in said:
            if key != "model_type":
                rest = {other: value for other, value in said.items() if other != key}
                yield name, f"{name}, no {key}", rest
        yield name, f"{name}, nothing said", {"model_type": said["model_type"]}


def refused_or(read, said):
    """What `read` makes of a file; None where it refuses."""
    try:
        return read(said)
    except Exception:
        return None


def recorded():
    """What `transformers` derives of each file of `without_each`; None where it refuses."""
    table = json.loads(TABLE.read_text())
    found = {}
    for whole, name, _ in without_each():
        other = table.get(name, {})
        found[name] = None if other is None else {**(found.get(whole) or {}), **other}
    return found


def brief(value):
    """A value to record: of a long list how long it is, and each seventh element."""
    if isinstance(value, dict):
        return {key: brief(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        some = [len(value), *value[::7]] if len(value) > 20 else value
        return [brief(each) for each in some]
    return float(f"{value:.8g}") if isinstance(value, float) else value


if __name__ == "__main__":
    lines, wholes = [], {}
    for whole, name, said in without_each():
        found = refused_or(theirs, said)
        if found is not None:
            found = brief(found)
            there = wholes.setdefault(whole, found)
            gone = {key: None for key in there if key not in found}
            if found is not there:
                new = {key: value for key, value in found.items() if there.get(key) != value}
                found = new | gone
        if found != {}:
            lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
