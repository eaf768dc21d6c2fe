"""`meshdsl train --relayout`: tells a run that goes on to change its layout."""

from __future__ import annotations

import argparse
import time
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.phases import phases_of
from meshdsl.train.relayout import read_table
from meshdsl.train.settings import as_toml, leaves, override

# Flags that go with it; all others are about a run that this command does not start.
_WITH = {"relayout", "out", "layout", "settings"}
_LOOK = 0.2  # seconds between two looks whether the run has taken it


def change_layout(arguments: argparse.Namespace) -> int:
    """Write what a run is to change into its folder, and wait until it has, or has refused it.

    Raises:
      MeshDSLError: no run goes on there, what it should change is not legal, or it has refused it.
    """
    if others := [each for each, value in vars(arguments).items() if value and each not in _WITH]:
        other = others[0].replace("_", "-")
        raise MeshDSLError(f"--relayout: goes with --out, --layout and settings, not with {other}")
    if arguments.out is None or not (arguments.layout or arguments.settings):
        raise MeshDSLError("--relayout: say which run, with --out, and what changes, with --layout")
    folder = RunFolder(arguments.out)
    config = folder.stored_config()
    before = folder.relayouts()
    text = as_toml(_table(arguments, config))
    phases_of(config, [*before, (0, read_table(text))])  # so a mistake is known at once
    if not folder.in_use():
        raise MeshDSLError(
            f"--relayout: no process trains in {folder.path}; go on with it by --resume, with the "
            "layout that it should have"
        )
    folder.refused_relayout.unlink(missing_ok=True)
    folder.write(folder.relayout, text)
    print("the run goes on while what it needs is compiled; Ctrl-C ends the wait alone", flush=True)
    while folder.relayout.exists() and folder.in_use():
        time.sleep(_LOOK)
    if folder.refused_relayout.exists():
        why = folder.refused_relayout.read_text(encoding="utf-8").splitlines()[0]
        raise MeshDSLError(f"--relayout: the run goes on as it is: {why.removeprefix('# ')}")
    if folder.relayout.exists():
        raise MeshDSLError(
            f"--relayout: the run has ended before; {folder.relayout} is for when it goes on"
        )
    steps = [step for step, _ in folder.relayouts() if step not in dict(before)]
    print("\n".join(f"changed after step {step:,}: {folder.relaid(step)}" for step in steps))
    return 0


def _table(arguments: argparse.Namespace, config: Config) -> dict[str, Any]:
    """What flags and settings say that changes, as nested tables."""
    table: dict[str, Any] = {"layout": arguments.layout} if arguments.layout else {}
    values = dict(leaves(override(config, arguments.settings)))
    for key in (text.partition("=")[0] for text in arguments.settings):
        *path, name = key.split(".")
        at = table
        for each in path:
            at = at.setdefault(each, {})
        at[name] = values[key]
    return table
