"""What was measured as a hardware file, in the format of `machine/hardware.toml`."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshdsl.calibration.figures import Figure, beside, curves, of_links, of_passes, of_products
from meshdsl.calibration.measure import Measured
from meshdsl.calibration.subjects import OPERATIONS
from meshdsl.machine import Chip
from meshdsl.machine.chips import unit_of
from meshdsl.versions import versions

_ALL = '["all_gather", "psum_scatter", "psum", "pmax", "pmin", "all_to_all", "ppermute"]'


def hardware_file(name: str, chip: Chip, measured: Measured, devices: Sequence[Any]) -> str:
    """The text of the file.

    Args:
      name: of the chip in it.
      chip: what is known of the devices; all its figures are 0 for virtual devices.
      devices: that were measured, those of a process together.
    """
    nodes = len({device.process_index for device in devices})
    found = figures_of(chip, measured, len(devices), nodes)
    when = _circumstances(devices, nodes)
    lines = [
        f"# Written by `meshdsl calibrate` in {measured.seconds:.0f} s: {when}.",
        f"# From the host to a device {measured.to_device / 1e9:.3g} GB/s, and back "
        f"{measured.to_host / 1e9:.3g} GB/s, all devices at once.",
        f"[{name}]",
        *_keys(chip, len(devices) // nodes),
        *(_figure(key, figure, when) for key, figure in found.items()),
    ]
    if not measured_by_form(chip):
        return "\n".join(lines) + "\n"
    times = [(s, spread) for s, spread in measured.times if s.kind in OPERATIONS]
    for operation, forms in curves(times).items():
        lines += ["", f"[{name}.collectives.{operation}]"]
        for form, points in forms.items():
            sizes = ", ".join(f"{size:.0f}" for size, _ in points)
            values = ", ".join(f"{spread.median * 1e6:.4g}" for _, spread in points)
            low = ", ".join(f"{spread.low * 1e6:.3g}" for _, spread in points)
            high = ", ".join(f"{spread.high * 1e6:.3g}" for _, spread in points)
            source = (
                f"measured: medians of {points[0][1].samples} samples, none less than that of "
                f"fewer bytes; quartiles from {low} to {high}; {when}"
            )
            lines.append(
                f'{form} = {{ bytes = [{sizes}], value = [{values}], unit = "us", '
                f'source = "{source}" }}'
            )
    return "\n".join(lines) + "\n"


def measured_by_form(chip: Chip) -> bool:
    """Whether groups of one size are alike, so that times of one serve all: not on a torus."""
    return chip.kind != "tpu"


def figures_of(chip: Chip, measured: Measured, devices: int, nodes: int) -> dict[str, Figure]:
    """The figures that what was measured comes to, in the base units."""
    times = measured.times
    found = of_products(times, chip.flops) | of_passes(times, chip.hbm_bandwidth)
    if not chip.hbm:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * nodes / devices
        found["hbm"] = Figure(memory, "a share of the memory of the machine for each device")
    ((kernels, spread),) = ((s, spread) for s, spread in times if s.kind == "kernel")
    how = "quartiles {:.3g} to {:.3g} us of {} samples"
    for key, what, of_turn, count in (
        ("kernel_latency", "a kernel of 2,048 elements in a loop", spread, kernels.size),
        ("step_latency", "a call of a program that does nothing", measured.call, 1),
    ):
        low, high = (x * 1e6 / count for x in (of_turn.low, of_turn.high))
        words = how.format(low, high, of_turn.samples)
        found[key] = Figure(of_turn.median / count, f"{what}, {words}")
    values = {key: figure.value for key, figure in found.items() if key != "hbm"}
    known = replace(chip, node=devices // nodes, **values)
    if any(subject.kind == "fresh" for subject, _ in times):
        found |= beside(times, known)
    moved = [(s, spread) for s, spread in times if s.kind in OPERATIONS]
    if devices > nodes:
        found |= of_links(moved, known, between_nodes=False)
    if nodes > 1:
        found |= of_links(moved, known, between_nodes=True)
    if devices > 1 and chip.link_bandwidth:
        found["link_efficiency"] = Figure(1.0, "the bandwidths are what collectives reach")
    return found


def _keys(chip: Chip, node: int) -> list[str]:
    """The keys that are no figures, of a chip that the table does not have."""
    if chip.timed:
        return []
    return [
        f'kind = "{chip.kind}"',
        f'device_kind = "{chip.device_kind}"',
        f"node = {node}  # devices of a process",
        f"waits = {_ALL}  # they run where the device computes",
        'source = "meshdsl calibrate"',
    ]


def _figure(key: str, figure: Figure, when: str) -> str:
    unit, scale = unit_of(key)
    value = f"{figure.value / scale:.4g}"
    return (
        f'{key} = {{ value = {value}, unit = "{unit}", source = "measured: {figure.how}; {when}" }}'
    )


def _circumstances(devices: Sequence[Any], nodes: int) -> str:
    """When and on what it was measured, in words."""
    known: Mapping[str, str] = versions()
    software = ", ".join(f"{name} {known[name]}" for name in ("jax", "jaxlib") if name in known)
    inside = len(devices) // nodes
    count = f"{nodes} processes of {inside}" if nodes > 1 else str(inside)
    today = datetime.date.today().isoformat()
    return f"{count} x {devices[0].device_kind}, {os.cpu_count()} cores, {software}, {today}"
