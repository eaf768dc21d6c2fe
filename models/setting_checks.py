"""Which settings of a transformer go together."""

from __future__ import annotations

from typing import Any

import meshdsl as md
from meshdsl.errors import nearest
from meshdsl.models.families.decoder import BIASES, CLAMPED

STYLE = "style"  # the value of a choice that is left to the style


def check(model: Any) -> None:
    """Raise a MeshDSLError unless the settings of `model`, an `Architecture`, go together."""
    _check_latent(model)
    if model.dense_layers and not (model.experts and model.dense_layers < model.layers):
        raise md.MeshDSLError(
            f"model: dense_layers={model.dense_layers} are followed by layers with experts, and "
            f"there are layers={model.layers} and experts={model.experts}"
        )
    if not model.head_dim and model.d_model % model.heads:
        raise md.MeshDSLError(
            f"model: d_model={model.d_model} does not divide into heads={model.heads}; set head_dim"
        )
    if model.kv_heads and model.heads % model.kv_heads:
        raise md.MeshDSLError(
            f"model: heads={model.heads} is not a multiple of kv_heads={model.kv_heads}"
        )
    for name, known in (("biases", (STYLE, *BIASES)), ("pattern", ("local", "global"))):
        for value in getattr(model, name):
            if value not in known:
                raise md.MeshDSLError(f"model: no {name} {value!r}{nearest(value, known)}")
    if not model.pattern:
        raise md.MeshDSLError("model: pattern is empty; it has `local`, `global`, or both")
    if model.rotary:
        _check_rotary(model)
    if model.experts:
        _check_experts(model)
    if model.choice("activation") == CLAMPED and not model.gated:
        raise md.MeshDSLError("model: activation=clamped needs mlp=gated")
    if model.choice("norm") == "layer" and model.choice("norm_from_one") == "yes":
        raise md.MeshDSLError("model: norm_from_one=yes needs norm=rms")


def _check_latent(model: Any) -> None:
    """Raise a MeshDSLError unless the settings of latent attention go together."""
    beside = ("query_latent", "turned", "value_dim", "rotary_score_gain")
    if not model.latent:
        if given := [name for name in beside if getattr(model, name)]:
            raise md.MeshDSLError(f"model: {given[0]} is of latent attention; set model.latent")
        return
    unlike = {
        "kv_heads": bool(model.kv_heads) and model.kv_heads != model.heads,
        "query_norm": model.choice("query_norm") != "none",
        "biases": bool({*model.choice("biases")} & {*BIASES[:4]}),
        "sinks": model.choice("sinks") == "yes",
        "attention_softcap": bool(model.attention_softcap),
        "rotary_fraction": model.rotary_fraction != 1,
        "positions": not model.rotary,
        "norm": model.choice("norm") != "rms" or model.choice("norm_from_one") == "yes",
    }
    if wrong := [name for name, is_wrong in unlike.items() if is_wrong]:
        raise md.MeshDSLError(
            f"model: latent attention has no such {wrong[0]}; leave model.{wrong[0]} out"
        )
    if not model.turned or model.turned % 2:
        raise md.MeshDSLError(
            "model: latent attention needs an even number of features that are turned, not "
            f"turned={model.turned}"
        )


def _check_rotary(model: Any) -> None:
    """Raise a MeshDSLError unless the settings of rotary positions go together."""
    most = model.turned or model.head_size
    if model.rotary_dim.size % 2 or not 0 < model.rotary_dim.size <= most:
        part = model.rotary_fraction
        some = "" if part == 1 else f", of which rotary_fraction={part:g}"
        raise md.MeshDSLError(
            f"model: rotary positions need an even head_dim, not {model.head_size}{some}"
        )
    if model.rotary_scaling not in ("none", "linear"):
        if not model.rotary_length:
            raise md.MeshDSLError(
                f"model: rotary_scaling={model.rotary_scaling} needs rotary_length, the tokens "
                "of the sequences that the model was trained on"
            )
        pairs = model.rotary_dim.size // 2
        for name in ("rotary_short", "rotary_long"):
            count = len(getattr(model, name))
            if model.rotary_scaling == "longrope" and count != pairs:
                raise md.MeshDSLError(
                    f"model: {name} has {count} factors; expected {pairs}, one for each pair "
                    "of features that is turned"
                )
        if model.rotary_scaling in ("llama3", "yarn") and model.rotary_high <= model.rotary_low:
            raise md.MeshDSLError(
                f"model: rotary_high={model.rotary_high:g} is to be more than "
                f"rotary_low={model.rotary_low:g}"
            )


def _check_experts(model: Any) -> None:
    """Raise a MeshDSLError unless the settings of experts go together."""
    if not model.gated or model.choice("activation") not in ("silu", CLAMPED):
        raise md.MeshDSLError("model: experts need mlp=gated and activation=silu or clamped")
    if model.experts_shared_gate and not model.experts_shared:
        raise md.MeshDSLError("model: experts_shared_gate needs experts_shared")
    members, odd = divmod(model.experts, model.router_groups)
    used = model.router_groups_used or model.router_groups
    if odd or used > model.router_groups or model.experts_used > members * used:
        raise md.MeshDSLError(
            f"model: experts={model.experts} in router_groups={model.router_groups}, of which "
            f"router_groups_used={used}, do not give each token "
            f"experts_used={model.experts_used}"
        )
