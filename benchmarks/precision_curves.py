"""Loss curves of the default run in several precisions, and how far each is from float32.

    python -m benchmarks.precision_curves --precisions float32 "bfloat16 compute" --plot curves.png

The run is that of `make train`: the same model, data, seed and schedule, on one device (no layout
changes a loss). bfloat16 on a CPU is right and slow: the curves tell what it costs in loss, not
what it gains in time. Curves are kept in a folder, so that a plot can be drawn again without
computing them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import meshdsl as md
from meshdsl.train.config import Config
from meshdsl.train.data import open_data
from meshdsl.train.data.device_batches import rows_here
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import measure

BFLOAT16 = ["precision.compute=bfloat16"]
VARIANTS = {
    "float32": [],
    "bfloat16 compute": BFLOAT16,
    "bfloat16 parameters": [*BFLOAT16, "precision.params=bfloat16"],
    "bfloat16 parameters, rounded at random": [
        *BFLOAT16,
        "precision.params=bfloat16",
        "precision.stochastic_rounding=true",
    ],
}
COLORS = {
    "float32": "#b8b8b8",
    "bfloat16 compute": "#1f77b4",
    "bfloat16 parameters": "#d62728",
    "bfloat16 parameters, rounded at random": "#2ca02c",
}
WINDOW = 20  # steps that a smoothed curve averages


def losses(config: Config) -> list[float]:
    """The training loss of every step, in nats per token."""
    layout = find_layout("single")
    job = Job(config, layout, md.make_mesh(layout, jax.devices()[:1]))
    batches = open_data(config).train(rows_here(job.batch["tokens"]))
    step, state = job.lowered.compile(), job.step.init(jax.random.key(config.seed))
    found, start = [], time.perf_counter()
    for number in range(config.steps):
        state, measured = step(state, job.place(next(batches)))
        found.append(measured["loss"])
        if number % 50 == 49:
            rate = (time.perf_counter() - start) / (number + 1)
            print(f"  step {number + 1}: {float(found[-1]):.4f}, {rate:.2f} s per step", flush=True)
    return [float(loss) for loss in jax.device_get(found)]


def curve(name: str, config: Config, kept: Path) -> np.ndarray:
    """The losses of a variant, read from the folder `kept` or computed and written there."""
    path = kept / f"{name.replace(', ', '-').replace(' ', '-')}-{config.steps}.json"
    if not path.exists():
        print(name, flush=True)
        found = losses(override(config, VARIANTS[name]))
        kept.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return np.array(json.loads(path.read_text()))


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of each `WINDOW` steps in a row; `WINDOW` - 1 fewer than there are `values`."""
    return np.convolve(values, np.ones(WINDOW) / WINDOW, "valid")


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    """Draws the curves over each other, and below them their distances from float32."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2,
        1,
        sharex=True,
        figsize=(9, 7),
        height_ratios=(3, 2),
        facecolor="white",
        layout="constrained",
    )
    steps = len(curves["float32"])
    for name, values in curves.items():
        above.plot(
            range(1, steps + 1),
            values,
            color=COLORS[name],
            linewidth=4.0 if name == "float32" else 1.0,
            label=name,
        )
        if name != "float32":
            gap = smoothed(values - curves["float32"])
            below.plot(
                np.arange(WINDOW, steps + 1), gap, color=COLORS[name], linewidth=1.4, label=name
            )
    above.set_ylabel("training loss (nats per token)")
    above.set_title(f"The default run over {steps} steps")
    below.axhline(0, color=COLORS["float32"], linewidth=0.8)
    below.set_ylabel(f"loss minus that of float32\n(nats per token, mean of {WINDOW} steps)")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument(
        "--precisions", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="float32 first"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("runs/precision"),
        metavar="FOLDER",
        help="where curves are kept, and not computed again",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE")
    given = parser.parse_args()
    config = override(Config(), steps=given.steps)
    curves = {name: curve(name, config, given.keep) for name in given.precisions}
    rows = [
        [
            "precision",
            f"loss, last {WINDOW} steps",
            "minus float32",
            "largest gap of the smoothed curves",
        ]
    ]
    for name, values in curves.items():
        gap = smoothed(values - curves["float32"])
        rows.append(
            [name, f"{values[-WINDOW:].mean():.4f}", f"{gap[-1]:+.4f}", f"{np.abs(gap).max():.4f}"]
        )
    measure.show(rows, f"{given.steps} steps")
    if given.plot:
        draw(curves, given.plot)


if __name__ == "__main__":
    main()
