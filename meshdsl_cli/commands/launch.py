"""`meshdsl launch`."""

from argparse import REMAINDER

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import count

COMMAND = Command(
    "launch",
    help="run a command in several processes on this machine",
    function="meshdsl.commands.launch:launch_command",
    settings=True,  # of the command that is launched
    flags=(
        Flag("--processes", type=count, required=True, metavar="N", help="how many"),
        Flag(
            "--devices-per-process",
            type=count,
            metavar="N",
            help="GPUs of each, by default an equal share; without GPUs virtual CPU devices, "
            "one by default",
        ),
        Flag(
            "--coordinator-port",
            type=count,
            metavar="N",
            help="where process 0 listens; by default a free port",
        ),
        Flag(
            "--restarts",
            type=count,
            default=0,
            metavar="N",
            help="for train --out FOLDER: start what died again from its newest checkpoint, up to "
            "N times, as long as it comes further",
        ),
        Flag(
            "words",
            nargs=REMAINDER,
            metavar="-- COMMAND ...",
            help="any meshdsl command line",
        ),
    ),
    epilog="For example: meshdsl launch --processes 2 --devices-per-process 4 -- "
    "train --layout fsdp. Several machines: see docs/launch.md",
)
