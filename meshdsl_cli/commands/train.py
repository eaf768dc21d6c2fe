"""`meshdsl train`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import LAYOUT, MODEL, SEVERAL_PROCESSES, count

COMMAND = Command(
    "train",
    help="train a model: a transformer on text, unless settings say otherwise",
    function="meshdsl.commands.train:train_model",
    settings=True,
    flags=(
        Flag(
            "config",
            nargs="?",
            type=Path,
            metavar="CONFIG.toml",
            help="settings of the run; with --resume, those of the run in whose folder it lies",
        ),
        LAYOUT,
        MODEL,
        Flag(
            "--devices",
            type=count,
            metavar="N",
            help="so many virtual CPU devices; where there is an accelerator, its first ones",
        ),
        Flag("--steps", type=count, metavar="N", help="how many steps to train"),
        Flag(
            "--out",
            type=Path,
            metavar="FOLDER",
            help="the folder of the run; by default a new one in runs/",
        ),
        Flag(
            "--data",
            nargs="+",
            metavar="PATH",
            help="files and folders, or a function that gives a dataset, as my_data.py:digits; by "
            "default Python's own library",
        ),
        Flag(
            "--resume",
            nargs="?",
            const="yes",
            choices=("yes", "auto"),
            metavar="auto",
            help="go on from the newest checkpoint; auto: or begin, where there is no run yet",
        ),
        Flag(
            "--warm-start",
            metavar="RUN|FILE",
            help="begin with the parameters of another run, or of a safetensors file",
        ),
        Flag(
            "--deterministic",
            action="store_const",
            const=True,
            help="give the same bits each time, also on GPUs, or refuse the run",
        ),
        Flag("--profile", metavar="FIRST:LAST", help="write a trace of these steps"),
        Flag(
            "--executable",
            type=Path,
            metavar="FILE",
            help="the compiled step, from `meshdsl compile --save FILE`, instead of compiling it",
        ),
        Flag(
            "--trust-executable",
            action="store_true",
            help="load it even if another user owns it or could write it; it can run any code",
        ),
        Flag(
            "--print-config",
            action="store_true",
            help="print every setting, resolved, with what it is, and end",
        ),
        SEVERAL_PROCESSES,
    ),
    epilog="Any other setting is key=value, for example: model.d_model=256 "
    "precision.compute=bfloat16; --print-config shows all",
)
