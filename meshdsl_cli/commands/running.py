"""Commands that run a model: train, generate, eval and launch."""

from argparse import REMAINDER
from pathlib import Path

from meshdsl_cli.declare import Command, Flag, Group
from meshdsl_cli.flags import HARDWARE, LAYOUT, MODEL, RUN, SEVERAL_PROCESSES, count

TRAIN = Command(
    "train",
    help="train a model: a transformer on text, unless settings say otherwise",
    function="meshdsl.commands.train:train_model",
    settings=True,
    flags=(
        Flag(
            "config [CONFIG.toml]",
            "settings of the run; with --resume, those of the run in whose folder it lies",
            Path,
        ),
        LAYOUT,
        MODEL,
        Flag(
            "--devices N",
            "so many virtual CPU devices; where there is an accelerator, its first ones",
            count,
        ),
        Flag("--steps N", "how many steps to train", count),
        Flag("--out FOLDER", "the folder of the run; by default a new one in runs/", Path),
        Flag(
            "--data PATH...",
            "files and folders, or a function that gives a dataset, as my_data.py:digits; by "
            "default Python's own library",
        ),
        Flag(
            "--resume [auto]",
            "go on from the newest checkpoint; auto: or begin, where there is no run yet",
            const="yes",
            choices=("yes", "auto"),
        ),
        Flag(
            "--relayout",
            "do not train, but tell the run in --out, which goes on, to change to --layout and to "
            "these settings at its next step",
        ),
        Flag(
            "--warm-start RUN|FILE",
            "begin with the parameters of another run, or of a safetensors file",
        ),
        Flag(
            "--deterministic",
            "give the same bits each time, also on GPUs, or refuse the run",
            action="store_const",
            const=True,
        ),
        Flag("--profile FIRST:LAST", "write a trace of these steps"),
        Flag(
            "--ledger",
            "measure a few steps, and put the time of each op, rule and line beside the estimate",
        ),
        HARDWARE.but(help="figures of the devices, for the estimate of --ledger"),
        Flag(
            "--executable FILE",
            "the compiled step, from `meshdsl compile --save FILE`, instead of compiling it",
            Path,
        ),
        Flag(
            "--trust-executable",
            "load it even if another user owns it or could write it; it can run any code",
        ),
        Flag("--print-config", "print every setting, resolved, with what it is, and end"),
        SEVERAL_PROCESSES,
    ),
    epilog="Any other setting is key=value, for example: model.d_model=256 "
    "precision.compute=bfloat16; --print-config shows all",
)


# Of `generate` and `eval`: which checkpoint, and how the model is split.
_WHERE = (
    LAYOUT.but(help="a layout file, or the name of a shipped one; by default that of the run"),
    Flag("--devices N", "so many devices; by default what the layout's mesh asks for", count),
    Flag("--step N", "the checkpoint of this step; by default the newest good one", int),
)
USUAL_TOKENS = 200  # written after a prompt, where the model is long enough

GENERATE = Command(
    "generate",
    help="write texts with a trained model",
    function="meshdsl.commands.generate:generate_texts",
    without_settings="{setting}: a run keeps its settings; a prompt that looks like one can be a "
    "line of --prompts FILE",
    flags=(
        RUN,
        Group(
            (
                Flag(
                    "--prompt TEXT",
                    "what to continue; several of them make a batch",
                    any_text=True,
                    action="append",
                ),
                Flag("--prompts FILE", "a prompt in each line", Path),
            )
        ),
        Flag("--chat", "a prompt is a question, written as the chat template of the model has it"),
        Flag(
            "--tokens N",
            f"how many tokens to write ({USUAL_TOKENS}, or as many as fit the model)",
            count,
        ),
        Flag("--temperature T", "0 takes the likeliest token (%(default)s)", float, default=0.8),
        Flag(
            "--top-k K",
            "draw from the K likeliest tokens only; 0: from all (%(default)s)",
            int,
            default=0,
        ),
        Flag(
            "--top-p P",
            "draw from the likeliest that have the probability P together only (%(default)s)",
            float,
            default=1.0,
        ),
        Flag("--seed N", "another one draws other texts (%(default)s)", int, default=0),
        Flag(
            "--weights FORMAT",
            "keep matrices in memory in 8 bits; by default in the dtype that the run computes in",
            choices=("int8", "fp8"),
        ),
        *_WHERE,
        Flag("--json", "one line of JSON for each prompt, when all are done"),
        SEVERAL_PROCESSES,
    ),
    epilog="Without --prompt or --prompts, the standard input is the prompt.",
)


EVALUATE = Command(
    "eval",
    help="measure a trained model by tasks of lm-evaluation-harness",
    function="meshdsl.commands.evaluate:evaluate_run",
    without_settings="{setting}: a run keeps its settings",
    flags=(
        RUN,
        Flag(
            "--tasks NAMES",
            "tasks and groups of the harness, with commas between them",
            required=True,
            action="append",
        ),
        Flag("--include FOLDER", "a folder with tasks of your own", Path),
        Flag("--fewshot N", "examples before each question", int),
        Flag("--limit N", "so many questions of each task", count),
        Flag("--chat", "write questions as the chat template of the model has them"),
        Flag("--batch N", "texts at once (%(default)s)", count, default=8),
        *_WHERE,
        Flag("--out FILE", "write the numbers as JSON too", Path),
        SEVERAL_PROCESSES,
    ),
)


LAUNCH = Command(
    "launch",
    help="run a command in several processes on this machine",
    function="meshdsl.commands.launch:launch_command",
    settings=True,  # of the command that is launched
    flags=(
        Flag("--processes N", "how many on this machine; with --elastic 1 by default", count),
        Flag(
            "--devices-per-process N",
            "GPUs of each, by default an equal share; without GPUs virtual CPU devices, "
            "one by default",
            count,
        ),
        Flag("--coordinator-port N", "where process 0 listens; by default a free port", count),
        Flag(
            "--restarts N",
            "for train --out FOLDER: start what died again from its newest checkpoint, up to "
            "N times, as long as it comes further",
            count,
            default=0,
        ),
        Flag(
            "--elastic MIN:MAX",
            "for train --out FOLDER, on several hosts, each with this command: train on so many of "
            "them as there are, and go on with fewer or more when some are lost or come",
        ),
        Flag("--host NAME", "with --elastic: how other hosts reach this one; its name by default"),
        Flag("words -- COMMAND ...", "any meshdsl command line", nargs=REMAINDER),
    ),
    epilog="For example: meshdsl launch --processes 2 --devices-per-process 4 -- "
    "train --layout fsdp. Several machines: see docs/launch.md",
)
