"""Every published model that is known here: its settings and its tensors, in and out.

    family, settings = family_of(config)     # from a `config.json`
    config_of(model)                         # and back
    places(form_of(model), parameters)       # where the parameters are in the files

What is particular to a family is in its adapter; see `meshdsl.models.families`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.models import bert, t5, vit
from meshdsl.models.architecture import Architecture
from meshdsl.models.families import ADAPTERS, TYPES
from meshdsl.models.families.adapter import Adapter
from meshdsl.models.families.decoder import CLAMPED
from meshdsl.models.places import Place, places
from meshdsl.schema import as_word

__all__ = ["Place", "config_of", "family_of", "form_of", "form_of_config", "places"]

# Names of settings in an error of a configuration: `norm_epsilon is more than`, `heads=4`.
_NAMED = re.compile(r"^\w+(?= (?:is|has) )|\b\w+(?==)")
_CONFIGS: dict[str, Any] = {
    "transformer": Architecture,
    "bert": bert.Config,
    "vit": vit.Config,
    "t5": t5.Config,
}


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
    adapter = _adapter(config)
    found = adapter.read(config, tensors)
    try:
        _CONFIGS[adapter.family](**found)
    except MeshDSLError as error:  # of settings that do not go together
        theirs = {**adapter.terms, **adapter.names}
        said = str(error).removeprefix("model: ")
        text = _NAMED.sub(lambda at: theirs.get(at[0], at[0]), said)
        raise MeshDSLError(f"config.json: {text}") from None
    return adapter.family, found


def form_of_config(config: Mapping[str, Any], tensors: Collection[str] = ()) -> str:
    """The name of the adapter for the files with this `config.json`; as `family_of`."""
    family_of(config, tensors)
    return _adapter(config).name


def form_of(model: Any) -> str:
    """The name of the adapter for the files of a model.

    Raises:
      MeshDSLError: it has no form of Hugging Face.
    """
    if isinstance(model, Architecture):
        return model.style
    for name, kind in _CONFIGS.items():
        if isinstance(model, kind):
            return name
    raise MeshDSLError(
        "model.family: a transformer, a bert, a vit and a t5 have a form of Hugging Face"
    )


def config_of(model: Any) -> dict[str, Any]:
    """The `config.json` of a model, which `family_of` reads as the same.

    Raises:
      MeshDSLError: their files cannot say what it chooses.
    """
    form = form_of(model)
    adapter = ADAPTERS[form]
    made: dict[str, Any] = {"architectures": [adapter.architecture]}
    made["model_type"] = adapter.types[0]
    values = _values(model) if isinstance(model, Architecture) else vars(model)
    made |= {theirs: values[ours] for ours, theirs in adapter.names.items()}
    made |= adapter.written(model)
    try:
        found = family_of(made)[1]
    except MeshDSLError as error:
        raise MeshDSLError(f"a {form} of Hugging Face is not as this model: {error}") from None
    is_decoder = isinstance(model, Architecture)
    read = Architecture(**found) if is_decoder else dataclasses.replace(model, **found)
    before, after = _said(model), _said(read)
    if other := [key for key, value in before.items() if after[key] != value]:
        raise MeshDSLError(
            f"model.{other[0]}: a {form} of Hugging Face has no setting for what this model chooses"
        )
    return made


def _adapter(config: Mapping[str, Any]) -> Adapter:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        close = nearest(kind, TYPES)
        raise MeshDSLError(f"config.json: the architecture `{as_word(kind)}` is not known{close}")
    return TYPES[kind]


def _values(model: Architecture) -> dict[str, Any]:
    """The settings of a transformer as files say them, where each has a value."""
    d_ff, head_dim = model.dims["d_ff"].size, model.dims["head_dim"].size
    return vars(model) | {
        "d_ff": d_ff,
        "head_dim": head_dim,
        "kv_heads": model.kv_heads or model.heads,
        "dense_d_ff": model.dense_d_ff or d_ff,
        "value_dim": model.value_dim or head_dim,
        "query_latent": model.query_latent or None,
    }


def _said(model: Any) -> dict[str, Any]:
    """What a model computes, as far as settings say it, in one way for each."""
    if not isinstance(model, Architecture):
        return {each.name: getattr(model, each.name) for each in dataclasses.fields(model)}
    names = [each.name for each in dataclasses.fields(Architecture)]
    made = {name: model.choice(name) for name in names if not name.startswith("rotary_")}
    del made["style"]
    if model.rotary_scaling == "dynamic":  # their files say `rotary_length` in its place
        del made["length"]
    if made["activation"] != CLAMPED:
        del made["activation_limit"], made["activation_slope"]
    local, groups, values = model.local_layers, model.router_groups, _values(model)
    made |= {name: values[name] for name in ("d_ff", "head_dim", "kv_heads")}
    made["dense_d_ff"] = values["dense_d_ff"] if model.dense_layers else 0
    made["value_dim"] = values["value_dim"] if model.latent else 0
    made["router_groups_used"] = (model.router_groups_used or groups) if groups > 1 else 1
    made["biases"] = set(model.choice("biases"))
    made["query_scale"] = model.query_scale or float(values["head_dim"])
    made |= {"window": model.window if any(local) else 0, "pattern": local}
    if model.rotary:
        near = model.rotary_local_base or (0.0 if model.scaling else model.rotary_base)
        made |= {"rotary_base": model.rotary_base, "rotary_fraction": model.rotary_fraction}
        made |= {"rotary_local_base": near if any(local) else 0, "rotary_scaling": model.scaling}
        made["rotary_score_gain"] = model.rotary_score_gain
    return made
