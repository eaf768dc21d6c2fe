"""Targets: machines by name, `v5p:4x4x4`, `h100:8x4` or `cpu:8`, and the meshes that fit them.

The devices of this machine are a target too (`target_at_hand`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.machine.chips import Chip, chip_of, chips
from meshdsl.machine.gpu_description import gpu_target_config
from meshdsl.mesh import abstract_mesh, check_slices

_Devices = Sequence[jax.Device]  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX's types

_MOST_VIRTUAL = 1024  # devices of one CPU: more take minutes to make and to compile for
# Chips of one host along each dim. libtpu counts in whole hosts, but allows a single chip too.
HOST = (2, 2, 1)


@dataclass(frozen=True)
class Target:
    """A machine.

    Attributes:
      name: chip and shape, as in `v5p:4x4x4`; without the number of slices.
      chip: what each chip can do.
      shape: chips along each dim of the torus of one slice; for GPUs `(8,)` for 8 in one node, or
        `(8, 4)` for 4 nodes of 8; `(8,)` for CPUs.
      slices: how many such machines there are, joined by the data-centre network.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @cached_property
    def chips(self) -> int:
        """How many chips there are in all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """How many JAX devices there are in all slices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def timed(self) -> bool:
        """Whether times can be estimated: the chip has figures."""
        return self.chip.timed

    @property
    def topology(self) -> dict[str, Any]:
        """What `jax.experimental.topologies.get_topology_desc` takes for it, a TPU or a GPU."""
        if self.chip.kind == "gpu":
            gpus, nodes = (*self.shape, 1)[:2]
            return {
                "platform": "cuda",
                "target_config": gpu_target_config(self.chip),
                "topology": f"1x{nodes}x{gpus}",
            }
        options = {"platform": "tpu", "topology_name": self.name, **self.chip.topology_options}
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = [1, 1, 1]
        return options | ({"num_slices": self.slices} if self.slices > 1 else {})

    @property
    def wraps(self) -> tuple[bool, ...]:
        """For each dim of the torus whether links join its ends, so that it is a ring."""
        if self.chip.longest:
            return tuple(n == self.chip.longest for n in self.shape)
        of_cubes = self.chip.cube > 0 and all(n % self.chip.cube == 0 for n in self.shape)
        return (of_cubes,) * len(self.shape)

    def __str__(self):
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"


def find_target(
    text: str, *, slices: int = 1, hardware: Path | None = None, imbalance: float = 1.0
) -> Target:
    """The machine that `text` names.

    A name is a chip, and how many of them there are along each dim of its network: `v5p:4x4x4`,
    `v6e:16x16`, `h100:8x4` (4 nodes of 8), `cpu:8`.

    Args:
      slices: how many such machines there are, joined by the data-centre network; TPUs alone can
        have more than one.
      hardware: a file with more chips, or with other figures of known ones.
      imbalance: the load of the experts of the most loaded device, where 1 is the mean.

    Raises:
      MeshDSLError: the chip is unknown, or it has no such topology; or an imbalance below 1.
    """
    known = chips(hardware)
    name, colon, size = text.strip().partition(":")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        meant = f"; did you mean `{close[0]}`?" if close else ""
        names = ", ".join(f"`{chip}`" for chip in known)
        raise MeshDSLError(f"target {text!r}: unknown chip `{name}`{meant}; known: {names}")
    if not 1 <= imbalance < math.inf:
        raise MeshDSLError(f"imbalance {imbalance:g}: the most loaded device has 1 or more times")
    chip = replace(known[name], imbalance=imbalance) if imbalance != 1 else known[name]
    if not colon or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size):
        raise MeshDSLError(
            f"target {text!r}: after the chip comes how many of them, {_legal(chip)}"
        )
    shape = tuple(int(n) for n in size.split("x"))
    _check_shape(text, chip, shape)
    if slices < 1 or (slices > 1 and chip.kind != "tpu"):
        nodes = ", nodes of GPUs are written `h100:8x4`" if chip.kind == "gpu" else ""
        raise MeshDSLError(f"target {text!r}: {slices} slices; TPUs have 1 or more{nodes}")
    return Target(f"{name}:{size}", chip, shape, slices)


def _check_shape(text: str, chip: Chip, shape: tuple[int, ...]) -> None:
    """Raises MeshDSLError if the chip has no topology of this shape; `text` names the target."""
    if chip.kind == "tpu":
        cubes = not chip.cube or max(shape) <= chip.cube or all(n % chip.cube == 0 for n in shape)
        hosts = all(n % h == 0 for n, h in zip(shape, HOST, strict=False)) or math.prod(shape) == 1
        legal = (
            len(shape) == chip.dims
            and max(shape) <= (chip.longest or chip.most_chips)
            and cubes
            and hosts
            and math.prod(shape) <= chip.most_chips
        )
    elif chip.node:
        inside, *nodes = shape
        legal = len(nodes) <= 1 and inside <= chip.node and (not nodes or inside == chip.node)
        if legal and nodes and not chip.scale_out_bandwidth:
            raise MeshDSLError(
                f"target {text!r}: {chip.name} was calibrated in one process, and has no "
                "`scale_out_bandwidth`; calibrate in as many processes"
            )
    else:
        legal = len(shape) == 1 and shape[0] <= _MOST_VIRTUAL
    if not legal:
        raise MeshDSLError(
            f"target {text!r}: {chip.name} has no topology {'x'.join(map(str, shape))}; "
            f"legal are {_legal(chip)}"
        )


def _legal(chip: Chip) -> str:
    """The shapes that a target of this chip may have, in words."""
    if chip.kind == "tpu":
        small, one = ("x".join(map(str, shape[: chip.dims])) for shape in (HOST, (1, 1, 1)))
        rule = f" of at most {chip.longest}" if chip.longest else ""
        rule += f", all multiples of {chip.cube} where one is above it" if chip.cube else ""
        return (
            f"{chip.dims} dims{rule}, x and y even, at most {chip.most_chips:,} chips, "
            f"such as `{chip.name}:{small}`; or one chip, `{chip.name}:{one}`"
        )
    if chip.node:
        node = "node" if chip.kind == "gpu" else "process"
        return (
            f"1 to {chip.node} in one {node}, `{chip.name}:{chip.node}`, "
            f"or whole {node}{'e' * (node != 'node')}s, `{chip.name}:{chip.node}x4` for 4 of them"
        )
    return f"1 to {_MOST_VIRTUAL:,} virtual devices, `{chip.name}:8`"


def fit_mesh(target: Target, sizes: Mapping[str, int | str], name: str = "mesh") -> dict[str, int]:
    """The sizes of a mesh, with `"rest"` filled in so that all devices of `target` are used.

    Args:
      sizes: of the axes; one of them may be `"rest"`.
      name: what has these sizes, such as `layout fsdp.toml`, for the error.

    Raises:
      MeshDSLError: the mesh has not as many devices as the target; the error proposes meshes that
        have.
    """
    fixed = math.prod(int(n) for n in sizes.values() if n != "rest")
    rest = target.devices // fixed if target.devices % fixed == 0 else 0
    if "rest" in sizes.values() and rest:
        return {axis: rest if n == "rest" else int(n) for axis, n in sizes.items()}
    if "rest" not in sizes.values() and fixed == target.devices:
        return {axis: int(n) for axis, n in sizes.items()}
    asked = f"mesh {_mesh_text(sizes)}" if sizes else "a mesh without axes"
    meshes = [_mesh_text(mesh) for mesh in propose_meshes(sizes, target.devices)]
    use = (
        f"; use {', '.join(meshes[:-1])}{' or ' * (len(meshes) > 1)}{meshes[-1]}" if meshes else ""
    )
    counted = (
        f"{fixed} device{'s' * (fixed > 1)}"
        if "rest" not in sizes.values()
        else f"a multiple of {fixed} devices"
    )
    raise MeshDSLError(f"{name}: {asked} is of {counted} and {target} has {target.devices}{use}")


def propose_meshes(
    sizes: Mapping[str, int | str], devices: int, most: int = 3
) -> list[dict[str, int]]:
    """Up to `most` meshes of `devices` devices with the axes of `sizes`, the nearest first.

    The nearest changes the fewest axes; of several such, the one with the fewest doublings and
    halvings; of equals, the one that changes the most major axis. Axes of `"rest"` change freely.
    """
    axes = list(sizes)
    wanted = [n if isinstance(n, int) else 1 for n in sizes.values()]
    free = [not isinstance(n, int) for n in sizes.values()]

    def distance(mesh: tuple[int, ...]) -> tuple[int, float, list[int]]:
        changed = [
            (abs(math.log2(n / w)), i)
            for i, (n, w) in enumerate(zip(mesh, wanted, strict=True))
            if n != w and not free[i]
        ]
        return len(changed), sum(d for d, _ in changed), [i for _, i in changed]

    found = sorted(_factorings(devices, len(axes)), key=distance)[:most] if axes else []
    return [dict(zip(axes, mesh, strict=True)) for mesh in found]


def _factorings(n: int, count: int) -> list[tuple[int, ...]]:
    """All ways to write `n` as a product of `count` factors."""
    if count == 1:
        return [(n,)]
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return [(d, *rest) for d in divisors for rest in _factorings(n // d, count - 1)]


def _mesh_text(sizes: Mapping[str, int | str]) -> str:
    return " ".join(f"{axis}={n}" for axis, n in sizes.items())


def mesh_on(target: Target, layout: Layout) -> dict[str, int]:
    """The sizes of the layout's mesh on all devices of `target`.

    Raises:
      MeshDSLError: the mesh does not fit the target, or its axes across slices not the slices.
    """
    sizes = fit_mesh(target, layout.mesh, layout.name)
    if target.chip.kind == "tpu":
        check_slices(layout, sizes, target.slices, "slices")
    else:
        check_slices(layout, sizes, (*target.shape, 1)[1], "nodes")
    return sizes


def abstract_mesh_on(target: Target | None, sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of `sizes` without devices, for those of `target`; without one, for those at hand."""
    of_chip = (target.chip.kind, target.chip.device_kind) if target else ()
    return abstract_mesh(dict(sizes), *of_chip)


def target_at_hand(devices: _Devices, hardware: Path | None = None) -> Target:
    """The target that these devices of this machine are.

    Args:
      hardware: as in `find_target`.

    Raises:
      MeshDSLError: they are of a kind that the hardware table does not have, or no whole machine.
    """
    first, count = devices[0], len(devices)
    if first.platform == "cpu":
        known = [chip for chip in chips(hardware).values() if chip.kind == "cpu"]
        cpu = next((chip for chip in known if chip.timed), known[0])
        nodes = 0 < cpu.node < count
        size = f"{cpu.node}x{count // cpu.node}" if nodes else str(count)
        return find_target(f"{cpu.name}:{size}", hardware=hardware)
    chip = chip_of(first)
    if chip is None:
        raise MeshDSLError(
            f"compile: {first.device_kind} is no chip of the hardware table; name a target"
        )
    if chip.kind == "gpu":
        nodes = len({d.process_index for d in devices})
        whole = f"{chip.node}x{nodes}" if nodes > 1 else str(count)
        return find_target(f"{chip.name}:{whole}", hardware=hardware)
    along = zip(*(d.coords for d in devices), strict=True)
    shape = [max(at) - min(at) + 1 for at in along][: chip.dims]
    return find_target(f"{chip.name}:{'x'.join(map(str, shape))}", hardware=hardware)


def figures_at_hand(devices: _Devices, hardware: Path | None = None) -> Target | None:
    """The target that these devices are; None where nobody has figures of such a machine.

    Args:
      hardware: as in `find_target`.

    Raises:
      MeshDSLError: the file with figures cannot be used.
    """
    chips(hardware)
    try:
        target = target_at_hand(devices, hardware)
    except MeshDSLError:
        return None
    return target if target.timed else None
