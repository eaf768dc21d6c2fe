"""Convolutions over split images, beside `jit` with shardings, where XLA exchanges the halo.

    python -m benchmarks.conv_halo --rounds 40

A few layers of 2-D convolutions, forward and backward. The images are split over rows and columns
of 8 CPU devices. Both implementations are first compared with one device. Ratios are medians of the
ratio within a round, because a shared machine changes its speed from minute to minute; bytes are
those of the compiled program, on one device, in one step.
"""

import argparse
import dataclasses
import statistics

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import meshdsl as md  # noqa: E402

from . import measure  # noqa: E402
from .program import Program, put  # noqa: E402

OURS, GSPMD = "meshdsl", "jit"
SPEC = P(None, "rows", "cols")


@dataclasses.dataclass(frozen=True)
class Case:
    """Images and the convolutions that they go through.

    Attributes:
      size: of the images (batch, size, size, channels).
      taps: of the kernels (taps, taps, channels, channels).
      strides: one for each convolution.
      dilations: of the kernels, one for each convolution.
    """

    batch: int
    size: int
    channels: int
    taps: int = 3
    strides: tuple[int, ...] = (1, 1, 1, 1)
    dilations: tuple[int, ...] = (1, 1, 1, 1)

    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.size, self.size, self.channels)

    def weight_shape(self) -> tuple[int, ...]:
        return (self.taps, self.taps, self.channels, self.channels)


CASES = {
    "four of 3x3": Case(batch=2, size=128, channels=32),
    "four of 7x7": Case(batch=2, size=128, channels=8, taps=7),
    "strided, dilated": Case(
        batch=2, size=256, channels=16, strides=(1, 2, 1, 2), dilations=(1, 1, 4, 1)
    ),
}
TINY = {
    name: dataclasses.replace(case, size=case.size // 4, channels=4) for name, case in CASES.items()
}


def initial(case: Case):
    """Weights and a batch of images, as host arrays."""
    rng = np.random.default_rng(0)
    scale = (case.taps**2 * case.channels / 2) ** -0.5
    weights = [
        (rng.standard_normal(case.weight_shape()) * scale).astype(np.float32) for _ in case.strides
    ]
    return weights, rng.standard_normal(case.input_shape()).astype(np.float32)


def plain_loss(case: Case, weights, x, note=lambda x: x):
    """The function that both compute: convolutions, each with a ReLU, and the mean square.

    `note(x)` is called on every activation.
    """
    for w, stride, dilation in zip(weights, case.strides, case.dilations, strict=True):
        x = lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            "SAME",
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = note(jax.nn.relu(x))
    return jnp.mean(jnp.square(x))


def gspmd(case: Case, mesh) -> Program:
    """`jit` over whole arrays, every activation constrained to the split."""
    split = NamedSharding(mesh, SPEC)

    def make():
        def step(weights, x):
            return jax.value_and_grad(
                lambda w: plain_loss(case, w, x, lambda x: lax.with_sharding_constraint(x, split))
            )(weights)

        return jax.jit(step)

    def arguments(weights, x):
        return [put(w, NamedSharding(mesh, P())) for w in weights], put(x, split)

    return Program(make, arguments)


def dsl(case: Case, mesh) -> Program:
    """The same in meshdsl, under a layout that splits height and width."""
    batch, height, width, channels, below = (
        md.Dim(name, n)
        for name, n in zip(
            ("batch", "height", "width", "channels", "below"),
            (*case.input_shape(), case.channels),
            strict=True,
        )
    )
    rows, cols = md.Dim("kernel_height", case.taps), md.Dim("kernel_width", case.taps)
    layout = md.Layout(rules=["height -> rows", "width -> cols"])

    def loss(weights, x):
        over = {"height": rows, "width": cols}
        for w, stride, dilation in zip(weights, case.strides, case.dilations, strict=True):
            x = md.conv(
                md.rename(x, channels, below),
                w,
                over,
                out=(..., channels),
                stride=stride,
                dilation=dilation,
            )
            x = md.relu(x)
        return md.mean(md.square(x))

    def make():
        return md.lower(md.value_and_grad(loss), layout, mesh)

    def arguments(weights, x):
        named = (
            [md.parameter(w, (rows, cols, below, channels), ins=(below,)) for w in weights],
            md.tensor(x, (batch, height, width, channels)),
        )
        return jax.tree.map(put, named, md.shardings(named, layout, mesh))

    return Program(
        make, arguments, lambda loss, gradients: (loss.array, [g.array for g in gradients])
    )


IMPLEMENTATIONS = {OURS: dsl, GSPMD: gspmd}


def check(case: Case, mesh, tolerance: float = 1e-5) -> None:
    """Compares loss and every gradient with those of one device, norm-wise.

    Raises:
      AssertionError: one of them is off by more than `tolerance`.
    """
    weights, x = initial(case)
    loss, gradients = jax.jit(jax.value_and_grad(lambda w: plain_loss(case, w, x)))(weights)
    for name, build in IMPLEMENTATIONS.items():
        program = build(case, mesh)
        found_loss, found = program.plain(*program.make()(*program.arguments(weights, x)))
        for value, expected in zip([found_loss, *found], [loss, *gradients], strict=True):
            error = np.linalg.norm(value - expected) / np.linalg.norm(expected)
            assert error < tolerance, f"{name}: off by {error:.1e}"


def compare(label: str, case: Case, mesh, rounds: int) -> list[list[str]]:
    """Measures both implementations on one case; returns their rows of the table."""
    weights, x = initial(case)
    programs = {
        name: (program := build(case, mesh), program.arguments(weights, x))
        for name, build in IMPLEMENTATIONS.items()
    }
    built = measure.build(programs)
    seconds = measure.interleaved(
        {name: (built[name].compiled, programs[name][1]) for name in built}, rounds
    )
    rows = []
    for name, b in built.items():
        found = measure.collectives(b.compiled, mesh)
        halo = sum(c.total_bytes for c in found if c.operation == "ppermute")
        rest = sum(c.total_bytes for c in found) - halo
        rows.append(
            [
                f"{label}, {name}",
                f"{1000 * statistics.median(seconds[name]):.1f}",
                f"{measure.ratio(seconds[name], seconds[GSPMD]):.3f}",
                str(sum(c.count for c in found if c.operation == "ppermute")),
                f"{halo / 1024:.1f}",
                f"{rest / 1024:.1f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each step")
    given = parser.parse_args()
    mesh = jax.make_mesh((4, 2), ("rows", "cols"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = [["case, implementation", "step ms", "/ jit", "permutes", "permuted KiB", "other KiB"]]
    for name in given.cases:
        check(TINY[name], mesh)
        rows += compare(name, CASES[name], mesh, given.rounds)
    measure.show(rows, "8 CPU devices as rows=4, cols=2")


if __name__ == "__main__":
    main()
