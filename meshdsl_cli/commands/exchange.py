"""`meshdsl import hf` and `meshdsl export hf`."""

from pathlib import Path

from meshdsl_cli import flags
from meshdsl_cli.declare import Command, Flag

IMPORT = Command(
    "import",
    help="make a run of a published model",
    parts=(
        Command(
            "hf",
            help="of a folder of Hugging Face: config.json, safetensors, tokenizer.json",
            function="meshdsl.commands.hugging_face:import_folder",
            settings=True,
            flags=(
                Flag("folder", type=Path, nargs="?", metavar="FOLDER", help="the folder"),
                Flag(
                    "--from",
                    metavar="ORG/NAME",
                    help="a model that is downloaded from the Hugging Face hub instead",
                ),
                Flag("--out", type=Path, required=True, metavar="RUN", help="the folder to make"),
            ),
        ),
    ),
)
EXPORT = Command(
    "export",
    help="write the model of a run for other tools",
    parts=(
        Command(
            "hf",
            help="as a folder that transformers loads",
            function="meshdsl.commands.hugging_face:export_folder",
            flags=(
                flags.RUN.but(help="the folder of a run"),
                Flag(
                    "--out", type=Path, required=True, metavar="FOLDER", help="the folder to make"
                ),
                Flag(
                    "--step",
                    type=int,
                    metavar="N",
                    help="the checkpoint of this step; by default the newest",
                ),
                flags.AVERAGE,
                Flag(
                    "--dtype",
                    choices=("float32", "bfloat16", "float16"),
                    help="of the tensors; by default that of the run's parameters",
                ),
                Flag(
                    "--limit",
                    type=float,
                    default=5.0,
                    metavar="GB",
                    help="larger models become several files and an index (%(default)s)",
                ),
            ),
        ),
    ),
)
