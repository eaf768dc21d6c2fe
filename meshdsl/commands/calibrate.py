"""`meshdsl calibrate`: what the devices of this machine reach, as a hardware file."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

import jax

from meshdsl import hosts
from meshdsl.calibration.hardware_file import hardware_file
from meshdsl.calibration.measure import measure
from meshdsl.calibration.subjects import ordered
from meshdsl.commands.lookup import devices_of_all
from meshdsl.commands.output import check_files, write_file
from meshdsl.errors import MeshDSLError, either, quote
from meshdsl.machine import Chip, chips
from meshdsl.machine.target import find_target
from meshdsl.predict.compiler.topology import ask_for_virtual, without_tpu

_USUAL_DEVICES = 8  # virtual ones, where there is no accelerator


def calibrate_machine(arguments: argparse.Namespace) -> int:
    """Measure the devices that are there, and write what they reach to a file.

    Raises:
      MeshDSLError: the file cannot be written, the name is no legal one or that of another chip, or
        there are fewer devices than wanted.
    """
    check_files(arguments.out)
    name, known = arguments.target, chips()
    if name is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise MeshDSLError(
            f"--target {name}: expected a name for the chip alone, of letters and digits, such as "
            "mycpu"
        )
    hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
    devices = _devices(arguments.devices)
    chip = _chip(devices[0], name, known)
    nodes = len({device.process_index for device in devices})
    console = hosts.console()
    measured = measure(devices, arguments.seconds, lambda line: console.print(line))
    text = hardware_file(chip.name, chip, measured, devices)
    if hosts.first():
        write_file(arguments.out, text)
        inside = len(devices) // nodes
        shape = f"{inside}x{nodes}" if nodes > 1 else str(inside)
        target = find_target(f"{chip.name}:{shape}", hardware=arguments.out)
        print(f"use it by --target {target.name} --hardware {arguments.out}")
    return 0


def _devices(asked: int | None) -> list[Any]:
    """The devices to measure, those of a process together; so many, where the user says."""
    without_tpu()
    if hosts.count() > 1:
        return ordered(devices_of_all(asked))
    ask_for_virtual(asked or _USUAL_DEVICES)
    found = ordered(jax.devices())
    if asked is not None and len(found) < asked:
        raise MeshDSLError(
            f"--devices {asked}: there are {len(found)} devices ({found[0].platform})"
        )
    return found[:asked]


def _chip(device: Any, name: str | None, known: dict[str, Chip]) -> Chip:
    """What is known of a device, under the name that its chip gets in the file."""
    kind, platform = device.device_kind, device.platform
    same = [chip for chip in known.values() if chip.device_kind == kind]
    if name in known and known[name].device_kind != kind:
        raise MeshDSLError(
            f"--target {name}: is {quote(known[name].device_kind)} in the hardware table, and the "
            f"devices here are {quote(kind)}; choose another name"
        )
    if not same:
        raise MeshDSLError(
            f"{kind} is no chip of the hardware table, so that its network is not known; it has "
            f"{either([chip.device_kind for chip in known.values()])}"
        )
    if platform != "cpu" and name not in (None, same[0].name):
        raise MeshDSLError(
            f"--target {name}: the devices here are {same[0].name}, whose table gets the figures; "
            "leave --target out"
        )
    return replace(same[0], name=name or same[0].name)
