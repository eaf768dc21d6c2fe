"""Whether a step of training takes as long on a GPU, and as much memory, as `explain` says.

    python -m benchmarks.gpu_estimates --out estimates.json
    python -m benchmarks.gpu_estimates --hardware mine.toml     # else the GPU is calibrated first
    python -m benchmarks.gpu_estimates --platform cpu --tiny    # the whole command, without a GPU

On one GPU, so without collectives: models of several families, with different things kept for the
backward pass. Each step is estimated with the figures of the table of chips, and with those that
`meshdsl calibrate` measures, and runs at once. Memory is what the compiler says of the program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import meshdsl as md
from meshdsl.calibration.hardware_file import hardware_file
from meshdsl.calibration.measure import measure
from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.machine import chips, find_target
from meshdsl.machine.chips import chip_of
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from .gpu import LLAMA, TINY, check_platform
from .measure import show

GIB = 2**30
_LLAMA = {f"model.{key}": value for key, value in LLAMA.items()}
# name -> settings of the model, rows in a step, what is kept for the backward pass
WORKLOADS: dict[str, tuple[Mapping[str, Any], int, tuple[str, ...]]] = {
    "gpt2-124m": (model_values("gpt2-124m"), 16, ("none", "dots", "hidden", "full")),
    "llama-1.1b": (_LLAMA, 8, ("dots", "hidden", "full")),
    "llama-1.1b, long": (_LLAMA | {"model.length": 16384}, 1, ("dots", "full")),
    "experts": (
        _LLAMA
        | {"model.layers": 8, "model.d_ff": 1408, "model.experts": 16, "model.experts_used": 4},
        8,
        ("dots", "full"),
    ),
    "vit": (
        {
            "model.family": "vit",
            "model.layers": 24,
            "model.d_model": 1024,
            "model.heads": 16,
            "model.d_ff": 4096,
            "model.height": 224,
            "model.width": 224,
            "model.patch": 16,
            "model.classes": 1000,
        },
        128,
        ("none", "full"),
    ),
}


@dataclass
class Step:
    """One way to train: what is estimated of it, and what is measured.

    Attributes:
      estimated: seconds of a step, by where the figures of the chip are from.
      peak, memory: bytes by `explain`, and by the compiler.
    """

    name: str
    estimated: dict[str, float]
    peak: float
    seconds: float
    memory: int

    def row(self) -> list[str]:
        cells = [self.name, f"{1e3 * self.seconds:.1f}"]
        for seconds in self.estimated.values():
            cells += [f"{1e3 * seconds:.1f}", f"{seconds / self.seconds - 1:+.0%}"]
        memory = [f"{x / GIB:.2f}" for x in (self.memory, self.peak)]
        return [*cells, *memory, f"{self.peak / self.memory - 1:+.0%}"]


def taken(name: str, config: Config, targets: Mapping[str, Any], steps: int) -> Step:
    """A step after it was estimated and compiled, and ran so many times without a wait between."""
    layout, estimated, peak = find_layout("single"), {}, float("nan")
    for source, target in targets.items():
        found = training_analysis(name, config, layout, {"one": 1}, target).explain()
        assert found.time is not None
        estimated[source], peak = found.time.step, found.memory.peak
    job = Job(config, layout, md.make_mesh({"one": 1}, jax.devices()[:1]))
    compiled = job.lowered.compile()
    # Tokens differ: gradients that are added to one row would wait for each other.
    counted = lambda x: (np.arange(x.size) % 100).astype(x.dtype).reshape(x.shape)
    batch = jax.tree.map(lambda x: jax.device_put(counted(x), x.sharding), job.batch)
    state = job.step.init(jax.random.key(0))
    state, _ = jax.block_until_ready(compiled(state, batch))
    start = time.perf_counter()
    for _ in range(steps):
        state, _ = compiled(state, batch)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - start) / steps
    m = compiled.memory_analysis()
    memory = m.argument_size_in_bytes + m.temp_size_in_bytes
    memory += m.output_size_in_bytes - m.alias_size_in_bytes
    return Step(name, estimated, peak, seconds, memory)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--hardware", type=Path, help="a calibrated machine")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a JSON file for all figures")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the command")
    given = parser.parse_args(arguments)
    check_platform(given.platform)
    device = jax.devices()[0]
    chip = chip_of(device) or chips()["cpu"]
    path = given.hardware or Path("build/calibrated-gpu.toml")
    if not given.hardware:
        path.parent.mkdir(exist_ok=True)
        measured = measure([device], 1.0 if given.tiny else 30.0, lambda _: None)
        path.write_text(hardware_file(chip.name, chip, measured, [device]), encoding="utf-8")
    targets = {"calibrated": find_target(f"{chip.name}:1", hardware=path)}
    if chip.timed:
        targets = {"table": find_target(f"{chip.name}:1")} | targets
    steps = []
    for name in given.workloads:
        settings, rows, kept = WORKLOADS[name]
        for remat in kept:
            chosen = settings | {"batch": rows, "model.remat": remat}
            chosen |= {"precision.compute": "bfloat16"}
            if given.tiny:
                few = {k: v for k, v in TINY.items() if f"model.{k}" in settings}
                chosen |= {f"model.{key}": value for key, value in few.items()} | {"batch": 2}
            step = taken(f"{name}, {remat}", override(Config(), **chosen), targets, given.steps)
            steps.append(step)
            print(*step.row(), sep="  ", file=sys.stderr, flush=True)
    head = ["step", "measured ms"]
    head += [word for source in targets for word in (f"explain ms, {source}", "off by")]
    show([[*head, "memory GiB", "explain", "off by"], *(step.row() for step in steps)])
    errors = {
        source: statistics.median(abs(s.estimated[source] / s.seconds - 1) for s in steps)
        for source in targets
    }
    print(f"{device.device_kind}, jax {jax.__version__}; median errors {errors}")
    if given.out:
        found = [asdict(step) for step in steps]
        given.out.write_text(json.dumps({"versions": jax.__version__, "steps": found}, indent=1))


if __name__ == "__main__":
    main()
