"""`meshdsl launch --elastic MIN:MAX`: a run on as many hosts as there are, from MIN to MAX.

Every host runs the same command, and takes part in one round after the other (`rounds`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from meshdsl.commands.members import Member
from meshdsl.commands.processes import PROGRAM, Place, launch
from meshdsl.commands.restarts import folder_of_run, resumed
from meshdsl.commands.rounds import Hosts, Round
from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints.folders import newest_step
from meshdsl.train.checkpoints.keeper import KEEPER, Keeper, Shared, serve
from meshdsl.train.config import Config
from meshdsl.train.elastic import fitted
from meshdsl.train.elastic_settings import PLANNED
from meshdsl.train.folder import RunFolder
from meshdsl.train.phases import phases_of
from meshdsl.train.settings import read

_TICK = 0.25  # seconds between two looks at the others, and two signs of life
_LOOK = 1.0  # seconds between two looks whether a run has ended that this host waits for
_IN_VAIN = 3  # so many rounds of the same hosts without a new checkpoint are the last


def launch_elastic(
    words: Sequence[str],
    environments: Sequence[dict[str, str]],
    least: int,
    most: int,
    host: str,
) -> int:
    """Run `meshdsl train` on this host and others; returns the exit code of this host.

    Args:
      words: the command line of `meshdsl train`.
      environments: of the processes of this host, see `launch`.
      least, most: how many hosts take part.
      host: the name by which others reach this one.

    Raises:
      MeshDSLError: the command line is none of a run that can go on, or its layout does not fit the
        devices of so many hosts.
    """
    folder = folder_of_run(words)
    each = sum(int(env.get("JAX_NUM_CPU_DEVICES") or _gpus_of(env)) for env in environments)
    config = _configured(words)
    for count in (most, least):
        refused = _refused(config, folder, each * count, each * most)
        if refused:
            hosts = f"{count} hosts, {each * count} devices"
            raise MeshDSLError(f"--elastic {least}:{most}: with {hosts}: {refused}")
    words = [*words, f"elastic.{PLANNED}={each * most}"] if PLANNED not in config.elastic else words
    name = f"{time.time_ns():020d}-{socket.gethostname()}-{os.getpid()}"
    keeper = Keeper()
    port, secret = serve(keeper)
    me = Member(name, f"{host}:{port}", secret, len(environments), each)
    environments = [each | {KEEPER: f"localhost:{port}/{secret}"} for each in environments]
    fits = cache(lambda devices: not _refused(config, folder, devices, each * most))
    hosts = Hosts(folder.hosts, me, least, most, fits, _say)
    over = threading.Event()

    def live() -> None:
        while not over.wait(_TICK):
            hosts.tick()

    thread = threading.Thread(target=live, name="meshdsl hosts", daemon=True)
    thread.start()
    try:
        return _rounds(hosts, keeper, folder, config.steps, words, environments)
    finally:
        over.set()
        thread.join()
        hosts.leave()


def _rounds(
    hosts: Hosts,
    keeper: Keeper,
    folder: RunFolder,
    steps: int,
    words: Sequence[str],
    environments: Sequence[dict[str, str]],
) -> int:
    """Take part in rounds until the run has come to its last step, or this host is told to end.

    Returns: the exit code of this host.
    """
    before: tuple[int, list[str]] | None = None
    in_vain = 0
    while now := _next_round(hosts, folder, steps):
        first = now.places[now.members.index(hosts.me.name)]
        place = Place(now.coordinator, first, now.total)
        keeper.shared = Shared(now.key, now.keepers, now.places)
        code, told = launch(resumed(words), environments, place, lambda: hosts.signal)
        if told:
            return code
        newest = max(newest_step(folder.checkpoints), keeper.newest)
        if not hosts.signal and newest < steps:
            in_vain = in_vain + 1 if before == (newest, now.members) else 0
            before = newest, now.members
            if code == 2 or in_vain >= _IN_VAIN:
                _say(f"it is given up: exit code {code}, and step {newest} is the newest saved")
                return code
        hosts.ended()
    return 0


def _next_round(hosts: Hosts, folder: RunFolder, steps: int) -> Round | None:
    """The next round of this host; None where the run has come to its end without one."""
    looked = 0.0
    while True:
        if time.monotonic() - looked > _LOOK:
            if newest_step(folder.checkpoints) >= steps:
                return None
            looked = time.monotonic()
        if hosts.round:
            return hosts.round
        time.sleep(0.05)


def _configured(words: Sequence[str]) -> Config:
    """The settings that a command line of `meshdsl train` stands for.

    Raises:
      MeshDSLError: there is a mistake in it.
    """
    command = [*PROGRAM, *resumed(words), "--print-config"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    if found.returncode:
        said = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise MeshDSLError(said[-1].removeprefix("meshdsl train: "))
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(found.stdout)
        file.flush()
        return read(Path(file.name), Config())


def _refused(config: Config, folder: RunFolder, devices: int, planned: int) -> str:
    """Why a run cannot use so many devices; empty where it can."""
    relayouts = folder.relayouts() if folder.path.is_dir() else []
    try:
        for phase in phases_of(config, relayouts):
            elastic = {PLANNED: planned, **phase.config.elastic}
            fitted(replace(phase.config, elastic=elastic), devices)
    except MeshDSLError as error:
        return str(error)
    return ""


def _gpus_of(environment: dict[str, str]) -> int:
    return len([name for name in environment["CUDA_VISIBLE_DEVICES"].split(",") if name])


def _say(text: str) -> None:
    print(f"meshdsl launch: {text}", file=sys.stderr, flush=True)
