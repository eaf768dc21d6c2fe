"""What the adapters of BERT and ViT have in common: a few settings, and names for classes."""

from __future__ import annotations

from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.models.families.adapter import MOST, Said
from meshdsl.models.families.decoder import ACTIVATIONS
from meshdsl.schema import as_word, number, shown, table, whole, word

SETTINGS = {
    "hidden_size": whole(768),
    "intermediate_size": whole(3072),
    "num_hidden_layers": whole(12, most=MOST),
    "num_attention_heads": whole(12),
    "layer_norm_eps": number(1e-12, above=0),
    "hidden_act": word("gelu", tuple(ACTIVATIONS)),
    "id2label": table(None),
    "num_labels": whole(2),
}
NAMES = {
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "norm_epsilon": "layer_norm_eps",
}


def labels(count: int) -> dict[str, Any]:
    """What a file says of so many classes."""
    names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def classes(said: Said) -> int:
    """How many classes there are; two where a file does not say it."""
    if said["id2label"] is None:
        return said["num_labels"]
    if not said["id2label"] or not all(name.isdecimal() for name in said["id2label"]):
        raise MeshDSLError(
            f"config.json: id2label={shown(said['id2label'])}: expected a name for the number of "
            "each class"
        )
    return len(said["id2label"])


def one_of(said: Said, known: tuple[str, ...]) -> str:
    """The class that reads a file: the first of `known`, where it does not say one.

    Raises:
      MeshDSLError: it says another one.
    """
    found = (said["architectures"] or known)[0]
    if found not in known:
        verb = "are" if known[1:] else "is"
        raise MeshDSLError(
            f"config.json: the architecture `{as_word(found)}` is not known"
            f"{nearest(found, known)}; {', '.join(known)} {verb}"
        )
    return found
