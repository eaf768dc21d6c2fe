"""`meshdsl search`: the layout that makes a step of training fastest on a machine."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from meshdsl.commands.analysis import (
    configured,
    parse_mesh,
    target_of,
    title_of,
    training_analysis,
    with_rows,
)
from meshdsl.commands.output import check_files, write_file
from meshdsl.commands.training_workload import TrainingWorkload
from meshdsl.errors import MeshDSLError
from meshdsl.figures import time_words
from meshdsl.layout_search.as_dict import found_as_dict
from meshdsl.layout_search.confirm import confirmed
from meshdsl.layout_search.constraints import Constraints, parse_keep
from meshdsl.layout_search.found import Found
from meshdsl.layout_search.layout_file import layout_file
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.text import describe, memory_words, step_words
from meshdsl.machine import Target
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.settings import override

SECONDS = 10.0  # that a search takes by default
_UNSAID = {
    "axes": 3,
    "slices": 1,
    "imbalance": 1.0,
}  # what these flags are where they are not given
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
    constraints = constraints_of(arguments, target)
    if arguments.compile:
        # A missing compiler is an error at once, and virtual devices can be made only before JAX
        # computes anything.
        target_devices(target)
    try:
        found = _find(arguments, config, constraints, target)
    except MeshDSLError as error:
        if not str(error).startswith(_SAYS):
            raise
        # The command line says which command it is.
        raise MeshDSLError(str(error).removeprefix(_SAYS)) from error
    if arguments.out:
        write_file(arguments.out, _file(arguments, config, target, found))
    print(json.dumps(found_as_dict(found)) if arguments.json else describe(found))
    if arguments.out and not arguments.json:
        print(f"\ntrain with it\n  {train_command(arguments, config, found)}")
    return 0


def constraints_of(arguments: argparse.Namespace, target: Target) -> Constraints:
    """What the flags ask of the layout.

    A setting `model.remat=...` or `microbatches=...` that the user gives is the only one to choose.

    Raises:
      MeshDSLError: a flag that is not of its form.
    """
    keep = parse_keep(arguments.keep)
    remat, microbatches = _words(arguments.remat), _counts(arguments.microbatches)
    for setting in arguments.settings:
        key, _, value = setting.partition("=")
        if key == "model.remat" and value != "auto" and remat is None:
            remat = (value,)
        if key == "microbatches" and microbatches is None and value.isdecimal():
            microbatches = (int(value),)
    return Constraints(
        keep=keep.layout,
        never=tuple(arguments.never),
        mesh=keep.mesh | _sizes(arguments.mesh, "--mesh"),
        axes=arguments.axes,
        within_host=tuple(arguments.within_host),
        dcn=keep.dcn | _sizes(arguments.dcn, "--dcn"),
        memory=_memory(arguments.max_memory, target),
        remat=remat,
        microbatches=microbatches,
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


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(","))


def _counts(text: str | None) -> tuple[int, ...] | None:
    words = _words(text)
    if words is None:
        return None
    if not all(word.isdecimal() and int(word) for word in words):
        raise MeshDSLError(f"--microbatches {text}: expected whole numbers such as 1,2,4")
    return tuple(map(int, words))


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
                words += [f"--{name.replace('_', '-')}", _plain(value)]
    return shlex.join([*words, *arguments.settings])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    chosen = override(config, [f"{key}={value}" for key, value in best.candidate.settings])
    sizes = {axis: size for axis, size in layout.mesh.items() if isinstance(size, int)}
    explanation = training_analysis(found.title, chosen, layout, sizes, target).explain()
    settings = " ".join(f"{key}={value}" for key, value in best.candidate.settings)
    heading = [
        f"{found.title}, on {target}",
        "",
        "Found by:",
        *_continued(command_line(arguments)),
        f"Step {step_words(best.step)} by the {best.judge}, {time_words(best.exposed)} of it waits "
        "for collectives;",
        f"{memory_words(best, found)}.",
        *([f"It goes with {settings}."] if settings else []),
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


def _find(
    arguments: argparse.Namespace, config: Config, constraints: Constraints, target: Target
) -> Found:
    microbatches = constraints.microbatches or (config.microbatches,)
    workload = TrainingWorkload(config, target, title_of(arguments, config), microbatches)
    # The program has run for as long as it has computed, at least: imports count too.
    began = time.monotonic() - time.process_time()
    seconds = arguments.seconds or SECONDS
    found = find(workload, constraints, seconds=seconds, began=began)
    return confirmed(found, workload, arguments.compile) if arguments.compile else found
