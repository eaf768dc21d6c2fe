"""`meshdsl doctor`: what is installed here, which devices there are, and what is wrong with it."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

import jax

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.extras import EXTRAS, check_extra
from meshdsl.figures import columns
from meshdsl.hosts.clusters import find_cluster
from meshdsl.hosts.join import VARIABLES
from meshdsl.machine import chip_of
from meshdsl.versions import versions

_PATIENCE = 60  # seconds in which the other processes have to come
_PLUGINS = ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin")  # of the same version as JAX


class Finding(NamedTuple):
    """What was looked at, what was found there, and what is wrong with it, if anything is."""

    what: str
    found: str
    wrong: str = ""


def examine(arguments: argparse.Namespace) -> int:
    """Print what was found, in one process; returns 1 where something is wrong, else 0.

    Raises:
      MeshDSLError: the processes of a cluster's job do not meet, or have other versions.
    """
    packages = list(_packages())
    network = list(_network())  # before JAX makes its devices
    findings = [*packages, *_devices(), *network, *map(_extra, EXTRAS)]
    if hosts.first():
        rows = [(each.what, each.found) for each in findings]
        wrong = [f"{each.what}: {each.wrong}" for each in findings if each.wrong]
        print("\n".join(columns(rows, indent=0)))
        print("\n" + ("\n".join(wrong) if wrong else "nothing is wrong"))
    return int(any(each.wrong for each in findings))


def _packages() -> Iterator[Finding]:
    """The versions of what computes, and whether they fit each other."""
    found = versions()
    asked = (re.match(r"([\w-]+)>=([\d.]+)$", text) for text in _requirements())
    least = {match[1]: match[2] for match in asked if match}
    for name, here in found.items():
        wrong = ""
        if name in least and _numbers(here) < _numbers(least[name]):
            wrong = f"{least[name]} is the oldest that fits: pip install -U {name}"
        elif name in _PLUGINS and _numbers(here)[:2] != _numbers(found["jax"])[:2]:
            wrong = f"does not fit jax {found['jax']}: pip install {name}=={found['jax']}"
        yield Finding(name, here, wrong)


def _requirements() -> list[str]:
    try:
        return requires("meshdsl") or []
    except PackageNotFoundError:  # it is not installed, but run from its folder
        return []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _devices() -> Iterator[Finding]:
    """What JAX computes on, and whether it is what this machine has."""
    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        yield Finding("devices", "none", " ".join(str(error).split()))
        return
    kinds = Counter((device.platform, device.device_kind) for device in devices)
    for (platform, kind), count in kinds.items():
        plural = "s" * (count > 1)
        words = f"{count} {kind}" if platform != "cpu" else f"{count} CPU device{plural}"
        yield Finding("devices", words, _left_alone(platform))
    if devices[0].platform != "cpu":
        known = chip_of(devices[0]) is not None
        yield Finding("figures for estimates", "known" if known else "unknown: meshdsl calibrate")


def _left_alone(platform: str, devices: Path = Path("/dev")) -> str:
    """What this machine has and JAX does not use; empty where there is nothing of the kind."""
    if platform != "cpu" or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return ""
    if any(devices.glob("nvidia[0-9]*")):
        return 'there are GPUs here that JAX does not use: pip install "jax[cuda12]"'
    if any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*")):
        return 'there are TPU chips here that JAX does not use: pip install "jax[tpu]"'
    return ""


def _network() -> Iterator[Finding]:
    """The other processes of this job, which have to come, and to have the same versions."""
    cluster = find_cluster()
    if cluster is None and not any(name in os.environ for name in VARIABLES):
        yield Finding("cluster", "none: this process is alone")
        return
    hosts.join(patience=_PATIENCE)
    hosts.agree("versions", "\n".join(f"{name} {text}" for name, text in versions().items()))
    name = cluster.name if cluster else "by variables of the environment"
    count = hosts.count()
    yield Finding("cluster", f"{name}: {count} processes met, {socket.gethostname()} is the first")
    yield Finding("devices of all", str(jax.device_count()))


def _extra(name: str, check: Callable[[str], None] = check_extra) -> Finding:
    """Whether an extra is installed. Only what training needs is missed."""
    try:
        check(name)
    except MeshDSLError:
        install = f'pip install "meshdsl[{name}]"'
        wrong = f"nothing can be trained: {install}" if name == "train" else ""
        return Finding(f"extra {name}", f"not installed: {install}", wrong)
    return Finding(f"extra {name}", "installed")
