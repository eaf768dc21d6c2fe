"""A batch script for SLURM.

A run that is preempted, or whose time is over, saves its step and ends with the exit code 0. Then
the script puts the job back into the queue, and it goes on from there. So it does where the run
died, because a node failed say, but not after a mistake that was explained (exit code 2), and not
where the run has come no further than the start before.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from meshdsl.errors import MeshDSLError
from meshdsl.submit.submission import GRACE, Submission

SHELL_OUT = '"$out"'  # the folder of the run, as the script has it

_NEWEST = (
    """newest() { ls "$out/checkpoints" 2>/dev/null | grep -x '[0-9]*' | sort -n | tail -1; }"""
)


def slurm_script(job: Submission, time: str = "", lines: Sequence[str] = (), each: str = "") -> str:
    """The script that `sbatch` takes.

    Args:
      time: after which SLURM ends the job, as `24:00:00`; without one that of the partition.
      lines: further options of `sbatch`, such as `--partition=gpu`.
      each: a setting with its values, as `seed=0,1,2`: a run for each, in folders in that of the
        run.

    Raises:
      MeshDSLError: `each` is not of that form.
    """
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",  # one process holds all devices of a machine
        *([f"--gpus-per-node={job.gpus}"] if job.gpus else []),
        *([f"--time={time}"] if time else []),
        "--requeue",
        f"--signal=TERM@{GRACE}",
        "--open-mode=append",
        *(["--no-kill"] if job.least else []),
        *lines,
    ]
    srun = f"srun --kill-on-bad-exit={int(not job.least)}"
    begin, out, more = [], shlex.quote(job.out), []
    if each:
        key, values = _values(each)
        options.append(f"--array=0-{len(values) - 1}")
        out = f"{shlex.quote(f'{job.out}/{key}=')}$value"
        value = f"{shlex.quote(f'{key}=')}$value"
        more = [value]
        begin = [f"values=({shlex.join(values)})", "value=${values[$SLURM_ARRAY_TASK_ID]}"]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "",
            *begin,
            f"out={out}",
            _NEWEST,
            "before=$(newest)",
            f"{srun} \\",
            f"  {job.command('', *more, out=SHELL_OUT)}",
            "code=$?",
            f"[ $code -eq 2 ] || {job.done(SHELL_OUT)} && exit $code",
            "# It was told to end, or died on its way: then it waits in the queue to go on.",
            '[ $code -eq 0 ] || [ "$(newest)" != "$before" ] || exit $code',
            'scontrol requeue "$SLURM_JOB_ID"',
            "",
        ]
    )


def _values(each: str) -> tuple[str, list[str]]:
    """The setting, and its values."""
    key, _, text = each.partition("=")
    values = [value for value in text.split(",") if value]
    if not key or not values or any(not _plain(value) for value in values):
        raise MeshDSLError(f"--each {each}: expected a setting with values, as seed=0,1,2")
    return key, values


def _plain(value: str) -> bool:
    """Whether a value is one word for a shell, and a part of the name of a folder."""
    return shlex.quote(value) == value and "/" not in value
