"""`meshdsl layouts` and `meshdsl layouts check`."""

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import LAYOUT, MODEL, count

COMMAND = Command(
    "layouts",
    help="list the shipped layouts, or check one",
    function="meshdsl.commands.layouts:list_layouts",
    without_settings="`{setting}`: settings belong to `check`",
    parts=(
        Command(
            "check",
            help="check a layout against a model and a number of devices",
            function="meshdsl.commands.check_layout:check_layout",
            settings=True,
            flags=(
                Flag("file", **LAYOUT.options),
                MODEL.but(default="gpt2"),
                Flag(
                    "--devices",
                    type=count,
                    metavar="N",
                    help="by default what the mesh asks for",
                ),
            ),
        ),
    ),
)
