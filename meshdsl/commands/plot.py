"""`meshdsl plot`: the curves of runs, to compare them."""

from __future__ import annotations

import argparse
import sys

from meshdsl.errors import MeshDSLError, either
from meshdsl.train.watch.curves import panels, read_runs
from meshdsl.train.watch.curves_picture import ENDINGS, save_picture


def plot_runs(arguments: argparse.Namespace) -> int:
    """Draw metrics of runs, as a picture.

    Raises:
      MeshDSLError: there is no such run or metric, or the file cannot be written.
    """
    out, ending = arguments.out, arguments.out.suffix.lower()
    if ending not in ENDINGS:
        browser = (
            "; in a browser, TensorBoard and Weights & Biases show the curves of runs with "
            "log.tensorboard=true and log.wandb=PROJECT"
        )
        raise MeshDSLError(
            f"--out {out}: expected a name that ends in {either([*ENDINGS])}"
            f"{browser if ending in ('.html', '.htm') else ''}"
        )
    runs = read_runs(arguments.runs)
    drawn = panels(runs, dict.fromkeys(arguments.metric), arguments.x, arguments.smooth)
    save_picture(drawn, out)
    print(f"wrote {out}", file=sys.stderr)
    return 0
