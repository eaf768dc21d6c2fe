"""Mixtures of experts, compiled for TPUs that need not be there.

    python -m benchmarks.experts --rows "mixtral capacity" "mixtral dropless" --keep texts

Each row is a training step, by default of 64 sequences of 4096 tokens on `v5p:4x4x4`: memory by the
compiler, and the time of its schedule, replayed. The share of ideal compute is the MFU: FLOPs of
the experts that a token uses, and causal attention half or in full. Kernels of attention count as
at 50% of the peak, and grouped products at `grouped_efficiency` of the chip, which
`benchmarks.grouped_schedules` reads off their schedules; the last column has them at 50% too. The
second table says what the milliseconds of a step are spent on. With `--keep` compiled programs stay
in a folder and are not compiled again.

    python -m benchmarks.experts --dispatch

compiles one layer and its gradients for one CPU device, for several numbers of experts and tokens,
and says how much memory the program takes beside its arguments and results.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.figures import byte_words
from meshdsl.layers import Experts
from meshdsl.machine import FUSED_EFFICIENCY, Network, find_target
from meshdsl.machine.timeline import Timeline
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler import instruction_time
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.tools.analysis import Analysis
from meshdsl.train.config import Config
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from .kept import compiled
from .measure import show

BATCH, LENGTH, TARGET = 64, 4096, "v5p:4x4x4"
MIXTRAL: dict[str, Any] = {
    "layers": 32,
    "d_model": 4096,
    "heads": 32,
    "kv_heads": 8,
    "d_ff": 14336,
    "vocab": 32000,
    "experts": 8,
    "experts_used": 2,
    "rotary_base": 1e6,
}
QWEN3: dict[str, Any] = {
    "layers": 48,
    "d_model": 2048,
    "heads": 32,
    "kv_heads": 4,
    "head_dim": 128,
    "d_ff": 768,
    "vocab": 151936,
    "experts": 128,
    "experts_used": 8,
    "query_norm": "head",
    "rotary_base": 1e6,
}


@dataclass(frozen=True)
class Case:
    """A training step of a mixture of experts.

    Attributes:
      model: settings, or the name of a published one.
      exchange: rows travel to the experts, see docs/experts.md.
      how: further settings.
    """

    model: dict[str, Any] | str
    layout: str
    mesh: dict[str, int]
    remat: str
    capacity: float = 0.0
    exchange: bool = False
    how: dict[str, Any] = field(default_factory=dict)
    target: str = TARGET
    batch: int = BATCH
    length: int = LENGTH

    def analysis(self, name: str) -> Analysis:
        """What `explain` and compiling start from."""
        values = model_values(self.model if isinstance(self.model, str) else "llama")
        model = {} if isinstance(self.model, str) else self.model | {"capacity": self.capacity}
        values |= {f"model.{key}": value for key, value in model.items()}
        sizes = {"batch": self.batch, "model.length": self.length, "model.remat": self.remat}
        config = override(Config(), **values | sizes | {"precision.compute": "bfloat16"} | self.how)
        layout = find_layout(self.layout)
        if self.exchange:
            rule = {"rule": "experts? -> expert", "move": "exchange"}
            layout = md.Layout([rule, *layout.rules[1:]], layout.parameters, mesh=layout.mesh)
        return training_analysis(name, config, layout, self.mesh, find_target(self.target))


CASES = {
    "mixtral capacity": Case(
        MIXTRAL, "experts-fsdp", {"data": 16, "expert": 4}, "dots", capacity=1.25
    ),
    "mixtral dropless": Case(MIXTRAL, "experts-fsdp", {"data": 16, "expert": 4}, "full"),
    "mixtral exchange": Case(
        MIXTRAL, "experts-fsdp", {"data": 16, "expert": 4}, "full", exchange=True
    ),
    "mixtral dropless, fsdp": Case(MIXTRAL, "fsdp", {"data": 64}, "full"),
    "qwen3 capacity": Case(QWEN3, "experts-fsdp", {"data": 16, "expert": 4}, "full", capacity=1.25),
    "qwen3 dropless": Case(QWEN3, "experts-fsdp", {"data": 16, "expert": 4}, "full"),
    "qwen3 exchange": Case(QWEN3, "experts-fsdp", {"data": 16, "expert": 4}, "full", exchange=True),
    "qwen3 dropless, 16": Case(QWEN3, "experts-fsdp", {"data": 4, "expert": 16}, "full"),
    "qwen3 exchange, 16": Case(
        QWEN3, "experts-fsdp", {"data": 4, "expert": 16}, "full", exchange=True
    ),
    "qwen3 dropless, fsdp": Case(QWEN3, "fsdp", {"data": 64}, "full"),
    # As many sequences for a chip as the recipes of MaxText have.
    "mixtral 256 chips": Case(
        MIXTRAL,
        "fsdp",
        {"data": 256},
        "hidden",
        how={"microbatches": 9},
        target="v5p:4x8x8",
        batch=36 * 256,
    ),
    "mixtral 256 chips, int8": Case(
        MIXTRAL,
        "fsdp",
        {"data": 256},
        "hidden",
        how={"microbatches": 9, "precision.matmul": "int8"},
        target="v5p:4x8x8",
        batch=36 * 256,
    ),
    "deepseek-v3 512 chips": Case(
        "deepseek-v3-671b",
        "fsdp",
        {"data": 512},
        "full",
        how={"precision.reduce": "bfloat16", "offload": ["activations"]},
        target="v5p:8x8x8",
        batch=6 * 512,
        length=8192,
    ),
}
HEAD = ["step", "layout", "mesh", "remat", "temporaries", "peak", "estimated", "step s"]
HEAD += ["estimated", "waits", "MFU", "attention in full", "kernels at 50%"]


def row(name: str, case: Case, keep: Path | None) -> tuple[list[str], list[str]]:
    """The cells of one case, and what its milliseconds are spent on."""
    analysis = case.analysis(name)
    assert analysis.target is not None
    estimated = analysis.explain()
    assert estimated.time is not None and analysis.model_flops is not None
    mesh = make_mesh(analysis.sizes, target_devices(analysis.target))
    kept = keep and keep / name.replace(",", "").replace(" ", "-")
    found = compiled(kept, lambda: analysis.on(mesh).lowered, {})
    sizes = ", ".join(f"{axis}={n}" for axis, n in case.mesh.items())
    first = [name, case.layout, sizes, case.remat]
    if "error" in found:
        return [*first, *["-"] * 2, found["error"][:60], *["-"] * 6], [name, *["-"] * len(CAUSES)]
    chip, module = analysis.target.chip, Module(found["text"])
    time = replay(module, chip, Network(analysis.target, analysis.sizes), analysis.sizes)
    half, full = (flops / chip.flops for flops in analysis.model_flops)
    of_experts = {op.tag for op in analysis.on(mesh).program().ops if op.name == "experts"}
    spent = causes(module, time, of_experts)
    grouped = spent["grouped products"] + spent["grouped again"]
    at_half = time.step + grouped * (chip.grouped_efficiency / FUSED_EFFICIENCY - 1)
    cells = [
        *first,
        byte_words(found["temporaries"]),
        byte_words(found["peak"]),
        byte_words(estimated.memory.peak or 0),
        f"{time.step:.2f}",
        f"{estimated.time.step:.2f}",
        f"{time.exposed / time.step:.1%}",
        *(f"{ideal / seconds:.1%}" for ideal, seconds in ((half, time.step), (full, time.step))),
        f"{half / at_half:.1%}",
    ]
    spent["ideal"] = half
    return cells, [name, *(f"{1000 * spent[cause]:,.0f}" for cause in CAUSES)]


CAUSES = ("ideal", "grouped products", "grouped again", "attention", "other products")
CAUSES += ("rows of experts", "other passes", "other again", "waits")


def causes(module: Module, time: Timeline, of_experts: set[str]) -> dict[str, float]:
    """The seconds of a step by what they are spent on; `again` is what is recomputed.

    Args:
      of_experts: the tags of the ops that send rows through experts.
    """
    spent = dict.fromkeys(CAUSES, 0.0) | {"waits": time.exposed + time.copies}
    for span in (span for span in time.spans if span.stream == "compute"):
        i = module.instructions[span.name]
        stated, again = instruction_time.stated_flops(i), "rematted_computation" in i.scope
        if stated and stated.grouped:
            cause = "grouped again" if again else "grouped products"
        elif again:
            cause = "other again"
        elif stated:
            cause = "attention"
        elif instruction_time.flops(module, i):
            cause = "other products"
        else:
            cause = "rows of experts" if span.tag in of_experts else "other passes"
        spent[cause] += span.repeats * (span.end - span.start)
    return spent


def dispatch() -> list[list[str]]:
    """Temporaries of a layer and its gradients: a row for each number of experts."""
    tokens, rows = (4096, 8192, 16384), []
    for experts in (8, 64, 256):
        cells = [str(experts)]
        for capacity in (1.25, 0.0):
            cells += [byte_words(_temporaries(experts, n, capacity)) for n in tokens]
        rows.append(cells)
    kinds = [f"{kind}, {n} tokens" for kind in ("capacity", "dropless") for n in tokens]
    return [["experts", *kinds], *rows]


def _temporaries(experts: int, tokens: int, capacity: float) -> int:
    d_model, d_ff = md.Dim("d_model", 64), md.Dim("d_ff", 32)
    of_key = lambda key: Experts.init(
        key, d_model, d_ff, md.Dim("experts", experts), top=2, capacity=capacity
    )
    dims = md.Dim("batch", 1), md.Dim("length", tokens), d_model
    x = md.tensor(jax.ShapeDtypeStruct((1, tokens, d_model.size), jnp.float32), dims)
    step = md.value_and_grad(lambda layer, x: md.mean(md.square(layer(x))))
    abstract = jax.eval_shape(of_key, jax.random.key(0))
    found = jax.jit(step).lower(abstract, x).compile().memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=CASES, help="by default all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of compiled programs")
    parser.add_argument("--dispatch", action="store_true", help="the memory of one layer alone")
    given = parser.parse_args()
    if given.dispatch:
        show(dispatch())
        return
    compile_only()
    rows, spent = [HEAD], [["ms of", *CAUSES]]
    for name in given.rows or CASES:
        cells, milliseconds = row(name, CASES[name], given.keep)
        rows.append(cells)
        spent.append(milliseconds)
        print("; ".join([*cells, *milliseconds[1:]]), flush=True)
    print()
    show(rows)
    show(spent)


if __name__ == "__main__":
    main()
