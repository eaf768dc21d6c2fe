"""Device meshes: named axes over the devices at hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from meshdsl.dims import listed
from meshdsl.errors import LayoutDoesNotFit, MeshDSLError, quote
from meshdsl.layout import Layout, check_mesh


def axis_sizes(sizes: Mapping[str, int | str], devices: int, name: str = "mesh") -> dict[str, int]:
    """The size of each axis, with `"rest"` filled in so that all `devices` are used.

    Raises:
      LayoutDoesNotFit: the axes and the number of devices do not fit each other.
    """
    fixed = math.prod(n for n in sizes.values() if isinstance(n, int))
    if "rest" in sizes.values():
        if devices % fixed:
            shape = ", ".join(f"{a}={n}" for a, n in sizes.items())
            raise LayoutDoesNotFit(
                f"{name}: mesh {shape} does not fit {devices} devices: {fixed} does not divide "
                f"{devices}"
            )
        return {a: n if isinstance(n, int) else devices // fixed for a, n in sizes.items()}
    if fixed != devices:
        shape = ", ".join(f"{a}={n}" for a, n in sizes.items()) or "of one device"
        raise LayoutDoesNotFit(
            f"{name}: mesh {shape} needs {fixed} device{'s' * (fixed > 1)} and {devices} are "
            f'given; use {fixed}, or set one axis to "rest"'
        )
    return {a: n for a, n in sizes.items() if isinstance(n, int)}


def axis_names(where: str, given) -> tuple[str, ...]:
    """One axis or several, as a tuple of their names."""
    axes = listed(given)
    for axis in axes:
        if not isinstance(axis, str):
            raise MeshDSLError(
                f"{where}: an axis of the mesh is given by its name, not {quote(axis)}"
            )
    return axes


def make_mesh(
    layout: Layout | Mapping[str, int | str],
    # JAX's types declare the class jax.Device as a variable.
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> Mesh:
    """A mesh with the axes of `layout` (or of a dict of axis sizes), major first.

    Args:
      devices: the devices to use, all of them. By default those of the process group: all when an
        axis is `"rest"`, otherwise the first ones that the axes need.

    Raises:
      MeshDSLError: the axes and the devices do not fit each other, or the axes across slices and
        the slices.
    """
    name, sizes = (layout.name, layout.mesh) if isinstance(layout, Layout) else ("mesh", layout)
    check_mesh(sizes, name)
    chosen = list(jax.devices() if devices is None else devices)
    need = math.prod(n for n in sizes.values() if isinstance(n, int))
    if devices is None and "rest" not in sizes.values() and need < len(chosen):
        chosen = chosen[:need]
    sizes = axis_sizes(sizes, len(chosen), name)
    if not sizes:
        return Mesh(np.array(chosen[0]), ())
    if isinstance(layout, Layout):
        if chosen[0].platform == "tpu":
            count, what = _slices(chosen), "slices"
        else:
            count, what = len({d.process_index for d in chosen}), "processes"
        check_slices(layout, sizes, count, what)
    return Mesh(arrange(sizes, chosen), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def arrange(sizes: Mapping[str, int], devices: Sequence[Any]) -> np.ndarray:
    """`devices` as an array with the axes of `sizes`, major first, neighbours near each other.

    The arrangement is JAX's own: axes are laid, the last one first, over whole dims of a torus
    where their sizes allow it and over parts of them where not. Several slices are spread over
    the most major axes: what communicates least stands first in a mesh, and `[mesh.dcn]` says
    which axes they are. CPUs and GPUs stand in the order of their processes, so the most major
    axes go across these.
    """
    try:
        return _arranged(tuple(sizes.values()), devices)
    except (TypeError, ValueError, NotImplementedError) as error:
        shape = ", ".join(f"{a}={n}" for a, n in sizes.items())
        raise MeshDSLError(
            f"mesh {shape}: JAX finds no place for it on these {len(devices)} devices: {error}"
        ) from error


def _arranged(shape: tuple[int, ...], devices: Sequence[Any]) -> np.ndarray:
    slices = _slices(devices) if devices[0].platform == "tpu" else 1
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    outer = slice_parts(shape, slices)
    inner = tuple(n // o for n, o in zip(shape, outer, strict=True))
    return mesh_utils.create_hybrid_device_mesh(
        inner, outer, devices, allow_split_physical_axes=True
    )


def _slices(devices: Sequence[Any]) -> int:
    return len({getattr(d, "slice_index", None) for d in devices})


def check_slices(layout: Layout, sizes: Mapping[str, int], count: int, what: str) -> None:
    """Raise a MeshDSLError unless the axes in `[mesh.dcn]` go just across the slices at hand.

    One slice is legal, where nothing goes across any: so a layout for several can be tried on one
      machine.

    Args:
      sizes: of all axes.
      count: how many there are.
      what: `slices` of TPUs, which the axes must match; or `nodes` or `processes`, several of which
        may stand together for one slice.
    """
    across = math.prod(sizes[axis] for axis in layout.dcn)
    if (
        count == 1
        or not layout.dcn
        or across == count
        or (what != "slices" and count % across == 0)
    ):
        return
    shape = ", ".join(f"{axis}={sizes[axis]}" for axis in layout.dcn)
    legal = count if what == "slices" else f"a number that divides {count}"
    raise MeshDSLError(
        f"{layout.name}, mesh.dcn: {shape} is of {across} slice{'s' * (across > 1)}, and there "
        f"are {count} {what}; use {legal}"
    )


def slice_parts(shape: Sequence[int], slices: int) -> tuple[int, ...]:
    """Over how many of `slices` each axis of a mesh of `shape` goes: the most major ones first."""
    parts = []
    for size in shape:
        parts.append(math.gcd(size, slices))
        slices //= parts[-1]
    return tuple(parts)


def abstract_mesh(
    sizes: Mapping[str, int], platform: str | None = None, device_kind: str = ""
) -> AbstractMesh:
    """A mesh without devices: enough to trace a program and to know how everything is split.

    Args:
      platform: of the devices that are meant ("tpu", "gpu" or "cpu"); by default of those at hand.
      device_kind: what JAX calls these devices, as "TPU v5"; empty where no kind is meant.
    """
    sizes = sizes or {"device": 1}  # JAX refuses a sharding over an abstract mesh without axes
    device = None
    if platform is not None:
        device = AbstractDevice(device_kind=device_kind, num_cores=None, platform=platform)
    return AbstractMesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        abstract_device=device,
    )


def platform_of(mesh: Mesh | AbstractMesh) -> str:
    """The platform of the devices of a mesh: "tpu", "gpu" or "cpu"."""
    if isinstance(mesh, Mesh):
        return mesh.devices.flat[0].platform
    return mesh.abstract_device.platform if mesh.abstract_device else jax.default_backend()


def device_kind_of(mesh: Mesh | AbstractMesh) -> str:
    """What JAX calls the devices of a mesh, as "TPU v5"; empty where that is not known."""
    if isinstance(mesh, Mesh):
        return mesh.devices.flat[0].device_kind
    return mesh.abstract_device.device_kind if mesh.abstract_device else ""
