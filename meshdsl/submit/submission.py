"""What a cluster is to run: a training run on several machines."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from meshdsl.errors import MeshDSLError

GRACE = 300  # seconds that a run has to finish its step and save it, when it is told to end


@dataclass(frozen=True)
class Submission:
    """A training run on several machines.

    Attributes:
      program: the words that start meshdsl on each machine.
      config: the file with the settings of the run, as the machines see it.
      settings: what they are changed by, each `key=value`.
      out: the folder of the run, which all machines see.
      steps: how many the run has.
      nodes: how many machines there are; of TPUs how many a slice has.
      gpus: how many each has; 0 where none are asked for.
      least: with so many machines the run goes on; 0: all have to be there.
    """

    program: tuple[str, ...]
    config: str
    settings: tuple[str, ...]
    out: str
    steps: int
    nodes: int
    gpus: int = 0
    least: int = 0

    def __post_init__(self) -> None:
        if self.least > self.nodes:
            raise MeshDSLError(f"--elastic {self.least}: more than the {self.nodes} of --nodes")

    @property
    def name(self) -> str:
        """A name for the job, by the folder of the run: `run-a`. It begins with a letter."""
        name = re.sub(r"[^a-z0-9]+", "-", Path(self.out).name.lower())[:40].strip("-")
        return name if name[:1].isalpha() else f"run-{name}".rstrip("-")

    def command(self, host: str = "", *more: str, out: str = "") -> str:
        """What each machine runs, as a shell reads it.

        Args:
          host: for an elastic run what a shell makes the machine's address of.
          more: settings beside those that are given, as a shell reads them.
          out: instead of the folder of the run, as a shell reads it.
        """
        train = ["train", self.config, *self.settings]
        words = [shlex.join(self.program)]
        if self.least:
            words += ["launch", f"--elastic {self.least}:{self.nodes}"]
            words += [f"--host {host}"] if host else []
            words.append("--")
        words += [shlex.join(train), *more, "--out", out or shlex.quote(self.out), "--resume auto"]
        return " ".join(words)

    def done(self, out: str = "") -> str:
        """A test of the shell's, whether the run has come to its last step."""
        return f"test -d {out or shlex.quote(self.out)}/checkpoints/{self.steps}"
