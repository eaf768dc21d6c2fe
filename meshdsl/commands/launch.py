"""`meshdsl launch`: several processes of one meshdsl command on this machine."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from meshdsl.commands.elastic import launch_elastic
from meshdsl.commands.processes import Place, free_port, launch, starts
from meshdsl.commands.restarts import Outcome, folder_of_run, start_again
from meshdsl.errors import MeshDSLError


def launch_command(arguments: argparse.Namespace) -> int:
    """Run any meshdsl command line in several processes, and return the exit code of the run.

    Raises:
      MeshDSLError: there is no command line, it cannot be started again as `--restarts` asks, there
        are fewer GPUs than wanted, or this machine has TPU chips, which one process holds together.
    """
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise MeshDSLError("after -- comes the command to run, such as: train --layout fsdp")
    if _tpu_here():
        raise MeshDSLError(
            "one process holds all TPU chips of a machine: run the command itself, on every "
            "machine of the pod (see docs/launch.md)"
        )
    if arguments.processes is None and not arguments.elastic:
        raise MeshDSLError("--processes: say how many")
    processes = arguments.processes or 1
    environments = devices_of_each(processes, arguments.devices_per_process, _gpus())
    words = [*words, *arguments.settings]
    if arguments.elastic:
        if arguments.restarts or arguments.coordinator_port:
            other = "restarts" if arguments.restarts else "coordinator-port"
            raise MeshDSLError(
                f"--elastic: starts again by itself, so --{other} does not go with it"
            )
        least, most = _range(arguments.elastic)
        host = arguments.host or socket.gethostname()
        return launch_elastic(words, environments, least, most, host)
    if arguments.restarts:
        folder_of_run(words)  # so that a mistake is known before anything starts

    def start(words: Sequence[str]) -> Outcome:
        port = arguments.coordinator_port or free_port()
        return launch(starts(words, environments), processes, Place(f"localhost:{port}"))

    return (
        start_again(start, words, arguments.restarts) if arguments.restarts else start(words).code
    )


def _range(text: str) -> tuple[int, int]:
    """The numbers in `MIN:MAX`."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal() and 0 < int(least) <= int(most)):
        raise MeshDSLError(f"--elastic {text}: expected MIN:MAX, numbers of hosts, such as 2:4")
    return int(least), int(most)


def devices_of_each(processes: int, each: int | None, gpus: Sequence[str]) -> list[dict[str, str]]:
    """What the environment of each process says of its devices.

    Args:
      processes: how many there are.
      each: how many devices a process has; by default an equal share of the GPUs, or one virtual
        CPU device.
      gpus: the GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES knows. Where there are
        none, virtual CPU devices are used.

    Raises:
      MeshDSLError: there are fewer GPUs than that.
    """
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(each or 1)}] * processes
    each = each or max(1, len(gpus) // processes)
    if processes * each > len(gpus):
        raise MeshDSLError(
            f"--processes {processes}: with {each} GPU{'s' * (each > 1)} each that is "
            f"{processes * each}, and there are {len(gpus)}"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])}
        for i in range(processes)
    ]


def _gpus() -> list[str]:
    """The names of the GPUs of this machine that may be used."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _tpu_here() -> bool:
    """Whether this machine has TPU chips that may be used."""
    # JAX, which is imported by now, sets the variable where no TPU is attached.
    return "TPU_SKIP_MDS_QUERY" not in os.environ and not os.environ.get(
        "JAX_PLATFORMS", ""
    ).startswith("cpu")
