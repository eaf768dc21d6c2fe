"""Commands that look at a step before it runs, and at layouts and models."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import (
    ANALYSIS,
    HTML,
    IMBALANCE,
    LAYOUT,
    MESH,
    MODEL,
    ONE_LAYOUT,
    REQUIRED_TARGET,
    TARGET,
    count,
    load,
    seconds,
    whole,
)

EXPLAIN = Command(
    "explain",
    help="every op, collective and byte of a training step, without devices",
    function="meshdsl.commands.explain:explain_step",
    settings=True,
    flags=(
        *ONE_LAYOUT,
        HTML,
        TARGET,
        *ANALYSIS,
        IMBALANCE,
        Flag("--devices N", "so many devices, where there is no target", count),
    ),
)


COMPILE = Command(
    "compile",
    help="compile a training step for a machine, and say what the compiler made of it",
    function="meshdsl.commands.explain:compile_step",
    settings=True,
    flags=(
        REQUIRED_TARGET,
        *ONE_LAYOUT,
        HTML,
        *ANALYSIS,
        Flag(
            "--option KEY=VALUE",
            "an option of the compiler",
            any_text=True,
            several=True,
        ),
        Flag("--save FILE", "write the executable, for `meshdsl train --executable FILE`", Path),
    ),
)


COMPARE = Command(
    "compare",
    help="layouts side by side on a machine, the best first",
    function="meshdsl.commands.explain:compare_layouts",
    settings=True,
    flags=(
        Flag("layouts LAYOUT...", "layout files, or names of shipped ones"),
        REQUIRED_TARGET,
        MESH.but(
            action="append",
            help="a mesh to try with each layout; may be given several times",
        ),
        Flag("--compile K", "let the compiler judge K layouts, the likeliest first", count),
        *ANALYSIS,
        IMBALANCE,
    ),
)


SEARCH = Command(
    "search",
    help="find the layout that makes a training step fastest on a machine",
    function="meshdsl.commands.search:search_layout",
    settings=True,
    flags=(
        REQUIRED_TARGET,
        Flag(
            "--keep RULE|FILE",
            'what the layout must have: a rule, "batch -> data", "parameters: d_model -> '
            'data"; a layout file, or the name of a shipped one',
            any_text=True,
            several=True,
        ),
        Flag(
            "--never RULE",
            'a rule that it must not have, such as "vocab -> *"',
            any_text=True,
            several=True,
        ),
        MESH.but(help="sizes of axes; others may be added"),
        Flag("--axes N", "at most so many axes larger than 1; by default 3", count, default=3),
        Flag(
            "--within-host AXIS",
            "an axis that must lie within one host or node",
            several=True,
        ),
        Flag("--dcn AXIS=N,...", "sizes of axes that go across slices or nodes", any_text=True),
        Flag("--max-memory SIZE", "how much of a device's memory may be used, as 80GiB or 80%%"),
        Flag(
            "--remat NAME,...",
            "values of model.remat to choose from; by default all, or that of a setting",
        ),
        Flag(
            "--microbatches N,...",
            "numbers of microbatches to choose from; by default that of the settings",
        ),
        Flag("--compile K", "let the compiler judge K layouts at most, the likeliest first", count),
        Flag("--seconds N", "how long to search, without what is compiled; by default 10", seconds),
        Flag("--out FILE", "write the layout to a file", Path),
        *ANALYSIS,
        IMBALANCE,
    ),
)


VERIFY = Command(
    "verify",
    help="prove that a training step under a layout computes what it does on one device",
    function="meshdsl.commands.verify:verify_step",
    settings=True,
    flags=(
        *ONE_LAYOUT,
        TARGET,
        *ANALYSIS,
        Flag("--devices N", "so many devices, where there is no target", count),
        Flag("--write FILE", "write a certificate of what is proved", Path),
        Flag("--certificate FILE", "say whether this certificate holds, without a trace", Path),
    ),
)


REHEARSE = Command(
    "rehearse",
    help="what faults, saves and restarts will leave of the time of a run",
    function="meshdsl.commands.rehearse:rehearse_run",
    settings=True,
    flags=(
        *ONE_LAYOUT,
        TARGET,
        Flag(
            "--faults KIND=TIME,...",
            "mean times between faults: mtbf of the whole job, or host_mtbf of one host; "
            "slice_mtbf until one slice is gone, for slice_back (1h)",
            any_text=True,
            missing="say how often faults come, with --faults, for example --faults mtbf=4h",
        ),
        Flag("--store RATE", "how fast checkpoints are written and read, as 20GB/s"),
        Flag("--step TIME", "how long a step takes, as 2.4s; by default as explain estimates it"),
        Flag(
            "--restart PART=TIME,...",
            "parts of a start after a fault: detect (45s), replace (2min), start (1min) and "
            "compile (1min); and all of the first start (10min)",
            any_text=True,
            default="",
        ),
        Flag("--real FOLDER", "run it on this machine too, and let drawn faults kill it", Path),
        Flag("--processes N", "for --real: so many processes; 1 by default", count),
        Flag("--devices N", "for --real: so many virtual devices of each; 2 by default", count),
        Flag("--scale N", "for --real: faults come so many times as fast", load),
        Flag(
            "--to-host RATE",
            "from a device to the memory of its host (%(default)s)",
            default="8GB/s",
        ),
        Flag("--spares K", "up to so many slices that stand by; 1 by default", whole),
        Flag("--traces N", "how many traces of faults are drawn (%(default)s)", count, default=40),
        Flag("--seed N", "another one draws other faults (%(default)s)", int, default=0),
        Flag("--out FILE", "a picture: .png, .svg or .pdf, by matplotlib", Path),
        *ANALYSIS,
    ),
)


LAYOUTS = Command(
    "layouts",
    help="list the shipped layouts, or check one",
    function="meshdsl.commands.layouts:list_layouts",
    without_settings="`{setting}`: settings belong to `check`",
    parts=(
        Command(
            "check",
            help="check a layout against a model and a number of devices",
            function="meshdsl.commands.layouts:check_layout",
            settings=True,
            flags=(
                LAYOUT.but("file"),
                MODEL.but(default="gpt2"),
                Flag("--devices N", "by default what the mesh asks for", count),
            ),
        ),
    ),
)


MODELS = Command(
    "models",
    help="list the published sizes that have a name",
    function="meshdsl.commands.layouts:list_models",
)
