"""`meshdsl submit`: hand a training run to a cluster, or print what the cluster would be given."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.submit.kubernetes import CONFIG, Pods, hosts_of, job_manifest, jobset_manifest
from meshdsl.submit.slurm import slurm_script
from meshdsl.submit.submission import Submission
from meshdsl.train.config import Config
from meshdsl.train.phases import with_stored_layouts
from meshdsl.train.settings import override, read, to_toml

_SBATCH = ("sbatch",)
_KUBECTL = ("kubectl", "apply", "-f", "-")


def to_slurm(arguments: argparse.Namespace) -> int:
    """Give SLURM a batch script.

    Raises:
      MeshDSLError: a mistake in the settings or flags; SLURM is not here, or refuses the script.
    """
    config = _config(arguments)
    if arguments.each:
        key, _, values = arguments.each.partition("=")
        for value in values.split(","):
            override(config, [f"{key}={value}"])
    beside = Path(sys.executable).with_name("meshdsl")
    program = str(beside) if beside.exists() else "meshdsl"
    job = _submission(arguments, config, program, str(arguments.config.absolute()))
    text = slurm_script(job, arguments.time or "", arguments.sbatch, arguments.each or "")
    return _hand_over(arguments, text, _SBATCH)


def to_kubernetes(arguments: argparse.Namespace) -> int:
    """Give Kubernetes a Job.

    Raises:
      MeshDSLError: a mistake in the settings or flags; `kubectl` is not here, or refuses them.
    """
    config = _config(arguments)
    job, pods = _submission(arguments, config), _pods(arguments)
    return _hand_over(arguments, job_manifest(job, pods, _text_of(config)), _KUBECTL)


def to_jobset(arguments: argparse.Namespace) -> int:
    """Give Kubernetes a JobSet.

    Raises:
      MeshDSLError: as for `to_kubernetes`; or it is not said which machines.
    """
    config, target = _config(arguments), None
    if arguments.target:
        if arguments.nodes or arguments.gpus:
            raise MeshDSLError("--target: says how many hosts a slice has, without --nodes, --gpus")
        target = find_target(arguments.target, slices=arguments.slices)
        arguments.nodes = hosts_of(target)
    elif not arguments.nodes or arguments.slices > 1:
        raise MeshDSLError("say which machines: --target v6e:4x4 with --slices, or --nodes N")
    job, pods = _submission(arguments, config), _pods(arguments)
    text = jobset_manifest(job, pods, _text_of(config), target, arguments.restarts)
    return _hand_over(arguments, text, _KUBECTL)


def _config(arguments: argparse.Namespace) -> Config:
    return override(read(arguments.config, Config()), arguments.settings)


def _text_of(config: Config) -> str:
    """The settings as a file that needs no other one for its layouts."""
    return to_toml(with_stored_layouts(config))


def _submission(
    arguments: argparse.Namespace, config: Config, program: str = "meshdsl", path: str = ""
) -> Submission:
    """What the cluster is to run.

    Args:
      path: the file of the settings; without one they are all in the file that goes with the job.
    """
    if not arguments.out.is_absolute() and not path:
        raise MeshDSLError(f"--out {arguments.out}: expected an absolute path on a volume")
    return Submission(
        (program,),
        path or CONFIG,
        tuple(arguments.settings) if path else (),
        str(arguments.out.absolute()),
        config.steps,
        arguments.nodes,
        arguments.gpus or 0,
        getattr(arguments, "elastic", None) or 0,
    )


def _pods(arguments: argparse.Namespace) -> Pods:
    volumes: dict[str, str] = {}
    for text in arguments.volume:
        claim, colon, path = text.partition(":")
        if not claim or not colon or not path.startswith("/"):
            raise MeshDSLError(f"--volume {text}: expected CLAIM:PATH, such as shared:/shared")
        volumes[path] = claim
    pods = Pods(arguments.image, volumes, arguments.chdir or "")
    pods.check(str(arguments.out))
    return pods


def _hand_over(arguments: argparse.Namespace, text: str, command: Sequence[str]) -> int:
    """Print the text, or give it to a command; returns the exit code."""
    if arguments.dry_run:
        print(text, end="")
        return 0
    try:
        done = subprocess.run(command, input=text, text=True, capture_output=True)
    except FileNotFoundError:
        raise MeshDSLError(
            f"{command[0]} is not on this machine; --dry-run prints what it would be given"
        ) from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise MeshDSLError(f"{command[0]} refuses it: {said}")
    print(done.stdout.strip())
    return 0
