"""`show`: how one tensor is split, as a picture in a notebook and as text everywhere else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax.sharding import AbstractMesh

from meshdsl.errors import MeshDSLError, quote
from meshdsl.figures import byte_words, columns
from meshdsl.tensor import Tensor, axes_of, is_tensor
from meshdsl.values import check_shape

if TYPE_CHECKING:  # who only trains should not wait for the explanations to be imported
    from meshdsl.estimate.explanation import TensorView

_LISTED = 64  # devices of which each is listed with its part


@dataclass(frozen=True)
class Shown:
    """What `show` returns: its `repr` is text, and a notebook draws it.

    Attributes:
      view: the tensor with its dims, bytes of one device.
      mesh: the sizes of the axes of its mesh; empty where it lies on one device.
      pending: axes over which it is a sum that has not been taken yet.
      parts: each different part, `d_model 0:256, d_ff 0:3584`, with the devices that hold it; empty for more than 64 devices.
    """

    view: TensorView
    mesh: dict[str, int]
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    pending: tuple[str, ...] = ()

    def __repr__(self) -> str:
        view = self.view
        rows = [("dim", "whole", "on a device", "split over")]
        rows += [
            (
                d.name,
                f"{d.size:,}",
                f"{d.local:,}",
                ", ".join(f"{a}={self.mesh.get(a, 1)}" for a in d.axes),
            )
            for d in view.dims
        ]
        whole = (
            math.prod(d.size for d in view.dims)
            * view.bytes
            // max(math.prod(d.local for d in view.dims), 1)
        )
        lines = [
            f"{view.notation if view.dims else view.name + '[]'} {view.dtype}, {byte_words(view.bytes)} of {byte_words(whole)} on a device"
        ]
        lines += columns(rows, right=(1, 2)) if view.dims else []
        if self.mesh:
            lines.append(
                f"  mesh {' '.join(f'{a}={n}' for a, n in self.mesh.items())}: {self._copies()}"
            )
        if self.pending:
            lines.append(
                f"  every device holds a term of a sum over {' and '.join(self.pending)} that has not been taken yet"
            )
        if len(self.parts) > 1:
            lines += columns(
                [("part", "on"), *((part, ", ".join(devices)) for part, devices in self.parts)]
            )
        return "\n".join(lines)

    def _copies(self) -> str:
        devices = math.prod(self.mesh.values())
        parts = math.prod(self.mesh.get(a, 1) for d in self.view.dims for a in d.axes)
        if parts == 1:
            return f"whole on each of {devices} devices" if devices > 1 else "one device"
        each = "" if parts == devices else f", each on {devices // parts} of {devices} devices"
        return f"{parts} parts{each}"

    def _repr_html_(self) -> str:
        from meshdsl.report.page import tensor_html

        return tensor_html(self.view, self.mesh, self.parts if len(self.parts) > 1 else ())


def show(tensor: Tensor, name: str = "Tensor") -> Shown:
    """How `tensor` is split: dims with their axes, sizes whole and on one device, and who holds what.

    Args:
      tensor: outside of a lowering of a sharded array, or of a `ShapeDtypeStruct` with a `NamedSharding`; inside of a lowering as it stands there.
      name: what to call it.

    Raises:
      MeshDSLError: it is no Tensor.
    """
    from meshdsl.estimate.explanation import DimView, TensorView

    if not is_tensor(tensor):
        dims = (
            "; give an array dims with md.tensor(array, dims)" if hasattr(tensor, "shape") else ""
        )
        raise MeshDSLError(f"show: a Tensor is shown, not {quote(tensor)}{dims}")
    array = tensor.array
    if not hasattr(array, "dtype"):
        raise MeshDSLError(
            f"show: this Tensor holds {quote(array)}, not an array; give it an array or a ShapeDtypeStruct"
        )
    check_shape("show", tensor)
    mesh = _mesh(tensor)
    whole = tensor.shape
    local = (
        tuple(array.shape)
        if tensor.place
        else tuple(array.sharding.shard_shape(whole))
        if getattr(array, "sharding", None)
        else whole
    )
    dims = tuple(
        DimView(d.name, d.size, n, tuple(axes))
        for d, n, axes in zip(tensor.dims, local, axes_of(tensor), strict=True)
    )
    view = TensorView(
        name, "other", dims, local, str(array.dtype), math.prod(local) * array.dtype.itemsize
    )
    return Shown(view, mesh, _parts(tensor, view, mesh), tensor.pending)


def _mesh(tensor: Tensor) -> dict[str, int]:
    if tensor.place:
        return dict(tensor.place.scope.sizes)
    mesh = getattr(getattr(tensor.array, "sharding", None), "mesh", None)
    return dict(mesh.shape) if mesh is not None else {}


def _parts(
    tensor: Tensor, view: TensorView, mesh: dict[str, int]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The different parts in words, in the order of the array, each with those that hold it."""
    held: dict[tuple, list[str]] = {}
    for holder, bounds in _holders(tensor, view, mesh):
        held.setdefault(bounds, []).append(holder)
    return tuple((_words(view, bounds), tuple(holders)) for bounds, holders in sorted(held.items()))


def _words(view: TensorView, bounds) -> str:
    return (
        ", ".join(f"{d.name} {a}:{b}" for d, (a, b) in zip(view.dims, bounds, strict=True))
        or "the whole"
    )


def _holders(
    tensor: Tensor, view: TensorView, mesh: dict[str, int]
) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """Each device, with the bounds of its part along each dim. Where there are no devices yet, its place in the mesh: `data=0 model=3`."""
    sharding = getattr(tensor.array, "sharding", None)
    if math.prod(mesh.values()) > _LISTED:
        return
    if (
        sharding is not None
        and not tensor.place
        and not isinstance(getattr(sharding, "mesh", None), AbstractMesh)
    ):
        for device, index in sharding.devices_indices_map(tuple(d.size for d in view.dims)).items():
            yield (
                f"{device.platform} {device.id}",
                tuple(s.indices(d.size)[:2] for s, d in zip(index, view.dims, strict=True)),
            )
        return
    if not mesh:
        return
    for position in itertools.product(*(range(n) for n in mesh.values())):
        at = dict(zip(mesh, position, strict=True))
        starts = []
        for dim in view.dims:
            part = 0
            for axis in dim.axes:
                part = part * mesh[axis] + at[axis]
            starts.append(part * dim.local)
        bounds = tuple(
            (min(a, d.size), min(a + d.local, d.size))
            for a, d in zip(starts, view.dims, strict=True)
        )
        yield " ".join(f"{a}={i}" for a, i in at.items()), bounds
