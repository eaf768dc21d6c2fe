"""Compiles the step of each implementation for a TPU pod, without having one.

    python -m benchmarks.tpu_compile --layouts fsdp-sequence --topology v5p:4x4x4

The table has memory per chip, the step as replayed from the compiler's schedule, collectives and
the time of compiling. It needs libtpu (`pip install "jax[tpu]"`) and no TPU: the compiler is told
of a topology. Bytes of collectives are those of the compiled program, on one chip, in one step.
"""

import argparse
import os

# libtpu reads these when jax is imported: the host that it is to stand for, and that it is not to
# ask a metadata server about it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
from jax.experimental import topologies

from meshdsl.machine import Network, Target, find_target
from meshdsl.predict.compiler.replay import replay
from meshdsl.program import summary

from . import cases, measure
from .against_handwritten import IMPLEMENTATIONS

GIB = 2**30


def shapes(case: cases.Case):
    """The shapes of parameters and inputs."""
    parameters = {
        name: jax.ShapeDtypeStruct(s, case.dtype) for name, s in case.parameter_shapes().items()
    }
    return parameters, jax.ShapeDtypeStruct(case.input_shape(), case.dtype)


def memory(compiled) -> list[float]:
    """GiB per chip: arguments, results, temporaries, and the most that lives at once."""
    m = compiled.memory_analysis()
    sizes = (
        m.argument_size_in_bytes,
        m.output_size_in_bytes,
        m.temp_size_in_bytes,
        m.peak_memory_in_bytes,
    )
    return [size / GIB for size in sizes]


def compare(
    layout: str, case: cases.Case, mesh: jax.sharding.Mesh, target: Target, names, options
) -> None:
    """Compiles all implementations under one layout, and prints their tables."""
    sizes = dict(mesh.shape)
    rows = [
        [
            "implementation",
            "arguments GiB",
            "results GiB",
            "temporaries GiB",
            "peak GiB",
            "moved GiB",
            "step ms",
            "kernels ms",
            "exposed ms",
            "compile s",
        ]
    ]
    moved: dict[str, dict] = {}
    for name in names:
        program = IMPLEMENTATIONS[name](case, layout, mesh)
        try:
            programs = {name: (program, program.arguments(*shapes(case)))}
            built = measure.build(programs, compiler_options=options)[name]
        except jax.errors.JaxRuntimeError as error:  # a program that doesn't fit is refused
            rows.append([name, *["-"] * 8, str(error).splitlines()[0][:60]])
            continue
        found = measure.collectives(built.compiled, mesh)
        moved[name] = summary(found)
        total = sum(c.total_bytes for c in found) / GIB
        time = replay(built.compiled.as_text(), target.chip, Network(target, sizes), sizes)
        rows.append(
            [
                name,
                *(f"{size:.3f}" for size in memory(built.compiled)),
                f"{total:.3f}",
                *(f"{1000 * took:.1f}" for took in (time.step, time.fused, time.exposed)),
                f"{built.compile:.1f}",
            ]
        )
    measure.show(rows, f"{layout} on {sizes}")
    keys = sorted({key for collectives in moved.values() for key in collectives})
    rows = [["collective: count, GiB", *moved]]
    for operation, axes in keys:
        cells = [moved[name].get((operation, axes), (0, 0)) for name in moved]
        rows.append(
            [
                f"{operation}({', '.join(axes)})",
                *(f"{count}, {size / GIB:.3f}" for count, size in cells),
            ]
        )
    measure.show(rows, "collectives")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="+", choices=cases.LAYOUTS, default=["fsdp-sequence"])
    parser.add_argument(
        "--implementations", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS)
    )
    parser.add_argument("--topology", default="v5p:4x4x4", help="one with 64 devices")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the compiler",
    )
    given = parser.parse_args()
    devices = topologies.get_topology_desc(platform="tpu", topology_name=given.topology).devices
    print(
        f"jax {jax.__version__}, {given.topology}, {cases.POD}, options {given.option}", flush=True
    )
    options = dict(option.split("=", 1) for option in given.option)
    target = find_target(given.topology)
    for layout in given.layouts:
        axis_types = (jax.sharding.AxisType.Auto,) * 2
        mesh = jax.make_mesh(
            cases.POD_MESHES[layout], ("data", "model"), axis_types=axis_types, devices=devices
        )
        compare(layout, cases.POD, mesh, target, given.implementations, options)


if __name__ == "__main__":
    main()
