"""`meshdsl compile`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import ANALYSIS, ONE_LAYOUT, REQUIRED_TARGET

COMMAND = Command(
    "compile",
    help="compile a training step for a machine, and say what the compiler made of it",
    function="meshdsl.commands.compile:compile_step",
    settings=True,
    flags=(
        REQUIRED_TARGET,
        *ONE_LAYOUT,
        *ANALYSIS,
        Flag(
            "--option",
            any_text=True,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="an option of the compiler; may be given several times",
        ),
        Flag(
            "--save",
            type=Path,
            metavar="FILE",
            help="write the executable, for `meshdsl train --executable FILE`",
        ),
    ),
)
