"""`meshdsl compare`."""

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import ANALYSIS, IMBALANCE, MESH, REQUIRED_TARGET, count

COMMAND = Command(
    "compare",
    help="layouts side by side on a machine, the best first",
    function="meshdsl.commands.compare:compare_layouts",
    settings=True,
    flags=(
        Flag(
            "layouts",
            nargs="+",
            metavar="LAYOUT",
            help="layout files, or names of shipped ones",
        ),
        REQUIRED_TARGET,
        MESH.but(
            action="append",
            help="a mesh to try with each layout; may be given several times",
        ),
        Flag("--compile", type=count, metavar="K", help="let the compiler judge the K best"),
        *ANALYSIS,
        IMBALANCE,
    ),
)
