"""`meshdsl rehearse --real`: the same drawn faults, met by a real run on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from meshdsl.commands.analysis import configured
from meshdsl.errors import MeshDSLError
from meshdsl.figures import columns, long_words
from meshdsl.rehearsal.disturbed import disturbed
from meshdsl.rehearsal.faults import FLAG, Faults, Trace
from meshdsl.rehearsal.launched import Launched
from meshdsl.rehearsal.measured import measured_run
from meshdsl.rehearsal.run import Option
from meshdsl.rehearsal.simulate import Outcome, simulate
from meshdsl.train.folder import RunFolder

_OTHER = ("target", "store", "step", "restart", "mesh", "hardware", "phase", "out", "spares")
_DEVICES = 2


def rehearse_for_real(arguments: argparse.Namespace, faults: Faults) -> int:
    """Measure a short run, predict by it what a trace will leave of a long one, and run that.

    Raises:
      MeshDSLError: a flag is for a rehearsal on paper, the faults are of slices, the run is of
        several phases or is saved by time, or it ends by a mistake of its own.
    """
    for name in _OTHER:
        if getattr(arguments, name):
            raise MeshDSLError(f"--{name}: is for a rehearsal on paper, not for --real")
    if faults.slice_mtbf:
        raise MeshDSLError(f"{FLAG} {arguments.faults}: --real has processes, and no slices")
    config = configured(arguments)
    every = config.checkpoint.every
    if config.phase or config.checkpoint.minutes or not every:
        raise MeshDSLError("--real: is for a run of one phase, with checkpoint.every alone")
    folder, processes = arguments.real, arguments.processes or 1
    how = processes, arguments.devices or _DEVICES
    RunFolder(folder).refuse_used()
    scale = arguments.scale or 1.0
    faults = faults.scaled(scale)
    told = _say if not arguments.json else lambda text: None
    folder.mkdir(parents=True, exist_ok=True)
    words = [*_train_words(arguments), f"steps={config.steps}"]
    short = Launched(words, *how, RunFolder(folder / "short"))
    run = measured_run(short, config.steps, every)
    between = faults.of_job(processes)
    assert between
    told(
        f"measured: a step {long_words(run.work(1))}, a save {long_words(run.handover)} and "
        f"{long_words(run.write)} beside the steps, a restart {long_words(run.restarting)}"
    )
    if between <= run.restarting:
        raise MeshDSLError(
            f"--scale {scale:g}: a restart takes {long_words(run.restarting)} here, and "
            f"a fault comes every {long_words(between)} then; take less"
        )
    trace = Trace(faults, processes, arguments.seed)
    predicted = simulate(run, Option((every,)), trace)
    told(
        f"predicted: goodput {predicted.goodput:.1%}, {long_words(predicted.seconds)} with "
        f"{predicted.faults} faults, one every {long_words(between)} in the mean"
    )
    measured = disturbed(Launched(words, *how, RunFolder(folder / "run")), config.steps, trace)
    if arguments.json:
        print(json.dumps({"predicted": _dict(predicted), "measured": _dict(measured)}))
    else:
        print(_table(predicted, measured))
    return 0


def _table(predicted: Outcome, measured: Outcome) -> str:
    rows = [("", "predicted", "measured")]
    shown: dict[str, Callable[[Outcome], str]] = {
        "goodput": lambda found: f"{found.goodput:.1%}",
        "takes": lambda found: f"{found.seconds:,.1f} s",
        "faults": lambda found: f"{found.faults}",
        **{cause: _seconds(cause) for cause in predicted.losses},
    }
    rows += [(name, text(predicted), text(measured)) for name, text in shown.items()]
    return "\n".join(columns(rows, right=[1, 2]))


def _seconds(cause: str) -> Callable[[Outcome], str]:
    return lambda found: f"{found.losses[cause]:,.1f} s" if cause in found.losses else "-"


def _dict(found: Outcome) -> dict[str, object]:
    return {"goodput": found.goodput, **vars(found)}


def _train_words(arguments: argparse.Namespace) -> list[str]:
    """The words of `meshdsl train` that train the same, but for its folder and its steps."""
    flags = {"--layout": arguments.layout, "--model": arguments.model}
    words = ["train", *([str(arguments.config)] if arguments.config else [])]
    words += [word for flag, value in flags.items() if value for word in (flag, str(value))]
    sizes = {"batch": arguments.batch, "model.length": arguments.length}
    settings = [text for text in arguments.settings if not text.startswith("steps=")]
    return [*words, *settings, *(f"{key}={value}" for key, value in sizes.items() if value)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
