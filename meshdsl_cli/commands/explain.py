"""`meshdsl explain`."""

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import ANALYSIS, IMBALANCE, ONE_LAYOUT, TARGET, count

COMMAND = Command(
    "explain",
    help="every op, collective and byte of a training step, without devices",
    function="meshdsl.commands.explain:explain_step",
    settings=True,
    flags=(
        *ONE_LAYOUT,
        TARGET,
        *ANALYSIS,
        IMBALANCE,
        Flag(
            "--devices",
            type=count,
            metavar="N",
            help="so many devices, where there is no target",
        ),
    ),
)
