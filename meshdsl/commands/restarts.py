"""`meshdsl launch --restarts`: a run that died is started again, as long as it comes further."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from meshdsl.errors import MeshDSLError
from meshdsl.hosts.signals import EXIT_CODES
from meshdsl.train.checkpoints.folders import newest_step
from meshdsl.train.folder import RunFolder

# What a start does not mend: the run is at its end, Ctrl-C, and a mistake that was explained.
_FINAL = (0, EXIT_CODES["interrupted"], 2)
_WAIT = 2.0  # seconds before a restart of what has come no further
_IN_VAIN = 2  # so many starts one after the other without a new checkpoint are the last


class Outcome(NamedTuple):
    """How a launch ended.

    Attributes:
      code: the exit code of the run.
      told: whether the launcher was told to end, by a signal.
    """

    code: int
    told: bool


def folder_of_run(words: Sequence[str]) -> RunFolder:
    """The folder that a command line of `meshdsl train` names by `--out`.

    Raises:
      MeshDSLError: it is another command, or names none.
    """
    for i, word in enumerate(words):
        if words[0] == "train" and word.startswith("--out="):
            return RunFolder(Path(word.removeprefix("--out=")))
        if words[0] == "train" and word == "--out" and i + 1 < len(words):
            return RunFolder(Path(words[i + 1]))
    raise MeshDSLError(
        "--restarts and --elastic are for a run that can go on: train, with --out FOLDER of its own"
    )


def start_again(
    start: Callable[[Sequence[str]], Outcome],
    words: Sequence[str],
    restarts: int,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run `meshdsl train` until it ends by itself, and return its exit code.

    Where it dies it is started again with `--resume auto`, at once where it has come to a new
    checkpoint, and after two seconds otherwise. It is not where it was told to end, or made a
    mistake of the user's known (exit code 2), or died twice without a new checkpoint.

    Args:
      start: runs a command line to its end.
      restarts: how many there are at most.
      sleep: waits for some seconds.
    """
    checkpoints = folder_of_run(words).checkpoints
    in_vain = 0
    for count in range(restarts + 1):
        before = newest_step(checkpoints)
        code, told = start(words)
        if told or code in _FINAL:
            return code
        newest = newest_step(checkpoints)
        in_vain = 0 if newest > before else in_vain + 1
        where = f"the newest checkpoint is of step {newest}" if newest else "no step is saved"
        died = f"meshdsl launch: the run died with exit code {code}; {where}"
        if count == restarts:
            _say(f"{died}; {restarts} restart{'s' * (restarts != 1)} are used up")
            return code
        if in_vain == _IN_VAIN:
            _say(f"{died}; {in_vain} starts in a row made no progress, so it is given up")
            return code
        wait = f" in {_WAIT:g} s" if in_vain else ""
        _say(f"{died}; restart {count + 1} of {restarts}{wait}")
        if in_vain:
            sleep(_WAIT)
        words = resumed(words)
    raise AssertionError("the last start returns")


def resumed(words: Sequence[str]) -> list[str]:
    """A command line that goes on with its run, or begins it where nothing is saved yet."""
    kept: list[str] = []
    for word in words:
        follows = kept[-1:] == ["--resume"]
        if not (follows and word == "auto"):
            kept.append(word)
    kept = [word for word in kept if word != "--resume" and not word.startswith("--resume=")]
    return [kept[0], "--resume", "auto", *kept[1:]]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
