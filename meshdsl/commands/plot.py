"""`meshdsl plot`: the curves of runs, to compare them."""

from __future__ import annotations

import argparse
import sys

from meshdsl.commands.output import write_file
from meshdsl.errors import MeshDSLError
from meshdsl.train.watch.curves import panels, read_runs
from meshdsl.train.watch.curves_page import page
from meshdsl.train.watch.curves_png import save_png

_ENDINGS = (".html", ".png")


def plot_runs(arguments: argparse.Namespace) -> int:
    """Draw metrics of runs, as a page or a PNG.

    Raises:
      MeshDSLError: there is no such run or metric, or the file cannot be written.
    """
    out, ending = arguments.out, arguments.out.suffix.lower()
    if ending not in _ENDINGS:
        raise MeshDSLError(f"--out {out}: expected a name that ends in {' or '.join(_ENDINGS)}")
    drawn = panels(
        read_runs(arguments.runs), dict.fromkeys(arguments.metric), arguments.x, arguments.smooth
    )
    if ending == ".html":
        write_file(out, page(drawn))
    else:
        save_png(drawn, out)
        print(f"wrote {out}", file=sys.stderr)
    return 0
