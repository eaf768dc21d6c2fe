"""ViT, for classes of images."""

from __future__ import annotations

from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.models.families import encoder
from meshdsl.models.families.adapter import Adapter, Names, Said
from meshdsl.models.families.decoder import ACTIVATIONS, THEIRS
from meshdsl.schema import one_or_each, switch, whole


class ViT(Adapter):
    """ViT."""

    name = "vit"
    types = ("vit",)
    family = "vit"
    architecture = "ViTForImageClassification"
    settings = {
        **encoder.SETTINGS,
        "num_channels": whole(3),
        "patch_size": whole(16),
        "image_size": one_or_each(whole(), 224, count=2),
        "qkv_bias": switch(True),
    }
    names = {
        **encoder.NAMES,
        "colors": "num_channels",
        "patch": "patch_size",
        "query_bias": "qkv_bias",
    }
    terms = {"height": "image_size", "width": "image_size"}
    tables = {
        "vit.embeddings.patch_embeddings.projection": ("patches",),
        "vit.layernorm": ("norm",),
        "classifier": ("head",),
    }
    layers = {
        "layernorm_before": ("attention_norm",),
        "attention.attention.query": ("attention.query",),
        "attention.attention.key": ("attention.key",),
        "attention.attention.value": ("attention.value",),
        "attention.output.dense": ("attention.out",),
        "layernorm_after": ("mlp_norm",),
        "intermediate.dense": ("mlp.up",),
        "output.dense": ("mlp.down",),
    }
    prefix = "vit.encoder.layer."
    bare = {
        "vit.embeddings.cls_token": ("token", 2),
        "vit.embeddings.position_embeddings": ("positions", 1),
    }
    apart = ("vit.embeddings.patch_embeddings.projection",)

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        encoder.one_of(said, (self.architecture,))
        size = said["image_size"]
        height, width = size if isinstance(size, list) else (size, size)
        ours = {"height": height, "width": width, "classes": encoder.classes(said)}
        return ours | {"activation": ACTIVATIONS[said["hidden_act"]]}

    def written(self, model: Any) -> dict[str, Any]:
        if model.height != model.width:
            raise MeshDSLError(
                f"model: a vit of Hugging Face has square images, and this one {model.height} x "
                f"{model.width}"
            )
        theirs = {"image_size": model.height, "hidden_act": THEIRS[model.activation]}
        return theirs | encoder.labels(model.classes)
