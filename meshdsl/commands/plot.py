"""`meshdsl plot`: the curves of runs, to compare them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshdsl.commands.flags import count, write
from meshdsl.errors import MeshDSLError

_ENDINGS = (".html", ".png")
_X = ("step", "tokens", "time")


def add(commands) -> None:
    plot = commands.add_parser(
        "plot",
        help="draw the curves of runs, to compare them",
        usage="%(prog)s RUN... [--out FILE.html|FILE.png] [--metric NAME...] [--x step|tokens|time] [--smooth N]",
    )
    plot.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    plot.add_argument(
        "--out",
        type=Path,
        default=Path("curves.html"),
        metavar="FILE",
        help="a page, or a PNG (by matplotlib); curves.html by default",
    )
    plot.add_argument(
        "--metric",
        nargs="+",
        default=["loss"],
        metavar="NAME",
        help="what is drawn, see docs/watching.md; loss by default",
    )
    plot.add_argument(
        "--x",
        choices=_X,
        default="step",
        help="over what: steps, tokens, or the time that the steps took",
    )
    plot.add_argument("--smooth", type=count, default=1, metavar="N", help="draw means of N steps")
    plot.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.train.watch.curves import panels, read_runs

    if settings:
        raise MeshDSLError(
            f"`{settings[0]}`: plot takes no settings; a folder of that name is written ./{settings[0]}"
        )
    out = arguments.out
    if out.suffix.lower() not in _ENDINGS:
        raise MeshDSLError(f"--out {out}: expected a name that ends in {' or '.join(_ENDINGS)}")
    drawn = panels(
        read_runs(arguments.runs), dict.fromkeys(arguments.metric), arguments.x, arguments.smooth
    )
    if out.suffix.lower() == ".html":
        from meshdsl.train.watch.curves_page import page

        write(out, page(drawn))
        return 0
    from meshdsl.train.watch.curves_png import save_png

    save_png(drawn, out)
    print(f"wrote {out}", file=sys.stderr)
    return 0
