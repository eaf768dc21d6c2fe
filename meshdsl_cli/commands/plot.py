"""`meshdsl plot`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import count

COMMAND = Command(
    "plot",
    help="draw the curves of runs, to compare them",
    function="meshdsl.commands.plot:plot_runs",
    without_settings="`{setting}`: plot takes no settings; a folder of that name is written "
    "./{setting}",
    flags=(
        Flag("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run"),
        Flag(
            "--out",
            type=Path,
            default=Path("curves.png"),
            metavar="FILE",
            help="a picture: .png, .svg or .pdf, by matplotlib; %(default)s by default",
        ),
        Flag(
            "--metric",
            nargs="+",
            default=["loss"],
            metavar="NAME",
            help="what is drawn, see docs/watching.md; loss by default",
        ),
        Flag(
            "--x",
            choices=("step", "tokens", "images", "pairs", "examples", "time"),
            default="step",
            help="over what: steps, the data that were seen, or the time that the steps took",
        ),
        Flag("--smooth", type=count, default=1, metavar="N", help="draw means of N steps"),
    ),
)
