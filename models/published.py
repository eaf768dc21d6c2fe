"""The settings and tensors of published models, read and written.

    family, settings = family_of(config)     # from a `config.json`
    config_of(model)                         # and back
    places(form_of(model), parameters)       # where the parameters are in the files

Each published family has an adapter; see `meshdsl.models.families`.
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

# The names of our settings in an error: `norm_epsilon is more than`, `heads=4`.
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
    """Our family and settings of the model that a `config.json` describes.

    Args:
      tensors: the names of the tensors in its files, without copies. They decide where a setting is
        missing.

    Raises:
      MeshDSLError: there is no adapter for its family, or it asks for a feature that our models
        lack.
    """
    adapter = _adapter(config)
    found = adapter.read(config, tensors)
    try:
        _CONFIGS[adapter.family](**found)
    except MeshDSLError as error:  # settings do not go together; the file has their names
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
      MeshDSLError: there is no adapter for models of its class.
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
    """The `config.json` of a model, from which `family_of` reads a model that computes the same.

    Raises:
      MeshDSLError: files of the family have no setting for a choice of the model.
    """
    form = form_of(model)
    adapter = ADAPTERS[form]
    config: dict[str, Any] = {"architectures": [adapter.architecture]}
    config["model_type"] = adapter.types[0]
    values = _values(model) if isinstance(model, Architecture) else vars(model)
    config |= {theirs: values[ours] for ours, theirs in adapter.names.items()}
    config |= adapter.written(model)
    try:
        found = family_of(config)[1]
    except MeshDSLError as error:
        raise MeshDSLError(f"a {form} of Hugging Face is not as this model: {error}") from None
    is_decoder = isinstance(model, Architecture)
    read = Architecture(**found) if is_decoder else dataclasses.replace(model, **found)
    before, after = _comparable(model), _comparable(read)
    if other := [key for key, value in before.items() if after[key] != value]:
        raise MeshDSLError(
            f"model.{other[0]}: a {form} of Hugging Face has no setting for what this model chooses"
        )
    return config


def _adapter(config: Mapping[str, Any]) -> Adapter:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        close = nearest(kind, TYPES)
        raise MeshDSLError(f"config.json: the architecture `{as_word(kind)}` is not known{close}")
    return TYPES[kind]


def _values(model: Architecture) -> dict[str, Any]:
    """The settings of a transformer, with values in the place of 0 and other defaults."""
    d_ff, head_dim = model.dims["d_ff"].size, model.dims["head_dim"].size
    return vars(model) | {
        "d_ff": d_ff,
        "head_dim": head_dim,
        "kv_heads": model.kv_heads or model.heads,
        "dense_d_ff": model.dense_d_ff or d_ff,
        "value_dim": model.value_dim or head_dim,
        "query_latent": model.query_latent or None,
    }


def _comparable(model: Any) -> dict[str, Any]:
    """The settings of a model in a form that is equal for models that compute the same."""
    if not isinstance(model, Architecture):
        return {each.name: getattr(model, each.name) for each in dataclasses.fields(model)}
    names = [each.name for each in dataclasses.fields(Architecture)]
    settings = {name: model.choice(name) for name in names if not name.startswith("rotary_")}
    del settings["style"]
    if model.rotary_scaling == "dynamic":  # files have `rotary_length` in its place
        del settings["length"]
    if settings["activation"] != CLAMPED:
        del settings["activation_limit"], settings["activation_slope"]
    local, groups, values = model.local_layers, model.router_groups, _values(model)
    settings |= {name: values[name] for name in ("d_ff", "head_dim", "kv_heads")}
    settings["dense_d_ff"] = values["dense_d_ff"] if model.dense_layers else 0
    settings["value_dim"] = values["value_dim"] if model.latent else 0
    settings["router_groups_used"] = (model.router_groups_used or groups) if groups > 1 else 1
    settings["biases"] = set(model.choice("biases"))
    settings["query_scale"] = model.query_scale or float(values["head_dim"])
    settings |= {"window": model.window if any(local) else 0, "pattern": local}
    if model.rotary:
        near = model.rotary_local_base or (0.0 if model.scaling else model.rotary_base)
        settings |= {"rotary_base": model.rotary_base, "rotary_fraction": model.rotary_fraction}
        settings |= {
            "rotary_local_base": near if any(local) else 0,
            "rotary_scaling": model.scaling,
        }
        settings["rotary_score_gain"] = model.rotary_score_gain
    return settings
