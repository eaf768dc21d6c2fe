"""`meshdsl search`: the layout that makes a step of training fastest on a machine."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Iterable
from dataclasses import replace

from meshdsl.commands.analysis import (
    configured,
    parse_mesh,
    target_of,
    title_of,
    training_analysis,
    with_rows,
)
from meshdsl.commands.output import check_files, write_file
from meshdsl.commands.training_workload import training_workload
from meshdsl.errors import MeshDSLError
from meshdsl.figures import time_words
from meshdsl.layout_search.confirm import confirmed
from meshdsl.layout_search.constraints import Constraints, parse_keep
from meshdsl.layout_search.found import Found, as_dict
from meshdsl.layout_search.layout_file import layout_file
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.text import describe, memory_words, step_words
from meshdsl.layout_search.workload import sizes_of
from meshdsl.machine import Target
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.few_bits import with_formats
from meshdsl.train.settings import override

SECONDS = 10.0  # that a search takes by default
# What these flags are where they are not given.
_UNSAID = {"axes": 3, "slices": 1, "imbalance": 1.0}
_WIDTH = 96
_SAYS = "search: "  # how errors of the search begin


def search_layout(arguments: argparse.Namespace) -> int:
    """Search, print what was found, and write the layout to a file where that is asked for.

    Raises:
      MeshDSLError: an unknown model, setting or target; constraints that contradict each other, the
        machine or the model: the error names the first that fails; or nothing fits.
    """
    check_files(arguments.out)
    compile_only()
    target = target_of(arguments)
    config = with_rows(arguments, configured(arguments), target.devices)
    config = replace(config, precision=with_formats(config.precision, target.chip)[0])
    constraints = constraints_of(arguments, target)
    if arguments.compile:
        # A missing compiler is an error at once, and virtual devices can be made only before JAX
        # computes anything.
        target_devices(target)
    microbatches = constraints.microbatches or (config.microbatches,)
    workload = training_workload(config, target, title_of(arguments, config), microbatches)
    # The program has run for as long as it has computed, at least: imports count too.
    began = time.monotonic() - time.process_time()
    try:
        found = find(workload, constraints, seconds=arguments.seconds or SECONDS, began=began)
        if arguments.compile:
            found = confirmed(found, workload, arguments.compile)
    except MeshDSLError as error:
        # The command line says which command it is.
        raise MeshDSLError(str(error).removeprefix(_SAYS)) from error
    if arguments.out:
        write_file(arguments.out, _file(arguments, config, target, found))
    print(json.dumps(as_dict(found)) if arguments.json else describe(found))
    if arguments.out and not arguments.json:
        print(f"\ntrain with it\n  {train_command(arguments, config, found)}")
    return 0


def constraints_of(arguments: argparse.Namespace, target: Target) -> Constraints:
    """What the flags ask of the layout.

    A setting `model.remat=...` or `microbatches=...` that the user gives is the only one to choose.

    Raises:
      MeshDSLError: a flag that is not of its form.
    """
    keep, within, across = parse_keep(arguments.keep)
    settings = dict(setting.partition("=")[::2] for setting in arguments.settings)
    remats, counts = arguments.remat, arguments.microbatches
    if remats is None and settings.get("model.remat") != "auto":
        remats = settings.get("model.remat")
    if counts is None and settings.get("microbatches", "").isdecimal():
        counts = settings["microbatches"]
    if counts is not None and not all(word.isdecimal() and int(word) for word in _words(counts)):
        raise MeshDSLError(f"--microbatches {counts}: expected whole numbers such as 1,2,4")
    return Constraints(
        keep=keep,
        never=tuple(arguments.never),
        mesh=within | _sizes(arguments.mesh, "--mesh"),
        axes=arguments.axes,
        within_host=tuple(arguments.within_host),
        dcn=across | _sizes(arguments.dcn, "--dcn"),
        memory=_memory(arguments.max_memory, target),
        remat=None if remats is None else _words(remats),
        microbatches=None if counts is None else tuple(map(int, _words(counts))),
    )


def _sizes(text: str | None, flag: str) -> dict[str, int]:
    """The sizes in `model=8,data=4`; one that is `rest` is left open."""
    sizes = parse_mesh(text, flag) if text is not None else {}
    return {axis: size for axis, size in sizes.items() if isinstance(size, int)}


def _memory(text: str | None, target: Target) -> int | None:
    if text is None:
        return None
    try:
        found = memory_bytes(text, target.chip.hbm)
    except MeshDSLError as error:
        said = str(error).partition(": ")[2]
        raise MeshDSLError(f"--max-memory {text}: {said}") from None
    if found is None:
        raise MeshDSLError(
            f"--max-memory {text}: how much memory a device of {target} has is not known; give "
            "bytes, as 60GiB"
        )
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


# -- what is written ---------------------------------------------------------------------------


def command_line(arguments: argparse.Namespace) -> str:
    """The command that was given, without what does not change what is found."""
    values = {k: v for k, v in vars(arguments).items() if k not in ("settings", "json", "out")}
    words = ["meshdsl", "search"]
    first = [name for name in ("model", "target", "batch", "length") if name in values]
    for name in dict.fromkeys((*first, *values)):
        given = values[name] if isinstance(values[name], list) else [values[name]]
        for value in given:
            if value is not None and value != _UNSAID.get(name):
                text = f"{value:g}" if isinstance(value, float) else str(value)
                words += [f"--{name.replace('_', '-')}", text]
    return shlex.join([*words, *arguments.settings])


def train_command(arguments: argparse.Namespace, config: Config, found: Found) -> str:
    """The command that trains under the layout that was found, with the settings that go with it.

    Flags of the search that are settings of a run are among them.
    """
    settings = dict(setting.partition("=")[::2] for setting in arguments.settings)
    settings["batch"] = str(config.batch)
    if arguments.length:
        settings["model.length"] = str(arguments.length)
    settings |= dict(found.best.candidate.settings)
    model = ["--model", arguments.model] if arguments.model else []
    words = ["meshdsl", "train", "--layout", str(arguments.out), *model]
    return shlex.join([*words, *(f"{key}={value}" for key, value in settings.items())])


def _file(arguments: argparse.Namespace, config: Config, target: Target, found: Found) -> str:
    """The layout file."""
    best = found.best
    layout = replace(best.candidate.layout, name=f"layout {arguments.out.name}")
    settings = [f"{key}={value}" for key, value in best.candidate.settings]
    chosen, sizes = override(config, settings), sizes_of(layout)
    explanation = training_analysis(found.title, chosen, layout, sizes, target).explain()
    heading = [
        f"{found.title}, on {target}",
        "",
        "Found by:",
        *_continued(command_line(arguments)),
        f"Step {step_words(best.step)} by the {best.judge}, {time_words(best.exposed)} of it waits "
        "for collectives;",
        f"{memory_words(best, found)}.",
        *([f"It goes with {' '.join(settings)}."] if settings else []),
        "Train with it:",
        *_continued(train_command(arguments, config, found)),
    ]
    return layout_file(layout, "\n".join(heading), explanation)


def _continued(command: str) -> Iterable[str]:
    """A command in lines that a shell reads as one."""
    lines, line = [], " "
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if len(line) + len(quoted) + 1 > _WIDTH:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {quoted}"
    return [*lines, line]
