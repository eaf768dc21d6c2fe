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
    seconds,
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
