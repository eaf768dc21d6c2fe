"""Rotary positions in a `config.json`: its tables, old and new, and our settings.

Version 5 of `transformers` has one table, `rope_parameters`. Older files have `rope_scaling`, and
further settings outside of the table. If a file has both tables, `rope_scaling` holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.schema import (
    REQUIRED,
    Setting,
    as_word,
    each,
    number,
    read,
    shown,
    switch,
    table,
    whole,
)

SCALINGS = ("none", "linear", "llama3", "yarn", "longrope", "dynamic")
FULL, LOCAL = "full_attention", "sliding_attention"  # the two kinds of layers
SETTINGS: dict[str, Setting] = {
    "rope_parameters": table(None),
    "rope_scaling": table(None),
    "rope_theta": number(10_000.0, above=1),
    "partial_rotary_factor": number(1.0, above=0),
    "original_max_position_embeddings": whole(),
}
_COMMON = {
    "rope_theta": number(above=1),
    "partial_rotary_factor": number(above=0),
    "mscale_all_dim": number(None, least=0),
}
_FACTOR = {"factor": number(REQUIRED, above=0)}
_FIRST = {"original_max_position_embeddings": whole()}
_TABLES: dict[str, dict[str, Setting]] = {
    "default": _COMMON,
    "linear": {**_COMMON, **_FACTOR},
    "dynamic": {**_COMMON, **_FACTOR},
    "llama3": {
        **(_COMMON | _FACTOR | _FIRST),
        "low_freq_factor": number(REQUIRED, above=0),
        "high_freq_factor": number(REQUIRED, above=0),
    },
    "yarn": {
        **(_COMMON | _FIRST),
        "factor": number(REQUIRED, above=0, null=True),
        "attention_factor": number(None, above=0),
        "beta_fast": number(None, least=0),
        "beta_slow": number(None, least=0),
        "mscale": number(None, least=0),
        "truncate": switch(True),
    },
    "longrope": {
        **(_COMMON | _FIRST),
        "factor": number(None, above=0),
        "attention_factor": number(None, above=0),
        "short_factor": each(number(above=0), REQUIRED),
        "long_factor": each(number(above=0), REQUIRED),
    },
}
# Our settings, each with their name in the tables, for errors.
TERMS = {
    "rotary_low": "beta_slow or low_freq_factor",
    "rotary_high": "beta_fast or high_freq_factor",
    "rotary_base": "rope_theta",
    "rotary_factor": "factor",
    "rotary_length": "original_max_position_embeddings",
    "rotary_fraction": "partial_rotary_factor",
    "rotary_short": "short_factor",
    "rotary_long": "long_factor",
    "turned": "qk_rope_head_dim",
}


def one_table(said: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The table of a file that has one table for all layers, and the name of the table.

    Settings outside of the table are added to it, where it has no such entry.
    """
    name = "rope_scaling" if said["rope_scaling"] else "rope_parameters"
    found = said[name] or {}
    if FULL in found or LOCAL in found:
        raise MeshDSLError(
            f"config.json: {name}={shown(found)}: expected one table for all layers, not one for "
            "each kind"
        )
    beside = {key: said[key] for key in ("rope_theta", "partial_rotary_factor")}
    if "original_max_position_embeddings" in said:  # it holds whatever the table says
        first = said["original_max_position_embeddings"]
        return {**beside, **found, "original_max_position_embeddings": first}, name
    return {**beside, **found}, name


def kind_of(found: Mapping[str, Any], name: str, known: tuple[str, ...] = SCALINGS[1:]) -> str:
    """The type of rotary positions in a table.

    Raises:
      MeshDSLError: the type is not one of `known`.
    """
    kind = found.get("rope_type", found.get("type", "default"))
    if kind != "default" and kind not in known:
        others = f"{', '.join(known[:-1])} and {known[-1]} are" if known[1:] else f"{known[0]} is"
        raise MeshDSLError(
            f"config.json: {name}: rope_type={as_word(kind)}: rotary positions of this type "
            f"are not known here; {others}"
        )
    return kind


def settings_of(kind: str, table: Mapping[str, Any], name: str, longest: int) -> dict[str, Any]:
    """Our settings of rotary positions, from their table.

    Args:
      kind: the type of rotary positions.
      table: the entries of the table, `rope_theta` among them.
      name: the name of the table, for errors.
      longest: how many tokens the longest sequence has.

    Raises:
      MeshDSLError: an entry is missing, or not legal.
    """
    said = read(_TABLES[kind], table, f"config.json: {name} of rope_type={kind}")
    found = {
        "rotary_base": said["rope_theta"],
        "rotary_fraction": said.get("partial_rotary_factor", 1.0),
    }
    if kind == "default":
        return found
    length = said.get("original_max_position_embeddings", longest)
    factor = said["factor"] or longest / length
    found |= {"rotary_scaling": kind, "rotary_factor": factor}
    if kind != "linear":
        found["rotary_length"] = length
    if kind == "llama3":
        found |= {"rotary_low": said["low_freq_factor"], "rotary_high": said["high_freq_factor"]}
    elif kind == "yarn":
        found |= {"rotary_low": said["beta_slow"] or 1.0, "rotary_high": said["beta_fast"] or 32.0}
        found |= {"rotary_gain": _yarn_gain(said, factor), "rotary_whole": said["truncate"]}
    elif kind == "longrope":
        usual = math.sqrt(1 + math.log(factor) / math.log(max(length, 2))) if factor > 1 else 1.0
        found["rotary_gain"] = said["attention_factor"] or usual
        for name in ("short", "long"):
            found[f"rotary_{name}"] = tuple(map(float, said[f"{name}_factor"]))
    return found


def _yarn_gain(said: Mapping[str, Any], factor: float) -> float:
    if said["attention_factor"]:
        return said["attention_factor"]
    gain = lambda weight: 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0
    first, second = said["mscale"], said["mscale_all_dim"]
    return gain(first) / gain(second) if first and second else gain(1)


def written(model: Any) -> dict[str, Any]:
    """Their settings of a model's rotary positions, in the old form, which every version reads."""
    found: dict[str, Any] = {"rope_theta": model.rotary_base, "rope_scaling": None}
    kind = model.rotary_scaling
    if kind == "none":
        return found
    scaling: dict[str, Any] = {"rope_type": kind, "factor": model.rotary_factor}
    low, high = model.rotary_low, model.rotary_high
    if kind == "llama3":
        scaling |= {"low_freq_factor": low, "high_freq_factor": high}
    elif kind == "longrope":
        scaling |= {"attention_factor": model.rotary_gain or 1.0}
        scaling["short_factor"] = list(model.rotary_short)
        scaling["long_factor"] = list(model.rotary_long)
        found["original_max_position_embeddings"] = model.rotary_length
    elif kind == "yarn":
        scaling |= {"beta_slow": low, "beta_fast": high, "attention_factor": model.scaling.gain}
        if not model.rotary_whole:
            scaling["truncate"] = False
        if model.rotary_score_gain:
            scaling["mscale_all_dim"] = model.rotary_score_gain
    if kind == "dynamic":  # this type goes by it, and longer texts are read all the same
        found["max_position_embeddings"] = model.rotary_length
    elif kind != "linear" and model.rotary_length:
        scaling["original_max_position_embeddings"] = model.rotary_length
    return found | {"rope_scaling": scaling}
