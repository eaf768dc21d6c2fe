"""Steps of training, each under many layouts, for benchmarks that compare estimates of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.tools.analysis import Analysis
from meshdsl.train.config import Config
from meshdsl.train.settings import override


@dataclass(frozen=True)
class Workload:
    """One step of training on a target, and the ways to lay it out.

    Attributes:
      model: of a published model, or empty.
      settings: of the run, beside those of the model.
      ways: lines such as `fsdp-tensor data=16,model=4 full`: a layout, a mesh and `model.remat`.
    """

    target: str
    settings: Mapping[str, Any]
    ways: tuple[str, ...]
    model: str = ""

    @property
    def words(self) -> str:
        """The target and the settings in one line."""
        settings = (f"{key.removeprefix('model.')}={value}" for key, value in self.settings.items())
        return f"{self.model} on {self.target}, {' '.join(settings)}".strip()

    def analysis(self, way: str) -> Analysis:
        """What estimating and compiling one of the ways start from."""
        name, mesh, remat = way.split()
        sizes = {axis: int(n) for axis, n in (part.split("=") for part in mesh.split(","))}
        model = model_values(self.model) if self.model else {}
        config = override(Config(), **(model | dict(self.settings) | {"model.remat": remat}))
        layout = _layout(name, sizes)
        return training_analysis(way, config, layout, sizes, find_target(self.target))


_TENSOR = (
    "heads?, kv_heads?, d_ff -> model",
    {"rule": "vocab? -> model", "uneven": "pad"},
)
_CONTEXT = ("length -> context", "queries? -> context", "memory? -> context")


def _stages(microbatches: int, rounds: int = 1) -> dict[str, Any]:
    """A rule that makes a pipeline of the layers."""
    cut = {"microbatches": {"batch": microbatches}, "rounds": rounds}
    return {"rule": "layers? -> stage", **cut}


_STAGES_SEQUENCE = (_stages(8), "batch -> data, stage", *_TENSOR, "length -> model")
# Layouts that are not shipped.
_OWN: dict[str, dict[str, Any]] = {
    "data-tensor": {"rules": ["batch -> data", *_TENSOR]},
    "data-sequence": {"rules": ["batch -> data", *_TENSOR, "length -> model"]},
    "zero1-tensor": {"rules": ["batch -> data", *_TENSOR], "optimizer": ["d_model -> data"]},
    "zero1-sequence": {
        "rules": ["batch -> data", *_TENSOR, "length -> model"],
        "optimizer": ["d_model -> data"],
    },
    "zero2-sequence": {
        "rules": ["batch -> data", *_TENSOR, "length -> model"],
        "gradients": ["d_model -> data"],
    },
    "hybrid-sequence": {
        "rules": ["batch -> replica, data", *_TENSOR, "length -> model"],
        "parameters": ["d_model -> data"],
    },
    "hybrid-tensor": {
        "rules": ["batch -> replica, data", *_TENSOR],
        "parameters": ["d_model -> data"],
    },
    "hybrid-zero1": {
        "rules": ["batch -> replica, data"],
        "optimizer": ["d_model -> data"],
    },
    # Weights of the feed-forward layer are split along d_ff, the others along d_model.
    "fsdp-ff": {"rules": ["batch -> data"], "parameters": ["d_ff, d_model -> data"]},
    "tensor-step": {
        "rules": ["batch -> data", *_TENSOR],
        "parameters": ["d_model -> data"],
        "gradients": ["d_model -> data"],
        "gather": "step",
    },
    "context-tensor": {
        "rules": ["batch -> data", *_TENSOR, *_CONTEXT],
        "parameters": ["d_model -> data, context"],
    },
    "context-hybrid": {
        "rules": ["batch -> replica, data", *_CONTEXT],
        "parameters": ["d_model -> data, context"],
    },
    "stages-fsdp": {
        "rules": [_stages(4), "batch -> data, stage"],
        "parameters": ["d_model -> data"],
        "gather": "step",
    },
    "stages-tensor": {"rules": [_stages(4), "batch -> data, stage", *_TENSOR]},
    "stages-sequence": {"rules": _STAGES_SEQUENCE},
    "stages-sequence-fsdp": {
        "rules": _STAGES_SEQUENCE,
        "parameters": ["d_model -> data"],
        "gather": "step",
    },
    "rounds2-sequence": {"rules": [_stages(8, 2), *_STAGES_SEQUENCE[1:]]},
    "rounds4-sequence": {"rules": [_stages(8, 4), *_STAGES_SEQUENCE[1:]]},
    "conv-channels": {"rules": ["batch -> data", "channels? -> model"]},
    "conv-zero1": {"rules": ["batch -> data"], "optimizer": ["channels? -> data"]},
    "conv-fsdp": {"rules": ["batch -> data"], "parameters": ["channels? -> data"]},
    "conv-rows": {"rules": ["batch -> data", "height? -> rows"]},
    "conv-rows-fsdp": {
        "rules": ["batch -> data", "height? -> rows"],
        "parameters": ["channels? -> data"],
    },
    "conv-spatial-zero1": {
        "rules": ["batch -> data", "height? -> rows", "width? -> cols"],
        "optimizer": ["channels? -> data"],
    },
}


def _layout(name: str, sizes: Mapping[str, int]) -> Layout:
    if name not in _OWN:
        return Layout.load(name)
    return Layout.from_dict({"mesh": dict(sizes), "layout": _OWN[name]}, name=name)


# On 64 chips, beside those of `_ON_64`: of further families, and with further policies.
_FAMILIES_ON_64 = (
    "fsdp-ff data=64 none",
    "fsdp-ff data=64 full",
    "tensor-step data=16,model=4 none",
    "context-tensor data=16,context=2,model=2 none",
    "context-hybrid replica=2,data=16,context=2 none",
    "context data=16,context=4 none",
    "context-ring data=16,context=4 none",
    "fsdp-tensor data=8,model=8 full",
    "hybrid-tensor replica=2,data=8,model=4 none",
    "stages-fsdp stage=2,data=16,model=2 full",
    "stages-tensor stage=4,data=4,model=4 full",
    "stages-sequence stage=2,data=8,model=4 none",
)
# Beside those of `_ON_64` with long sequences. Without rematerialisation the memory is just enough,
# or just too little.
_LONG_ON_64 = (
    "fsdp data=64 none",
    "fsdp-sequence data=16,model=4 none",
    "hybrid-fsdp replica=4,data=16 hidden",
    "fsdp-ff data=64 full",
    "context-tensor data=16,context=2,model=2 full",
    "context-ring data=16,context=4 full",
    "fsdp-tensor data=32,model=2 hidden",
    "stages-sequence stage=4,data=4,model=4 full",
    "stages-sequence-fsdp stage=4,data=4,model=4 full",
    "stages-sequence stage=8,data=2,model=4 full",
    "rounds2-sequence stage=4,data=4,model=4 full",
    "rounds4-sequence stage=4,data=4,model=4 full",
    "rounds2-sequence stage=8,data=2,model=4 full",
    "rounds4-sequence stage=8,data=2,model=4 full",
)


def _crossed(layouts: Sequence[str], remats: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{layout} {remat}" for layout in layouts for remat in remats)


_ON_64 = (
    "fsdp data=64",
    "hybrid-fsdp replica=4,data=16",
    "fsdp-sequence data=32,model=2",
    "fsdp-sequence data=16,model=4",
    "fsdp-sequence data=8,model=8",
    "fsdp-tensor data=32,model=2",
    "fsdp-tensor data=16,model=4",
    "zero1-sequence data=16,model=4",
    "zero1-tensor data=8,model=8",
    "data-sequence data=8,model=8",
    "hybrid-sequence replica=4,data=4,model=4",
    "hybrid-tensor replica=2,data=16,model=2",
    "context data=32,context=2",
    "ulysses data=32,context=2",
    "ulysses data=16,context=4",
    "fsdp-once data=64",
)
_MORE_ON_64 = (
    "fsdp data=64 hidden",
    "fsdp data=64 qkv",
    "hybrid-fsdp replica=16,data=4 full",
    "fsdp-sequence data=16,model=4 hidden",
    "fsdp-tensor data=16,model=4 hidden",
    "context data=16,context=4 full",
    "zero2-sequence data=16,model=4 full",
    "hybrid-zero1 replica=4,data=16 full",
)
_EXPERTS_ON_64 = (
    "fsdp data=64",
    "hybrid-fsdp replica=4,data=16",
    "fsdp-tensor data=16,model=4",
    "fsdp-sequence data=16,model=4",
    "experts data=32,expert=2",
    "experts data=16,expert=4",
    "experts data=8,expert=8",
    "experts data=4,expert=16",
    "experts-fsdp data=16,expert=4",
    "experts-fsdp data=8,expert=8",
    "experts-fsdp data=4,expert=16",
    "experts-data data=64",
    "experts-tensor data=8,expert=4,model=2",
)
_MORE_EXPERTS_ON_64 = (
    "fsdp data=64 hidden",
    "experts-fsdp data=8,expert=8 hidden",
    "experts-fsdp data=32,expert=2 none",
    "experts-tensor data=4,expert=8,model=2 none",
)
_ON_16 = (
    "data data=16",
    "zero1 data=16",
    "zero2 data=16",
    "fsdp data=16",
    "hybrid-fsdp replica=4,data=4",
    "data-tensor data=8,model=2",
    "data-tensor data=4,model=4",
    "zero1-tensor data=8,model=2",
    "fsdp-tensor data=4,model=4",
    "data-sequence data=8,model=2",
    "data-sequence data=4,model=4",
    "zero1-sequence data=8,model=2",
    "fsdp-sequence data=4,model=4",
    "ulysses data=8,context=2",
    "context data=8,context=2",
)
_SMALL = {
    "precision.compute": "bfloat16",
    "model.family": "transformer",
    "model.style": "llama",
    "model.layers": 4,
    "model.d_model": 2048,
    "model.heads": 16,
    "model.kv_heads": 8,
    "model.d_ff": 8192,
    "model.vocab": 32000,
    "model.length": 2048,
    "batch": 64,
}
_UNET = {
    "precision.compute": "bfloat16",
    "model.family": "unet",
    "model.channels": 128,
    "model.levels": 3,
    "model.height": 256,
    "model.width": 256,
    "model.colors": 3,
    "model.outputs": 3,
    "batch": 64,
}
WORKLOADS = {
    "8b 8k": Workload(
        "v5p:4x4x4",
        {"batch": 64, "model.length": 8192},
        _crossed(_ON_64, ("full",)) + _MORE_ON_64 + _LONG_ON_64,
        "llama3-8b",
    ),
    "8b 2k": Workload(
        "v5p:4x4x4",
        {"batch": 64, "model.length": 2048},
        _crossed(_ON_64, ("none",)) + _MORE_ON_64 + _FAMILIES_ON_64,
        "llama3-8b",
    ),
    "small": Workload(
        "v5p:4x4x4",
        _SMALL,
        (*_crossed(_ON_64[:-1], ("none", "full")), "zero1 data=64 none", *_FAMILIES_ON_64),
    ),
    "unet": Workload(
        "v6e:4x4",
        _UNET,
        _crossed(
            (
                "data data=16",
                "conv-zero1 data=16",
                "conv-fsdp data=16",
                "conv-rows data=8,rows=2",
                "conv-rows data=4,rows=4",
                "conv-rows data=2,rows=8",
                "conv-rows-fsdp data=8,rows=2",
                "spatial data=4,rows=2,cols=2",
                "spatial data=1,rows=4,cols=4",
                "conv-spatial-zero1 data=4,rows=2,cols=2",
                "conv-channels data=8,model=2",
                "conv-channels data=4,model=4",
            ),
            ("none", "full"),
        ),
    ),
    "experts": Workload(
        "v5p:4x4x4",
        {"batch": 64, "model.length": 4096, "model.capacity": 1.25},
        _crossed(_EXPERTS_ON_64, ("none", "full")) + _MORE_EXPERTS_ON_64,
        "olmoe-1b-7b",
    ),
    "gpt2 v5e": Workload(
        "v5e:4x4",
        {"batch": 64, "model.length": 1024},
        _crossed(_ON_16, ("full", "hidden")),
        "gpt2-355m",
    ),
    "qwen3 v6e": Workload(
        "v6e:4x8",
        {"batch": 64, "model.length": 4096},
        (
            "hybrid-fsdp replica=4,data=8 full",
            "fsdp data=32 full",
            "data data=32 full",
            "fsdp data=32 dots",
            "context data=8,context=4 full",
            "zero1 data=32 full",
            "zero2 data=32 hidden",
            "fsdp-sequence data=16,model=2 dots",
            "ulysses data=16,context=2 hidden",
            "fsdp-sequence data=8,model=4 full",
            "fsdp-tensor data=8,model=4 full",
        ),
        "qwen3-1.7b",
    ),
    "small v6e": Workload(
        "v6e:4x4", _SMALL | {"batch": 32}, _crossed(_ON_16[:-1], ("none", "full"))
    ),
}
