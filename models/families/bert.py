"""BERT, for the words that are left out of a text, and for classes of texts."""

from __future__ import annotations

from typing import Any

from meshdsl.models.families.adapter import Adapter, Names, Said
from meshdsl.models.families.decoder import ACTIVATIONS, THEIRS
from meshdsl.models.families.encoder import NAMES, SETTINGS, classes, labels, one_of
from meshdsl.schema import only, whole

_CLASSES = "BertForSequenceClassification"


class Bert(Adapter):
    """BERT."""

    name = "bert"
    types = ("bert",)
    family = "bert"
    architecture = "BertForMaskedLM"
    settings = {
        **SETTINGS,
        "vocab_size": whole(30_522),
        "max_position_embeddings": whole(512),
        "type_vocab_size": whole(2),
        "position_embedding_type": only("absolute"),
        "is_decoder": only(False),
        "tie_word_embeddings": only(True),
        "problem_type": only("single_label_classification", None),
    }
    names = {
        **NAMES,
        "vocab": "vocab_size",
        "length": "max_position_embeddings",
        "types": "type_vocab_size",
    }
    tables = {
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
    layers = {
        "attention.self.query": ("attention.query",),
        "attention.self.key": ("attention.key",),
        "attention.self.value": ("attention.value",),
        "attention.output.dense": ("attention.out",),
        "attention.output.LayerNorm": ("attention_norm",),
        "intermediate.dense": ("mlp.up",),
        "output.dense": ("mlp.down",),
        "output.LayerNorm": ("mlp_norm",),
    }
    prefix = "bert.encoder.layer."
    copies = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    older = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}

    def not_read(self, parameters: Names) -> tuple[str, ...]:
        if "head.weight" in parameters:
            return ("bert.embeddings.position_ids",)
        # The table of the embedding once more, and what the second task of its training needs.
        predictions = ("cls.predictions.decoder.", "cls.seq_relationship.")
        return (*predictions, "bert.pooler.", "bert.embeddings.position_ids")

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        kind = one_of(said, (self.architecture, "BertForPreTraining", _CLASSES))
        ours = {"activation": ACTIVATIONS[said["hidden_act"]]}
        return ours | ({"classes": classes(said)} if kind == _CLASSES else {})

    def written(self, model: Any) -> dict[str, Any]:
        theirs = {"hidden_act": THEIRS[model.activation], "tie_word_embeddings": True}
        if not model.classes:
            return theirs
        return theirs | labels(model.classes) | {"architectures": [_CLASSES]}
