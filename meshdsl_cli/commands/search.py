"""`meshdsl search`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import ANALYSIS, IMBALANCE, MESH, REQUIRED_TARGET, count, seconds

COMMAND = Command(
    "search",
    help="find the layout that makes a training step fastest on a machine",
    function="meshdsl.commands.search:search_layout",
    settings=True,
    flags=(
        REQUIRED_TARGET,
        Flag(
            "--keep",
            any_text=True,
            action="append",
            default=[],
            metavar="RULE|FILE",
            help='what the layout must have: a rule, "batch -> data", "parameters: d_model -> '
            'data"; a layout file, or the name of a shipped one; may be given several times',
        ),
        Flag(
            "--never",
            any_text=True,
            action="append",
            default=[],
            metavar="RULE",
            help='a rule that it must not have, such as "vocab -> *"; may be given several times',
        ),
        MESH.but(help="sizes of axes; others may be added"),
        Flag(
            "--axes",
            type=count,
            default=3,
            metavar="N",
            help="at most so many axes larger than 1; by default 3",
        ),
        Flag(
            "--within-host",
            action="append",
            default=[],
            metavar="AXIS",
            help="an axis that must lie within one host or node; may be given several times",
        ),
        Flag(
            "--dcn",
            any_text=True,
            metavar="AXIS=N,...",
            help="sizes of axes that go across slices or nodes",
        ),
        Flag(
            "--max-memory",
            metavar="SIZE",
            help="how much of a device's memory may be used, as 80GiB or 80%%",
        ),
        Flag(
            "--remat",
            metavar="NAME,...",
            help="values of model.remat to choose from; by default all, or that of a setting",
        ),
        Flag(
            "--microbatches",
            metavar="N,...",
            help="numbers of microbatches to choose from; by default that of the settings",
        ),
        Flag("--compile", type=count, metavar="K", help="let the compiler judge the K best"),
        Flag(
            "--seconds",
            type=seconds,
            metavar="N",
            help="how long to search, without what is compiled; by default 10",
        ),
        Flag("--out", type=Path, metavar="FILE", help="write the layout to a file"),
        *ANALYSIS,
        IMBALANCE,
    ),
)
