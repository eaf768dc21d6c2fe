"""`meshdsl generate`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag, OneOf
from meshdsl_cli.flags import LAYOUT, RUN, SEVERAL_PROCESSES, count

USUAL_TOKENS = 200  # written after a prompt, where the model is long enough

COMMAND = Command(
    "generate",
    help="write texts with a trained model",
    function="meshdsl.commands.generate:generate_texts",
    without_settings="{setting}: a run keeps its settings; a prompt that looks like one can be a "
    "line of --prompts FILE",
    flags=(
        RUN,
        OneOf(
            (
                Flag(
                    "--prompt",
                    any_text=True,
                    action="append",
                    metavar="TEXT",
                    help="what to continue; several of them make a batch",
                ),
                Flag("--prompts", type=Path, metavar="FILE", help="a prompt in each line"),
            )
        ),
        Flag(
            "--chat",
            action="store_true",
            help="a prompt is a question, written as the chat template of the model has it",
        ),
        Flag(
            "--tokens",
            type=count,
            metavar="N",
            help=f"how many tokens to write ({USUAL_TOKENS}, or as many as fit the model)",
        ),
        Flag(
            "--temperature",
            type=float,
            default=0.8,
            metavar="T",
            help="0 takes the likeliest token (%(default)s)",
        ),
        Flag(
            "--top-k",
            type=int,
            default=0,
            metavar="K",
            help="draw from the K likeliest tokens only; 0: from all (%(default)s)",
        ),
        Flag(
            "--top-p",
            type=float,
            default=1.0,
            metavar="P",
            help="draw from the likeliest that have the probability P together only (%(default)s)",
        ),
        Flag(
            "--seed",
            type=int,
            default=0,
            metavar="N",
            help="another one draws other texts (%(default)s)",
        ),
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
        Flag(
            "--json",
            action="store_true",
            help="one line of JSON for each prompt, when all are done",
        ),
        SEVERAL_PROCESSES,
    ),
    epilog="Without --prompt or --prompts, the standard input is the prompt.",
)
