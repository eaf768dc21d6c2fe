"""Commands for what runs leave and need: checkpoints, published models, tokenizers and curves."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import AVERAGE, RUN, count, seconds

_RUN = RUN.but(help="the folder of a run, or of its checkpoints")
_STEP = Flag("--step N", "the checkpoint of this step; by default the newest", int)
_LIMIT = Flag(
    "--limit GB",
    "larger models become several files and an index (%(default)s)",
    float,
    default=5.0,
)

CHECKPOINT = Command(
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
                Flag("--out FILE", "a .safetensors file", Path, required=True),
                _STEP,
                AVERAGE,
                _LIMIT,
            ),
        ),
        Command(
            "import",
            help="safetensors as a run that another can begin with by warm_start=RUN",
            function="meshdsl.commands.checkpoint:import_safetensors",
            flags=(
                Flag("file FILE", "a safetensors file, an index, or a folder with either", Path),
                Flag(
                    "--like RUN|CONFIG",
                    "whose model it is: a run, or a configuration file",
                    Path,
                    required=True,
                ),
                Flag("--out RUN", "the folder to make", Path, required=True),
            ),
        ),
    ),
)


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
                Flag("folder [FOLDER]", "the folder", Path),
                Flag(
                    "--from ORG/NAME",
                    "a model that is downloaded from the Hugging Face hub instead",
                ),
                Flag("--out RUN", "the folder to make", Path, required=True),
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
                RUN,
                Flag("--out FOLDER", "the folder to make", Path, required=True),
                _STEP,
                AVERAGE,
                Flag(
                    "--dtype",
                    "of the tensors; by default that of the run's parameters",
                    choices=("float32", "bfloat16", "float16"),
                ),
                _LIMIT,
            ),
        ),
    ),
)


TOKENIZER = Command(
    "tokenizer",
    help="make a tokenizer from text",
    parts=(
        Command(
            "train",
            help="learn a byte-level BPE",
            function="meshdsl.commands.tokenizer:train_tokenizer",
            flags=(
                Flag("paths PATH...", "files and folders of text, JSONL or parquet"),
                Flag(
                    "--vocab N",
                    "tokens, of which 257 are the bytes and the end of a document",
                    count,
                    required=True,
                ),
                Flag("--out FILE", "the file to write, for data.tokenizer", Path, required=True),
                Flag(
                    "--format",
                    "of the files; auto goes by their endings",
                    choices=("auto", "text", "jsonl", "parquet"),
                    default="auto",
                ),
                Flag(
                    "--field NAME",
                    "of a JSONL object, or the column of a parquet file, that holds the text",
                    default="text",
                ),
            ),
        ),
    ),
)


PLOT = Command(
    "plot",
    help="draw the curves of runs, to compare them",
    function="meshdsl.commands.plot:plot_runs",
    without_settings="`{setting}`: plot takes no settings; a folder of that name is written "
    "./{setting}",
    flags=(
        Flag("runs RUN...", "the folder of a run", Path),
        Flag(
            "--out FILE",
            "a picture: .png, .svg or .pdf, by matplotlib; %(default)s by default",
            Path,
            default=Path("curves.png"),
        ),
        Flag(
            "--metric NAME...",
            "what is drawn, see docs/watching.md; loss by default",
            default=["loss"],
        ),
        Flag(
            "--x",
            "over what: steps, the data that were seen, or the time that the steps took",
            choices=("step", "tokens", "images", "pairs", "examples", "time"),
            default="step",
        ),
        Flag("--smooth N", "draw means of N steps", count, default=1),
    ),
)


TOP = Command(
    "top",
    help="how runs stand: progress, curve, speed, goodput and events, while they go on or after",
    function="meshdsl.commands.top:watch_runs",
    without_settings="`{setting}`: top takes no settings; a folder of that name is written "
    "./{setting}",
    flags=(
        Flag("runs RUN...", "the folder of a run", Path),
        Flag("--once", "print it once, and end; what is no terminal gets that in any case"),
        Flag("--page FILE", "write a page with pictures instead, which needs nothing else", Path),
        Flag(
            "--every SECONDS",
            "write the page again and again until Ctrl-C; a browser loads it again",
            seconds,
        ),
    ),
)
