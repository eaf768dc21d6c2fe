"""Targets: machines by name, `v5p:4x4x4`, `h100:8x4` or `cpu:8`, and the meshes that fit them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.machine.chips import Chip, chips
from meshdsl.machine.gpu_description import gpu_target_config

_MOST_VIRTUAL = 1024  # devices of one CPU: more take minutes to make and to compile for
HOST = (
    2,
    2,
    1,
)  # chips of one host, in whole numbers of which libtpu counts; a single chip is possible too


@dataclass(frozen=True)
class Target:
    """A machine.

    Attributes:
      name: `v5p:4x4x4`.
      shape: chips along each dim of the torus of one slice; `(8,)` or `(8, 4)` for GPUs in a node and nodes; `(8,)` for CPUs.
      slices: equal machines joined by the data-centre network.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @cached_property
    def chips(self) -> int:
        """Chips over all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """JAX devices over all slices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def timed(self) -> bool:
        """Whether times can be estimated: the chip has figures."""
        return self.chip.timed

    @property
    def topology(self) -> dict[str, Any]:
        """The arguments of `jax.experimental.topologies.get_topology_desc` for a TPU or a GPU."""
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
        """For each dim of the torus whether its ends are joined."""
        if self.chip.longest:
            return tuple(n == self.chip.longest for n in self.shape)
        whole = self.chip.cube > 0 and all(n % self.chip.cube == 0 for n in self.shape)
        return (whole,) * len(self.shape)

    def __str__(self):
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"


def find_target(text: str, *, slices: int = 1, hardware: Path | None = None) -> Target:
    """The machine that `text` names: a chip, and how many along each dim: `v5p:4x4x4`, `v6e:16x16`, `h100:8x4` (4 nodes of 8), `cpu:8`.

    Args:
      slices: how many such machines, joined by the data-centre network; for TPUs.
      hardware: a file with more chips, or other figures.

    Raises:
      MeshDSLError: the chip is unknown, or the chip has no such topology.
    """
    known = chips(hardware)
    name, colon, size = text.strip().partition(":")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        meant = f"; did you mean `{close[0]}`?" if close else ""
        raise MeshDSLError(
            f"target {text!r}: unknown chip `{name}`{meant}; known: {', '.join(f'`{chip}`' for chip in known)}"
        )
    chip = known[name]
    if not colon or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size):
        raise MeshDSLError(
            f"target {text!r}: after the chip comes how many of them, {_legal(chip)}"
        )
    shape = tuple(int(n) for n in size.split("x"))
    _check(text, chip, shape)
    if slices < 1 or (slices > 1 and chip.kind != "tpu"):
        nodes = ", nodes of GPUs are written `h100:8x4`" if chip.kind == "gpu" else ""
        raise MeshDSLError(f"target {text!r}: {slices} slices; TPUs have 1 or more{nodes}")
    return Target(f"{name}:{size}", chip, shape, slices)


def _check(text: str, chip: Chip, shape: tuple[int, ...]) -> None:
    if chip.kind == "tpu":
        longest = chip.longest or chip.most_chips
        whole = not chip.cube or max(shape) <= chip.cube or all(n % chip.cube == 0 for n in shape)
        hosts = all(n % h == 0 for n, h in zip(shape, HOST, strict=False)) or math.prod(shape) == 1
        legal = (
            len(shape) == chip.dims
            and max(shape) <= longest
            and whole
            and hosts
            and math.prod(shape) <= chip.most_chips
        )
    elif chip.kind == "gpu":
        legal = (
            len(shape) <= 2 and shape[0] <= chip.node and (len(shape) == 1 or shape[0] == chip.node)
        )
    else:
        legal = len(shape) == 1 and shape[0] <= _MOST_VIRTUAL
    if not legal:
        raise MeshDSLError(
            f"target {text!r}: {chip.name} has no topology {'x'.join(map(str, shape))}; legal are {_legal(chip)}"
        )


def _legal(chip: Chip) -> str:
    if chip.kind == "tpu":
        small, one = ("x".join(map(str, shape[: chip.dims])) for shape in (HOST, (1, 1, 1)))
        rule = f" of at most {chip.longest}" * bool(
            chip.longest
        ) + f", all multiples of {chip.cube} where one is above it" * bool(chip.cube)
        return (
            f"{chip.dims} dims{rule}, x and y even, at most {chip.most_chips:,} chips, such as `{chip.name}:{small}`; "
            f"or one chip, `{chip.name}:{one}`"
        )
    if chip.kind == "gpu":
        return f"1 to {chip.node} in one node, `{chip.name}:{chip.node}`, or whole nodes, `{chip.name}:{chip.node}x4` for 4 of them"
    return f"1 to {_MOST_VIRTUAL:,} virtual devices, `{chip.name}:8`"


def fit_mesh(target: Target, sizes: Mapping[str, int | str], name: str = "mesh") -> dict[str, int]:
    """The size of each axis with `"rest"` filled in so that all devices of `target` are used.

    Args:
      name: what the sizes are of, such as `layout fsdp.toml`, for the message.

    Raises:
      MeshDSLError: the mesh is not of as many devices as the target; the message proposes meshes that are.
    """
    fixed = math.prod(n for n in sizes.values() if n != "rest")
    rest = target.devices // fixed if target.devices % fixed == 0 else 0
    if "rest" in sizes.values() and rest:
        return {axis: rest if n == "rest" else int(n) for axis, n in sizes.items()}
    if "rest" not in sizes.values() and fixed == target.devices:
        return {axis: int(n) for axis, n in sizes.items()}
    asked = f"mesh {_words(sizes)}" if sizes else "a mesh without axes"
    meshes = [_words(mesh) for mesh in propose(sizes, target.devices)]
    use = (
        f"; use {', '.join(meshes[:-1])}{' or ' * (len(meshes) > 1)}{meshes[-1]}" if meshes else ""
    )
    counted = (
        f"{fixed} device{'s' * (fixed > 1)}"
        if "rest" not in sizes.values()
        else f"a multiple of {fixed} devices"
    )
    raise MeshDSLError(f"{name}: {asked} is of {counted} and {target} has {target.devices}{use}")


def propose(sizes: Mapping[str, int | str], devices: int, most: int = 3) -> list[dict[str, int]]:
    """Up to `most` meshes of `devices` devices with the axes of `sizes`, nearest to them first.

    Nearest is least changed: the fewest axes, then the fewest doublings and halvings; of equals the one that changes the most major axis.
    """
    axes = list(sizes)
    wanted = [n if isinstance(n, int) else 1 for n in sizes.values()]
    free = [not isinstance(n, int) for n in sizes.values()]

    def distance(mesh):
        changed = [
            (abs(math.log2(n / w)), i)
            for i, (n, w) in enumerate(zip(mesh, wanted, strict=True))
            if n != w and not free[i]
        ]
        return len(changed), sum(d for d, _ in changed), [i for _, i in changed]

    found = sorted(_factorings(devices, len(axes)), key=distance)[:most] if axes else []
    return [dict(zip(axes, mesh, strict=True)) for mesh in found]


def _factorings(n: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(n,)]
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return [(d, *rest) for d in divisors for rest in _factorings(n // d, parts - 1)]


def _words(sizes: Mapping[str, int | str]) -> str:
    return " ".join(f"{axis}={n}" for axis, n in sizes.items())
