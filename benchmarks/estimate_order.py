"""Whether the estimate puts the layouts of one workload into the order that the compiler does.

    python -m benchmarks.estimate_order --workloads "8b 8k" "8b 2k"

Each workload is one step of training on one target, under many layouts, meshes and policies of
rematerialisation. Each is estimated, and compiled with the options that training uses; the
compiler's schedule is replayed. What does not fit by the compiler has no time, and leaves the
order.

A compilation takes a minute or two, so what the compiler said is written into
`estimate_order.json` beside this file, and is read from there the next time; `--compiled` leaves
out what is not there, and takes seconds. After a change of the replay, or with another compiler,
delete that file and compile anew. With `--keep` the compiled programs stay in a folder as well.

Spearman's rank correlation is 1 where both put the layouts into the same order. Regret is how much
longer the layout takes that the estimate takes for the fastest of those that fit by the estimate,
than the fastest of all that fit by the compiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.machine import Network, find_target
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.out_of_memory import parse_oom
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.tools.analysis import Analysis
from meshdsl.train.config import Config
from meshdsl.train.settings import override

from .kept import compiled
from .measure import show

GIB = 2**30
SAID = Path(__file__).with_suffix(".json")  # what the compiler said, by workload and way


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
    "small v6e": Workload(
        "v6e:4x4", _SMALL | {"batch": 32}, _crossed(_ON_16[:-1], ("none", "full"))
    ),
}


@dataclass(frozen=True)
class Found:
    """What came of one way; times in seconds, memory in bytes.

    Attributes:
      replayed_exposed: waiting for collectives, and copies.
      error: why there is no compiled program.
    """

    way: str
    estimated: float
    compute: float
    exposed: float
    peak: int
    fits: bool | None
    seconds: float
    replayed: float = 0.0
    replayed_compute: float | None = None
    replayed_exposed: float | None = None
    needed: int = 0
    error: str = ""


@dataclass
class Order:
    """How an order by the estimate compares with that by the compiler."""

    found: Sequence[Found]
    timed: list[Found] = field(init=False)

    def __post_init__(self):
        self.timed = [f for f in self.found if f.replayed]

    @property
    def spearman(self) -> float:
        """The correlation of both ranks of what the compiler gives a time."""
        first = _ranks([f.estimated for f in self.timed])
        second = _ranks([f.replayed for f in self.timed])
        return float(np.corrcoef(first, second)[0, 1]) if len(self.timed) > 1 else 1.0

    @property
    def regret(self) -> float:
        """How much longer the estimate's winner takes; infinite if the compiler refuses it."""
        able = [f for f in self.found if f.fits is not False]
        chosen = min(able, key=lambda f: f.estimated)
        best = min(f.replayed for f in self.timed)
        return chosen.replayed / best - 1 if chosen.replayed else float("inf")

    @property
    def wrongly_fit(self) -> list[str]:
        """What fits by the estimate, and the compiler refuses."""
        return [f.way for f in self.found if f.fits and f.error]


def _ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(np.array(values)))


def find(name: str, way: str, keep: Path | None, compiled_only: bool = False) -> Found | None:
    """Estimate and compile one way of a workload; None where it is not compiled and shall not be.

    Raises:
      MeshDSLError: the layout or mesh does not suit the model or the target.
    """
    said = json.loads(SAID.read_text()).get(name, {}).get(way) if SAID.exists() else None
    if said is None and compiled_only:
        return None
    analysis = WORKLOADS[name].analysis(way)
    start = time.perf_counter()
    explanation = analysis.explain()
    seconds = time.perf_counter() - start
    estimated, memory = explanation.time, explanation.memory
    assert estimated is not None
    if said is None:
        said = _compile(analysis, keep and keep / f"order-{name} {way}".replace(" ", "-"))
        everything = json.loads(SAID.read_text()) if SAID.exists() else {}
        everything.setdefault(name, {})[way] = said
        SAID.write_text(json.dumps(everything, indent=1) + "\n")
    return Found(
        way=way,
        estimated=estimated.step,
        compute=estimated.compute,
        exposed=estimated.exposed,
        peak=memory.peak,
        fits=memory.fits,
        seconds=seconds,
        **said,
    )


def _compile(analysis: Analysis, kept: Path | None) -> dict[str, Any]:
    """What the compiler says of one way, as fields of `Found`."""
    assert analysis.target is not None
    mesh = make_mesh(analysis.sizes, target_devices(analysis.target))
    got = compiled(kept, lambda: analysis.on(mesh).lowered, {})
    if "error" in got:
        verdict = parse_oom(got["error"])
        return {"needed": verdict.needed if verdict else 0, "error": got["error"][:90]}
    network = Network(analysis.target, analysis.sizes)
    run = replay(got["text"], analysis.target.chip, network, analysis.sizes)
    return {
        "replayed": run.step,
        "replayed_compute": run.compute,
        "replayed_exposed": run.exposed + run.copies,
        "needed": got["peak"],
    }


_HEAD = (
    "layout",
    "step ms, explain",
    "compiler",
    "off by",
    "compute ms, explain",
    "compiler",
    "exposed ms, explain",
    "compiler",
    "peak GiB, explain",
    "compiler",
)


def row(f: Found) -> list[str]:
    """A line of a workload's table."""
    peaks = [f"{f.peak / GIB:.1f}", f"{f.needed / GIB:.1f}"]
    if f.error:
        return [f.way, _ms(f.estimated), "refused", *["-"] * 5, *peaks]
    times = [_ms(f.estimated), _ms(f.replayed), f"{f.estimated / f.replayed - 1:+.1%}"]
    parts = [f.compute, f.replayed_compute, f.exposed, f.replayed_exposed]
    return [f.way, *times, *map(_ms, parts), *peaks]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _all(name: str, keep: Path | None, compiled_only: bool) -> Iterator[Found]:
    for way in WORKLOADS[name].ways:
        try:
            found = find(name, way, keep, compiled_only)
        except MeshDSLError as error:
            print(f"{name}, {way}: {error}", file=sys.stderr)
            continue
        if found is not None:
            print(name, "|", "; ".join(row(found)), file=sys.stderr, flush=True)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=list(WORKLOADS),
        metavar="WORKLOAD",
        help=f"some of: {'; '.join(WORKLOADS)}",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where compiled programs are kept"
    )
    parser.add_argument("--compiled", action="store_true", help="only what was compiled before")
    given = parser.parse_args()
    compile_only()
    summary = [["workload", "target", "layouts", "with a time", "Spearman", "regret", "refused"]]
    tables = {}
    for name in given.workloads:
        found = list(_all(name, given.keep, given.compiled))
        if not found:
            continue
        order = Order(found)
        by_compiler = sorted(found, key=lambda f: f.replayed or float("inf"))
        tables[name] = [list(_HEAD), *map(row, by_compiler)]
        summary.append(
            [
                name,
                WORKLOADS[name].target,
                str(len(found)),
                str(len(order.timed)),
                f"{order.spearman:.2f}",
                f"{order.regret:.1%}",
                ", ".join(order.wrongly_fit) or "none",
            ]
        )
    show(summary)
    for name, rows in tables.items():
        show(rows, name)


if __name__ == "__main__":
    main()
