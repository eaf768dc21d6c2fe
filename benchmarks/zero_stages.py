"""Memory and collectives of the ZeRO stages, beside the formulas of their paper.

    python -m benchmarks.zero_stages
    python -m benchmarks.zero_stages precision.compute=bfloat16 --quick

The paper is Rajbhandari et al., 2020. The program is a whole step of adamw on a small llama,
compiled for 8 TPU chips. The paper counts bytes per parameter: of parameters, gradients and
optimizer state (2 + 2 + 12 for float16 with a float32 copy; here, in the dtypes of the run,
4 + 4 + 8 for float32), each divided by the devices that split it. What stays between steps is the
program's arguments, and the compiler states it exactly. Gradients live inside a step, in its
temporaries, with activations, gathered parameters and what the compiler adds, so that a formula
bounds them from below.

Volume is what a device sends in a step, by the paper's rule: an all-reduce of m bytes sends 2m, a
gather or a scatter m, times (n - 1)/n over n devices. The collectives are those that the program
asks for; the compiler makes some reduce-scatters all-reduces (`results/zero_stages.json`).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.program.collective import Collective, summary
from meshdsl.tensor import is_tensor
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import measure

GIB = 2**30
MODEL = {
    "style": "llama",
    "layers": 8,
    "d_model": 1024,
    "heads": 8,
    "head_dim": 128,
    "d_ff": 2816,
    "vocab": 8192,
    "length": 512,
}
DATA, HYBRID = {"data": 8}, {"replica": 2, "data": 4}


class Stage(NamedTuple):
    """A layout, and what it splits.

    Attributes:
      split: over how many devices parameters, gradients and optimizer state are split.
      offload: what is kept on the host.
    """

    layout: md.Layout
    mesh: dict[str, int]
    split: tuple[int, int, int]
    offload: tuple[str, ...] = ()


def stages() -> dict[str, Stage]:
    fsdp = find_layout("fsdp")
    return {
        "data": Stage(find_layout("data"), DATA, (1, 1, 1)),
        "zero1": Stage(find_layout("zero1"), DATA, (1, 1, 8)),
        "zero2": Stage(find_layout("zero2"), DATA, (1, 8, 8)),
        "fsdp (zero3)": Stage(fsdp, DATA, (8, 8, 8)),
        "fsdp-once (gathered per step)": Stage(find_layout("fsdp-once"), DATA, (8, 8, 8)),
        "hybrid-fsdp, 2 x 4": Stage(find_layout("hybrid-fsdp"), HYBRID, (4, 4, 4)),
        "zero1, optimizer on the host": Stage(
            find_layout("zero1"), DATA, (1, 1, 8), ("optimizer",)
        ),
        "fsdp, activations on the host": Stage(fsdp, DATA, (8, 8, 8), ("activations",)),
    }


def parameters(job: Job) -> int:
    """How many elements the model's parameters have."""
    return sum(t.size for t in jax.tree.leaves(job.state.params, is_leaf=is_tensor))


def itemsizes(config: Config) -> tuple[int, int, int, int]:
    """Bytes of a parameter at rest, of its gradient, of its optimizer state, and where it is used.

    The optimizer state is Adam's two moments.
    """

    def size(name: str) -> int:
        return jnp.dtype(name).itemsize

    precision = config.precision
    return (
        size(precision.params),
        size(precision.reduce),
        2 * size(precision.optimizer),
        size(precision.compute),
    )


def volume(collectives: list[Collective], mesh: dict[str, int]) -> float:
    """Bytes that a device sends in a step."""
    total = 0.0
    for c in collectives:
        n = math.prod(mesh[axis] for axis in c.axes)
        total += (2 if c.operation == "psum" else 1) * c.total_bytes * (n - 1) / n
    return total


def expected_volume(name: str, count: int, sizes: tuple[int, int, int, int]) -> float:
    """Bytes that a device sends in a step by the paper's section 7.

    Args:
      name: of the stage.
      count: of parameters.
      sizes: see `itemsizes`; a parameter counts with the bytes that it has where it travels.
    """
    at_rest, gradient, _, used = sizes
    if name == "data":
        return 2 * gradient * count * 7 / 8
    if name.startswith(("zero1", "zero2")):
        # A reduce-scatter of gradients, and a gather of updated parameters.
        return (gradient + at_rest) * count * 7 / 8
    if name.startswith("fsdp-once"):
        return (gradient + used) * count * 7 / 8
    inside = (gradient + 2 * used) * count  # gathered forward and again backward
    return inside * 3 / 4 + 2 * gradient * count / 4 / 2 if "hybrid" in name else inside * 7 / 8


def in_words(collectives: list[Collective]) -> str:
    """The count, operation, axes and GiB of collectives: `8 all_gather(data) 1.25, ...`."""
    return ", ".join(
        f"{count} {operation}({'+'.join(axes)}) {size / GIB:.2f}"
        for (operation, axes), (count, size) in summary(collectives).items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="v5p:2x2x2", help="one with 8 chips")
    parser.add_argument("--stages", nargs="+", choices=stages(), default=list(stages()))
    parser.add_argument(
        "--quick",
        action="store_true",
        help="let the compiler try less hard (O0): the same collectives, more temporaries",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="of the job, such as precision.compute=bfloat16",
    )
    given = parser.parse_args()
    compile_only()
    if given.quick:
        jax.config.update("jax_optimization_level", "O0")
    config = override(
        Config(), given.settings, batch=8, **{f"model.{key}": value for key, value in MODEL.items()}
    )
    sizes, devices = itemsizes(config), target_devices(find_target(given.target))
    memory = [
        [
            "stage",
            "arguments GiB",
            "formula",
            "gradients, formula",
            "temporaries GiB",
            "peak GiB",
            "host GiB",
        ]
    ]
    moved = [["stage", "sent GiB", "formula", "collectives asked for: count, GiB"]]
    for name in given.stages:
        stage = stages()[name]
        run = dataclasses.replace(config, offload=stage.offload)
        job = Job(run, stage.layout, md.make_mesh(stage.mesh, devices))
        count = parameters(job)
        found = job.lowered.compile().memory_analysis()
        p, g, o = (size * count / n / GIB for size, n in zip(sizes, stage.split, strict=False))
        o = 0.0 if "optimizer" in stage.offload else o
        here = found.argument_size_in_bytes, found.temp_size_in_bytes, found.peak_memory_in_bytes
        host = max(found.host_argument_size_in_bytes, found.host_temp_size_in_bytes)
        arguments, temporaries, peak, host = (f"{size / GIB:.3f}" for size in (*here, host))
        memory.append([name, arguments, f"{p + o:.3f}", f"{g:.3f}", temporaries, peak, host])
        collectives = job.program().collectives
        sent = volume(collectives, stage.mesh) / GIB
        moved.append(
            [
                name,
                f"{sent:.3f}",
                f"{expected_volume(name, count, sizes) / GIB:.3f}",
                in_words(collectives),
            ]
        )
        print(*memory[-1], *moved[-1][1:], sep=" | ", flush=True)
    print(
        f"\njax {jax.__version__}, {given.target}, {count:,} parameters, {config.precision}, "
        f"batch {config.batch} of length {config.model.length}\n"
    )
    measure.show(memory, "memory")
    measure.show(moved, "collectives")


if __name__ == "__main__":
    main()
