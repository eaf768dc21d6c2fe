"""Every published model that is known here: its settings and its tensors, in and out.

    family, settings = family_of(config)     # from a `config.json`
    config_of(model)                         # and back
    places(form_of(model), parameters)       # where the parameters are in the files

Models that write text are in `hugging_face`; the others are here, each with one table that is read
both ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import meshdsl as md
from meshdsl.errors import nearest
from meshdsl.models import bert, hugging_face, t5, vit
from meshdsl.models.architecture import Architecture
from meshdsl.models.formats import ACTIVATIONS, FORMATS, PLAIN_QUERIES, TYPES, Format
from meshdsl.models.places import Place, places

__all__ = [
    "FORMATS",
    "Place",
    "config_of",
    "family_of",
    "form_of",
    "form_of_config",
    "places",
]

_BERT_TABLES = {
    "bert.embeddings.word_embeddings": ("embedding",),
    "bert.embeddings.position_embeddings": ("positions",),
    "bert.embeddings.token_type_embeddings": ("types",),
    "bert.embeddings.LayerNorm": ("norm",),
    "cls.predictions": ("predictions",),
    "cls.predictions.transform.dense": ("predictions.dense",),
    "cls.predictions.transform.LayerNorm": ("predictions.norm",),
    "bert.pooler.dense": ("pooler",),
    "classifier": ("head",),
}
_BERT_LAYER = {
    "attention.self.query": ("attention.query",),
    "attention.self.key": ("attention.key",),
    "attention.self.value": ("attention.value",),
    "attention.output.dense": ("attention.out",),
    "attention.output.LayerNorm": ("attention_norm",),
    "intermediate.dense": ("mlp.up",),
    "output.dense": ("mlp.down",),
    "output.LayerNorm": ("mlp_norm",),
}
_BERT = {
    "vocab": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "length": "max_position_embeddings",
    "types": "type_vocab_size",
    "norm_epsilon": "layer_norm_eps",
}
_BERT_USUAL = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
_VIT = {
    "colors": "num_channels",
    "patch": "patch_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "query_bias": "qkv_bias",
    "norm_epsilon": "layer_norm_eps",
}
_VIT_USUAL = {
    "num_channels": 3,
    "patch_size": 16,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "qkv_bias": True,
    "image_size": 224,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
_VIT_LAYER = {
    "layernorm_before": ("attention_norm",),
    "attention.attention.query": ("attention.query",),
    "attention.attention.key": ("attention.key",),
    "attention.attention.value": ("attention.value",),
    "attention.output.dense": ("attention.out",),
    "layernorm_after": ("mlp_norm",),
    "intermediate.dense": ("mlp.up",),
    "output.dense": ("mlp.down",),
}
_T5 = {
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
_T5_USUAL = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "layer_norm_epsilon": 1e-6,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "relu",
}


def _t5_layer(mlp: str, decodes: bool, gated: bool) -> dict[str, tuple[str, ...]]:
    """The modules of a layer of one side of a T5."""
    own = {"q": "query", "k": "key", "v": "value", "o": "out"}
    found = {f"layer.0.SelfAttention.{a}": (f"attention.{b}",) for a, b in own.items()}
    found["layer.0.layer_norm"] = ("attention_norm",)
    if decodes:
        found |= {f"layer.1.EncDecAttention.{a}": (f"source.{b}",) for a, b in own.items()}
        found["layer.1.layer_norm"] = ("source_norm",)
    ups = {"wi_0": ("mlp.gate",), "wi_1": ("mlp.up",)} if gated else {"wi": ("mlp.up",)}
    found |= {f"{mlp}.DenseReluDense.{name}": each for name, each in ups.items()}
    found[f"{mlp}.DenseReluDense.wo"] = ("mlp.down",)
    found[f"{mlp}.layer_norm"] = ("mlp_norm",)
    return found


def _t5_format(gated: bool) -> Format:
    relative = "block.0.layer.0.SelfAttention.relative_attention_bias"
    return Format(
        "T5ForConditionalGeneration",
        _t5_layer("layer.1", False, gated),
        tables={
            "shared": ("embedding",),
            f"encoder.{relative}": ("encoder.relative",),
            "encoder.final_layer_norm": ("encoder.norm",),
            f"decoder.{relative}": ("decoder.relative",),
            "decoder.final_layer_norm": ("decoder.norm",),
            "lm_head": ("head",),
        },
        names=_T5,
        absent=_T5_USUAL,
        prefix="encoder.block.",
        stack="encoder.blocks",
        stacks={"decoder.blocks": ("decoder.block.", _t5_layer("layer.2", True, gated))},
        # Copies of `shared`, and a bias that their code leaves unread.
        unused=(
            *("encoder.embed_tokens.", "decoder.embed_tokens."),
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",
        ),
        copies={f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")},
    )


_BERT_FORMAT = Format(
    "BertForMaskedLM",
    _BERT_LAYER,
    tables=_BERT_TABLES,
    names=_BERT,
    absent=_BERT_USUAL,
    prefix="bert.encoder.layer.",
    # The table of the embedding once more, and what the second task of its training needs.
    unused=(
        *("cls.predictions.decoder.", "cls.seq_relationship."),
        *("bert.pooler.", "bert.embeddings.position_ids"),
    ),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
FORMATS.update(
    {
        "bert": _BERT_FORMAT,
        "bert of classes": _BERT_FORMAT._replace(
            architecture="BertForSequenceClassification", unused=("bert.embeddings.position_ids",)
        ),
        "vit": Format(
            "ViTForImageClassification",
            _VIT_LAYER,
            tables={
                "vit.embeddings.patch_embeddings.projection": ("patches",),
                "vit.layernorm": ("norm",),
                "classifier": ("head",),
            },
            names=_VIT,
            absent=_VIT_USUAL,
            prefix="vit.encoder.layer.",
            bare={
                "vit.embeddings.cls_token": ("token", 2),
                "vit.embeddings.position_embeddings": ("positions", 1),
            },
            apart=("vit.embeddings.patch_embeddings.projection",),
        ),
        "t5": _t5_format(gated=False),
        "t5 with a gate": _t5_format(gated=True),
    }
)
_FAMILIES = {"bert": bert.Config, "vit": vit.Config, "t5": t5.Config}


def family_of(
    config: Mapping[str, Any], tensors: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """The family and the settings of the model that a `config.json` describes.

    Args:
      tensors: the names of the tensors in its files, without copies, which say more where a setting
        is missing.

    Raises:
      MeshDSLError: it is of no family that is known here, or it asks for what is not.
    """
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        known = [*TYPES, *_FAMILIES]
        if kind not in TYPES:
            raise md.MeshDSLError(
                f"config.json: the architecture `{kind}` is not known{nearest(str(kind), known)}"
            )
        return "transformer", hugging_face.settings_of(config, tensors)
    form = FORMATS[kind]
    said = {**form.absent, **{k: v for k, v in config.items() if v is not None}}
    hugging_face.refuse(said)
    made = {ours: said[theirs] for ours, theirs in form.names.items() if theirs in said}
    return kind, made | {"bert": _of_bert, "vit": _of_vit, "t5": _of_t5}[kind](said, tensors)


def form_of_config(config: Mapping[str, Any], tensors: Collection[str] = ()) -> str:
    """The name in `FORMATS` of how the files with this `config.json` are written."""
    family, settings = family_of(config, tensors)
    if family == "bert" and settings.get("classes"):
        return "bert of classes"
    if family == "t5" and settings["gated"]:
        return "t5 with a gate"
    if settings.get("latent") and not settings["query_latent"]:
        return settings["style"] + PLAIN_QUERIES
    return settings.get("style", family)


def form_of(model: Any) -> str:
    """The name in `FORMATS` of how the files of a model are written.

    Raises:
      MeshDSLError: it has no form of Hugging Face.
    """
    if isinstance(model, Architecture):
        return model.style + (PLAIN_QUERIES if model.latent and not model.query_latent else "")
    if isinstance(model, bert.Config):
        return "bert of classes" if model.classes else "bert"
    if isinstance(model, t5.Config):
        return "t5 with a gate" if model.gated else "t5"
    if isinstance(model, vit.Config):
        return "vit"
    raise md.MeshDSLError(
        "model.family: a transformer, a bert, a vit and a t5 have a form of Hugging Face"
    )


def config_of(model: Any) -> dict[str, Any]:
    """The `config.json` of a model, which `family_of` reads as the same.

    Raises:
      MeshDSLError: their files cannot say what it chooses.
    """
    if isinstance(model, Architecture):
        return hugging_face.config_of(model)
    form = FORMATS[form_of(model)]
    made: dict[str, Any] = {"architectures": [form.architecture]}
    made |= {theirs: getattr(model, ours) for ours, theirs in form.names.items()}
    spelled = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    act = spelled[model.activation]
    if isinstance(model, t5.Config):
        proj = f"gated-{act}" if model.gated else act
        if proj == "gated-gelu":  # which their code reads as the approximation
            proj = "gated-gelu_python"
        made |= {"model_type": "t5", "feed_forward_proj": proj, "is_encoder_decoder": True}
        made |= {"tie_word_embeddings": model.tied, "scale_decoder_outputs": model.scaled_logits}
        made["decoder_start_token_id"] = model.start_token
    elif isinstance(model, vit.Config):
        if model.height != model.width:
            raise md.MeshDSLError(
                f"model: a vit of Hugging Face has square images, and this one {model.height} x "
                f"{model.width}"
            )
        made |= {"model_type": "vit", "image_size": model.height, "hidden_act": act}
        made |= _labels(model.classes)
    else:
        made |= {"model_type": "bert", "hidden_act": act, "tie_word_embeddings": True}
        made |= _labels(model.classes) if model.classes else {}
    read = dataclasses.replace(
        model, **family_of(made, () if getattr(model, "tied", True) else ("lm_head.weight",))[1]
    )
    other = [
        field.name
        for field in dataclasses.fields(model)
        if getattr(read, field.name) != getattr(model, field.name)
    ]
    if other:
        raise md.MeshDSLError(
            f"model.{other[0]}: a {made['model_type']} of Hugging Face has no setting for what "
            "this model chooses"
        )
    return made


def _labels(count: int) -> dict[str, Any]:
    names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def _classes(said: Mapping[str, Any]) -> int:
    """How many classes there are; two where nothing is said, as there."""
    return len(said.get("id2label") or ()) or int(said.get("num_labels", 2))


def _of_bert(said: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    if said.get("position_embedding_type", "absolute") != "absolute":
        raise md.MeshDSLError(
            f"config.json: position_embedding_type={said['position_embedding_type']} is not known "
            "here; absolute is"
        )
    if said.get("is_decoder"):
        raise md.MeshDSLError("config.json: `is_decoder` is set, which is not known here")
    if said.get("tie_word_embeddings") is False:
        raise md.MeshDSLError("config.json: tie_word_embeddings=false is not known of a bert")
    architecture = (said.get("architectures") or ["BertForMaskedLM"])[0]
    known = ("BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification")
    if architecture not in known:
        raise md.MeshDSLError(
            f"config.json: the architecture `{architecture}` is not known"
            f"{nearest(architecture, known)}; {', '.join(known)} are"
        )
    made: dict[str, Any] = {"activation": _activation(said, "hidden_act")}
    if architecture == "BertForSequenceClassification":
        if said.get("problem_type") not in (None, "single_label_classification"):
            raise md.MeshDSLError(
                f"config.json: problem_type={said['problem_type']} is not known here"
            )
        made["classes"] = _classes(said)
    return made


def _of_vit(said: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    size = said["image_size"]
    architecture = (said.get("architectures") or ["ViTForImageClassification"])[0]
    if architecture != "ViTForImageClassification":
        raise md.MeshDSLError(
            f"config.json: the architecture `{architecture}` is not known; "
            "ViTForImageClassification is"
        )
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if isinstance(said["patch_size"], list | tuple):
        raise md.MeshDSLError("config.json: patch_size is to be one number")
    made = {"height": height, "width": width, "classes": _classes(said)}
    return made | {"activation": _activation(said, "hidden_act")}


def _of_t5(said: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    gate, dash, name = said["feed_forward_proj"].rpartition("-")
    if dash and gate != "gated":
        raise md.MeshDSLError(
            f"config.json: feed_forward_proj={said['feed_forward_proj']} is not known here"
        )
    if name == "gelu" and gate:  # their code means the approximation
        name = "gelu_new"
    tied = said.get("tie_word_embeddings", True)
    made: dict[str, Any] = {"gated": bool(gate), "tied": tied and "lm_head.weight" not in tensors}
    made["activation"] = _activation({"feed_forward_proj": name}, "feed_forward_proj")
    made["scaled_logits"] = bool(said.get("scale_decoder_outputs", tied))
    made["decoder_layers"] = said.get("num_decoder_layers", said["num_layers"])
    start = said.get("decoder_start_token_id", said.get("pad_token_id", 0))
    return made | {"start_token": int(start)}


def _activation(said: Mapping[str, Any], setting: str) -> str:
    name = said[setting]
    if name not in ACTIVATIONS:
        raise md.MeshDSLError(
            f"config.json: {setting}={name} is not known{nearest(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
