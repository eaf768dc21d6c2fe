"""Which steps of training of published models are proved under which layouts, and in what time.

    python -m benchmarks.proofs

Each step is traced on one device and under each layout, on 64 devices or 16 by 4 that are not
there, and compared: `meshdsl verify` with settings of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import meshdsl as md
from meshdsl.commands.settings import model_values
from meshdsl.mesh import abstract_mesh
from meshdsl.proof import Reference
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from .measure import show

_MODELS = (
    *("gpt2-1.5b", "llama3-70b", "mistral-7b-v0.1", "qwen2-7b", "qwen3-32b", "gemma2-9b"),
    *("gemma3-12b", "phi3-mini", "olmo2-7b", "t5-base", "bert-base-uncased", "vit-base-16", "unet"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "deepseek-v2-lite", "deepseek-v3-671b"),
)
_LAYOUTS = (
    *("data", "fsdp", "hybrid-fsdp", "zero1", "zero2", "tensor", "fsdp-tensor", "sequence"),
    *("fsdp-sequence", "ulysses", "context", "pipeline", "pipeline-fsdp", "pipeline-tensor"),
    *("pipeline-rounds", "spatial", "context-ring", "experts", "experts-fsdp", "experts-tensor"),
    "experts-exchange",
)
_SETTINGS = ("batch=64", "precision.compute=bfloat16")


def sizes(layout: md.Layout) -> Mapping[str, int]:
    """Those of a mesh: 64 devices along the only axis, or 16 by 4; other given sizes stay."""
    alone = len(layout.mesh) == 1
    of = {"rest": 64 if alone else 16}
    found = {axis: of[size] if size == "rest" else int(size) for axis, size in layout.mesh.items()}
    return found | {axis: 4 for axis in ("model", "context") if axis in found and len(found) < 3}


def judged(reference: Reference, config: Config, name: str) -> str:
    """Whether the step is proved, and the seconds of the comparison; or why there is no such."""
    layout = find_layout(name)
    mesh: Any = abstract_mesh(sizes(layout))
    try:
        program = Job(config, layout.with_mesh(sizes(layout)), mesh).program()
    except md.MeshDSLError:
        return "does not fit"
    start = time.perf_counter()
    proof = reference.agrees(program.jaxpr, [result.name for result in program.results])
    word = "proved" if proof.doubt is None else f"not: {proof.doubt.primitive}"
    return f"{word}, {time.perf_counter() - start:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=_MODELS)
    parser.add_argument("--layouts", nargs="+", default=_LAYOUTS)
    arguments = parser.parse_args()
    rows = [["model", *arguments.layouts]]
    for model in arguments.models:
        config = override(Config(), _SETTINGS, **model_values(model))
        one: Any = abstract_mesh({})
        reference = Reference(Job(config, md.Layout(), one).program().jaxpr)
        rows.append([model, *(judged(reference, config, name) for name in arguments.layouts)])
    show(rows, "Steps that are proved")


if __name__ == "__main__":
    main()
