"""How near `explain` comes to the compiler, in memory and in the time of a step.

    python -m benchmarks.estimate_accuracy --cases "fsdp 2k full" "tensor 2k full" --keep texts

`explain` sees the jaxpr alone. Each case is then compiled for its target, with the options that
training uses. With `--keep` the compiled programs stay in a folder and are not compiled again. A
case that fails or does not fit is a row too. The compiler's times are replayed from its schedule,
not measured: both columns use the same table of hardware.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.machine import Network, Target, find_target
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.out_of_memory import parse_oom
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.tools.analysis import Analysis
from meshdsl.train.auto_settings import choose
from meshdsl.train.config import Config
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from .kept import compiled
from .measure import show

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A training step of a published model on a target; `batch` is sequences of `length` tokens.

    `remat` and `loss_chunk` are the settings of the model. Where they are "auto", `memory` is their
    budget, such as "32GiB".
    """

    model: str
    layout: str
    target: str
    mesh: dict[str, int]
    batch: int
    length: int
    remat: str = "full"
    memory: str = "80%"
    loss_chunk: int | str = 0

    def __str__(self):
        mesh = ", ".join(f"{axis}={n}" for axis, n in self.mesh.items())
        return (
            f"{self.model}, {self.layout} {mesh}, {self.target}, "
            f"{self.batch} x {self.length}, remat {self.remat}"
        )

    def analysis(self, layout: Layout | None = None, target: Target | None = None) -> Analysis:
        """What `explain` and compiling start from, under another layout and target if given."""
        sizes = {"batch": self.batch, "model.length": self.length}
        kept = {"model.loss_chunk": self.loss_chunk}
        kept |= {"model.remat": self.remat, "memory": self.memory}
        config = override(Config(), **model_values(self.model) | sizes | kept)
        layout, target = layout or find_layout(self.layout), target or find_target(self.target)
        chosen = choose(config, layout, self.mesh, target)
        return training_analysis(str(self), chosen.config, layout, self.mesh, target, chosen)


_LLAMA = {
    "fsdp": ("v5p:4x4x4", {"data": 64}, 64),
    "tensor": ("v5p:2x2x2", {"model": 8}, 8),
    "fsdp-sequence": ("v5p:4x4x4", {"data": 16, "model": 4}, 64),
}
CASES = {
    f"{layout} {length // 1024}k {remat}": Case(
        "llama3-8b", layout, target, mesh, batch, length, remat
    )
    for layout, (target, mesh, batch) in _LLAMA.items()
    for length, remat in ((8192, "full"), (2048, "full"), (2048, "none"))
} | {
    "tensor 2k none half": Case("llama3-8b", "tensor", "v5p:2x2x2", {"model": 8}, 4, 2048, "none"),
    # Estimates were not fitted to any of these.
    "v6e fsdp-sequence": Case(
        "llama3-8b", "fsdp-sequence", "v6e:8x8", {"data": 16, "model": 4}, 64, 2048
    ),
    "v5e fsdp-tensor": Case(
        "llama3-8b", "fsdp-tensor", "v5e:8x8", {"data": 16, "model": 4}, 64, 2048
    ),
    "hybrid-fsdp": Case(
        "llama2-7b", "hybrid-fsdp", "v5p:4x4x4", {"replica": 4, "data": 16}, 64, 4096
    ),
    "gpt2 fsdp": Case("gpt2-1.5b", "fsdp", "v6e:4x4", {"data": 16}, 64, 1024),
    "gpt2 data": Case("gpt2-355m", "data", "v5e:4x4", {"data": 16}, 64, 1024, "none"),
}


def off(estimate: float, truth: float) -> str:
    """The error of an estimate relative to the truth: `+3.1%`."""
    return f"{estimate / truth - 1:+.1%}"


def rows(name: str, case: Case, keep: Path | None) -> tuple[list[str], list[str]]:
    """A row of each table: memory and time."""
    analysis = case.analysis()
    start = time.perf_counter()
    explanation = analysis.explain()
    seconds, memory, estimated = time.perf_counter() - start, explanation.memory, explanation.time
    mesh = make_mesh(analysis.sizes, target_devices(analysis.target))
    found = compiled(
        keep and keep / f"accuracy-{name.replace(' ', '-')}", lambda: analysis.on(mesh).lowered, {}
    )
    if "error" in found:
        says, verdict = ("fits" if memory.fits else "does not fit"), parse_oom(found["error"])
        needed = f"refused: {verdict.needed / GIB:.2f}" if verdict else found["error"][:90]
        return [str(case), f"{memory.peak / GIB:.2f}, {says}", needed, *["-"] * 3], [
            str(case),
            f"{1000 * estimated.step:.1f}",
            *["-"] * 6,
            f"{seconds:.1f}",
        ]
    exact = (
        "exact"
        if memory.arguments == found["arguments"]
        else f"{memory.arguments - found['arguments']:+,} bytes"
    )
    peaks = (
        f"{memory.peak / GIB:.2f}",
        f"{found['peak'] / GIB:.2f}",
        off(memory.peak, found["peak"]),
    )
    network = Network(analysis.target, analysis.sizes)
    run = replay(found["text"], analysis.target.chip, network, analysis.sizes)
    times = [f"{1000 * t:.1f}" for t in (estimated.step, run.step)] + [
        off(estimated.step, run.step)
    ]
    parts = [
        f"{1000 * t:.1f}" for t in (estimated.compute, run.compute, estimated.exposed, run.exposed)
    ]
    return [str(case), *peaks, exact, f"{found['arguments'] / GIB:.3f}"], [
        str(case),
        *times,
        *parts,
        f"{seconds:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=f"some of: {'; '.join(CASES)}",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where compiled programs are kept"
    )
    given = parser.parse_args()
    compile_only()
    memory = [["case", "peak GiB, explain", "compiler", "off by", "arguments", "arguments GiB"]]
    times = [
        [
            "case",
            "step ms, explain",
            "replay",
            "off by",
            "compute ms, explain",
            "replay",
            "exposed ms, explain",
            "replay",
            "explain s",
        ]
    ]
    for name in given.cases:
        try:
            of_memory, of_time = rows(name, CASES[name], given.keep)
        except MeshDSLError as error:
            of_memory, of_time = [name, str(error), *["-"] * 4], [name, *["-"] * 8]
        memory.append(of_memory)
        times.append(of_time)
        print("; ".join(of_memory[:4]), "|", "; ".join(of_time[1:4]), flush=True)
    show(memory, "memory")
    show(times, "time")


if __name__ == "__main__":
    main()
