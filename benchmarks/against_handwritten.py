"""Times a step of meshdsl beside the same step written by hand, and left to XLA's partitioner.

    python -m benchmarks.against_handwritten --layouts data fsdp

It runs on 8 CPU devices. Loss and gradients of all implementations are first compared with one
device on a small case. The implementations run in turns, and ratios are medians of the ratio within
a round, because a shared machine changes its speed from minute to minute. Of tracing and lowering
the fastest of several times counts, in seconds of their thread; compiling is done once, in seconds
of the clock.
"""

import argparse
import statistics

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np  # noqa: E402

from . import cases, dsl, gspmd, handwritten, measure, model  # noqa: E402

BY_HAND = "by hand"
IMPLEMENTATIONS = {
    "meshdsl": dsl.build,
    BY_HAND: handwritten.build,
    "jit, usual": gspmd.usual,
    "jit, annotated": gspmd.annotated,
}


def mesh_of(shape: tuple[int, int]) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def check(layout: str, tolerance: float = 1e-5) -> None:
    """Compares loss and every gradient with those of one device, norm-wise, on the small case.

    Raises:
      AssertionError: one of them is off by more than `tolerance`.
    """
    parameters, x = model.initial(cases.TINY)
    loss, gradients = model.reference(parameters, x)
    for name, build in IMPLEMENTATIONS.items():
        program = build(cases.TINY, layout, mesh_of(cases.CPU_MESHES[layout]))
        found_loss, found = program.plain(*program.make()(*program.arguments(parameters, x)))
        for key, expected in (gradients | {"loss": loss}).items():
            value = found_loss if key == "loss" else found[key]
            error = np.linalg.norm(value - expected) / np.linalg.norm(expected)
            assert error < tolerance, f"{name}, {layout}: {key} is off by {error:.1e}"


def compare(layout: str, case: cases.Case, rounds: int, repeats: int) -> list[list[str]]:
    """Measures all implementations under one layout; returns their rows of the table."""
    mesh = mesh_of(cases.CPU_MESHES[layout])
    parameters, x = model.initial(case)
    programs = {}
    for name, build in IMPLEMENTATIONS.items():
        program = build(case, layout, mesh)
        programs[name] = program, program.arguments(parameters, x)
    built = measure.build(programs, repeats=repeats)
    seconds = measure.interleaved(
        {name: (built[name].compiled, programs[name][1]) for name in built}, rounds
    )
    rows = []
    for name, b in built.items():
        moved = sum(c.total_bytes for c in measure.collectives(b.compiled, mesh))
        rows.append(
            [f"{layout}, {name}", f"{1000 * statistics.median(seconds[name]):.1f}"]
            + [f"{measure.ratio(seconds[name], seconds[BY_HAND]):.3f}", f"{moved / 2**20:.2f}"]
            + [f"{t:.2f}" for t in (b.trace, b.lower, b.compile)]
            + [f"{b.trace / built[BY_HAND].trace:.2f}"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="+", choices=cases.LAYOUTS, default=cases.LAYOUTS)
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each step")
    parser.add_argument(
        "--repeats", type=int, default=5, help="times that each step is traced and lowered"
    )
    given = parser.parse_args()
    head = [
        "layout, implementation",
        "step ms",
        "/ by hand",
        "collectives MiB",
        "trace s",
        "lower s",
        "compile s",
    ]
    rows = [[*head, "trace / by hand"]]
    for layout in given.layouts:
        check(layout)
        rows += compare(layout, cases.CPU, given.rounds, given.repeats)
    print(f"jax {jax.__version__}, 8 CPU devices, {cases.CPU}\n")
    measure.show(rows)


if __name__ == "__main__":
    main()
