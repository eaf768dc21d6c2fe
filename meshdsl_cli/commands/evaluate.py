"""`meshdsl eval`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import LAYOUT, RUN, SEVERAL_PROCESSES, count

COMMAND = Command(
    "eval",
    help="measure a trained model by tasks of lm-evaluation-harness",
    function="meshdsl.commands.evaluate:evaluate_run",
    without_settings="{setting}: a run keeps its settings",
    flags=(
        RUN,
        Flag(
            "--tasks",
            required=True,
            action="append",
            metavar="NAMES",
            help="tasks and groups of the harness, with commas between them",
        ),
        Flag("--include", type=Path, metavar="FOLDER", help="a folder with tasks of your own"),
        Flag("--fewshot", type=int, metavar="N", help="examples before each question"),
        Flag("--limit", type=count, metavar="N", help="so many questions of each task"),
        Flag(
            "--chat",
            action="store_true",
            help="write questions as the chat template of the model has them",
        ),
        Flag("--batch", type=count, default=8, metavar="N", help="texts at once (%(default)s)"),
        LAYOUT.but(help="a layout file, or the name of a shipped one; by default that of the run"),
        Flag(
            "--devices",
            type=count,
            metavar="N",
            help="so many devices; by default what the layout's mesh asks for",
        ),
        Flag(
            "--step",
            type=int,
            metavar="N",
            help="the checkpoint of this step; by default the newest good one",
        ),
        Flag("--out", type=Path, metavar="FILE", help="write the numbers as JSON too"),
        SEVERAL_PROCESSES,
    ),
)
