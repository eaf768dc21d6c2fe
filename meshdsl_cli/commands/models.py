"""`meshdsl models`."""

from meshdsl_cli.declare import Command

COMMAND = Command(
    "models",
    help="list the published sizes that have a name",
    function="meshdsl.commands.models:list_models",
)
