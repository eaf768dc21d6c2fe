"""`meshdsl checkpoint ls`, `show`, `verify`, `prune`, `export` and `import`."""

from pathlib import Path

from meshdsl_cli import flags
from meshdsl_cli.declare import Command, Flag

_RUN = flags.RUN.but(help="the folder of a run, or of its checkpoints")
_STEP = Flag(
    "--step",
    type=int,
    metavar="N",
    help="the checkpoint of this step; by default the newest",
)

COMMAND = Command(
    "checkpoint",
    help="list, show, verify, prune, export or import checkpoints",
    parts=(
        Command(
            "ls",
            help="step, size and time of each, and whether its files are all there",
            function="meshdsl.commands.checkpoint:list_checkpoints",
            flags=(_RUN,),
        ),
        Command(
            "show",
            help="the arrays of one, with dims, dtype and size",
            function="meshdsl.commands.checkpoint:show_checkpoint",
            flags=(_RUN, _STEP),
        ),
        Command(
            "verify",
            help="read every array of every checkpoint; exit code 1 where one is not what was "
            "saved",
            function="meshdsl.commands.checkpoint:verify_checkpoints",
            flags=(_RUN,),
        ),
        Command(
            "prune",
            help="remove damaged checkpoints that a run set aside",
            function="meshdsl.commands.checkpoint:remove_damaged",
            flags=(_RUN,),
        ),
        Command(
            "export",
            help="the parameters as safetensors, full tensors",
            function="meshdsl.commands.checkpoint:export_safetensors",
            flags=(
                _RUN,
                Flag(
                    "--out",
                    type=Path,
                    required=True,
                    metavar="FILE",
                    help="a .safetensors file",
                ),
                _STEP,
                flags.AVERAGE,
                Flag(
                    "--limit",
                    type=float,
                    default=5.0,
                    metavar="GB",
                    help="larger models become several files and an index (%(default)s)",
                ),
            ),
        ),
        Command(
            "import",
            help="safetensors as a run that another can begin with by warm_start=RUN",
            function="meshdsl.commands.checkpoint:import_safetensors",
            flags=(
                Flag(
                    "file",
                    type=Path,
                    metavar="FILE",
                    help="a safetensors file, an index, or a folder with either",
                ),
                Flag(
                    "--like",
                    type=Path,
                    required=True,
                    metavar="RUN|CONFIG",
                    help="whose model it is: a run, or a configuration file",
                ),
                Flag(
                    "--out",
                    type=Path,
                    required=True,
                    metavar="RUN",
                    help="the folder to make",
                ),
            ),
        ),
    ),
)
