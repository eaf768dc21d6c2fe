"""How one tensor is split, as text and in a notebook as a picture: what `md.show` returns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError, quote
from meshdsl.figures import byte_words, columns
from meshdsl.predict.explanation import DimView, TensorView
from meshdsl.tensor import Tensor, axes_of, is_tensor
from meshdsl.tools.page import tensor_html
from meshdsl.values import check_shape

_LISTED = 64  # devices of which each is listed with its part
_Bounds = tuple[tuple[int, int], ...]  # of a part: where it starts and stops along each dim


@dataclass(frozen=True)
class Shown:
    """How one tensor is split: its `repr` is text, and a notebook draws it.

    Attributes:
      view: the tensor with its dims, bytes of one device.
      mesh: the sizes of the axes of its mesh; empty where it lies on one device.
      pending: axes over which it is a sum that has not been taken yet.
      parts: each different part, `d_model 0:256, d_ff 0:3584`, with the devices that hold it; empty
        for more than 64 devices.
    """

    view: TensorView
    mesh: dict[str, int]
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    pending: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [self._head()]
        if self.view.dims:
            lines += columns(
                [("dim", "whole", "on a device", "split over"), *self._dims()], right=(1, 2)
            )
        if self.mesh:
            sizes = " ".join(f"{a}={n}" for a, n in self.mesh.items())
            lines.append(f"  mesh {sizes}: {self._copies()}")
        if self.pending:
            lines.append(
                "  every device holds a term of a sum over "
                f"{' and '.join(self.pending)} that has not been taken yet"
            )
        if len(self.parts) > 1:
            lines += columns([("part", "on"), *((p, ", ".join(on)) for p, on in self.parts)])
        return "\n".join(lines)

    def _head(self) -> str:
        view = self.view
        name = view.notation if view.dims else f"{view.name}[]"
        local = max(math.prod(d.local for d in view.dims), 1)
        in_all = math.prod(d.size for d in view.dims) * view.bytes // local
        return f"{name} {view.dtype}, {byte_words(view.bytes)} of {byte_words(in_all)} on a device"

    def _dims(self) -> Iterator[tuple[str, ...]]:
        for d in self.view.dims:
            over = ", ".join(f"{a}={self.mesh.get(a, 1)}" for a in d.axes)
            yield d.name, f"{d.size:,}", f"{d.local:,}", over

    def _copies(self) -> str:
        """Into how many parts it is split, and on how many devices each is."""
        devices = math.prod(self.mesh.values())
        parts = math.prod(self.mesh.get(a, 1) for d in self.view.dims for a in d.axes)
        if parts == 1:
            return f"whole on each of {devices} devices" if devices > 1 else "one device"
        each = "" if parts == devices else f", each on {devices // parts} of {devices} devices"
        return f"{parts} parts{each}"

    def _repr_html_(self) -> str:
        return tensor_html(self.view, self.mesh, self.parts if len(self.parts) > 1 else ())


def show(tensor: Tensor, name: str = "Tensor") -> Shown:
    """How `tensor` is split: its dims with their axes and sizes, and which device holds which part.

    Args:
      tensor: outside of a lowering one with a sharded array, or with a `ShapeDtypeStruct` that has
        a `NamedSharding`; inside of a lowering it is shown as it is split there.
      name: what to call it.

    Raises:
      MeshDSLError: it is no Tensor, or it holds neither an array nor a shape.
    """
    if not is_tensor(tensor):
        dims = (
            "; give an array dims with md.tensor(array, dims)" if hasattr(tensor, "shape") else ""
        )
        raise MeshDSLError(f"show: a Tensor is shown, not {quote(tensor)}{dims}")
    array = tensor.array
    if not hasattr(array, "dtype"):
        raise MeshDSLError(
            f"show: this Tensor holds {quote(array)}, not an array; "
            "give it an array or a ShapeDtypeStruct"
        )
    check_shape("show", tensor)
    mesh = _mesh(tensor)
    local = _local_shape(tensor)
    dims = tuple(
        DimView(d.name, d.size, n, tuple(axes))
        for d, n, axes in zip(tensor.dims, local, axes_of(tensor), strict=True)
    )
    size = math.prod(local) * array.dtype.itemsize
    view = TensorView(name, "other", dims, local, str(array.dtype), size)
    return Shown(view, mesh, _parts(tensor, view, mesh), tensor.pending)


def _local_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of what one device has of it."""
    if tensor.placement:  # inside of a lowering the array is that part
        return tuple(tensor.array.shape)
    sharding = getattr(tensor.array, "sharding", None)
    return tuple(sharding.shard_shape(tensor.shape)) if sharding else tensor.shape


def _mesh(tensor: Tensor) -> dict[str, int]:
    """The mesh that it lies on, `{axis: size}`; empty without one."""
    if tensor.placement:
        return dict(tensor.placement.scope.sizes)
    mesh = getattr(getattr(tensor.array, "sharding", None), "mesh", None)
    return dict(mesh.shape) if mesh is not None else {}


def _parts(
    tensor: Tensor, view: TensorView, mesh: dict[str, int]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The different parts in words, in the order of the array, each with its devices."""
    if math.prod(mesh.values()) > _LISTED:
        return ()
    holders: dict[_Bounds, list[str]] = {}
    for device, bounds in _bounds(tensor, view, mesh):
        holders.setdefault(bounds, []).append(device)
    return tuple(
        (_part_words(view, bounds), tuple(devices)) for bounds, devices in sorted(holders.items())
    )


def _part_words(view: TensorView, bounds: _Bounds) -> str:
    """`d_model 0:256, d_ff 0:3584`."""
    ranges = (f"{d.name} {a}:{b}" for d, (a, b) in zip(view.dims, bounds, strict=True))
    return ", ".join(ranges) or "the whole"


def _bounds(
    tensor: Tensor, view: TensorView, mesh: dict[str, int]
) -> Iterator[tuple[str, _Bounds]]:
    """Each device with the bounds of its part.

    A device is named as JAX names it; where there are none yet, by its coordinates in the mesh:
    `data=0 model=3`.
    """
    sharding = getattr(tensor.array, "sharding", None)
    there = None if tensor.placement else getattr(sharding, "mesh", None)
    for indices in itertools.product(*map(range, mesh.values())) if mesh else ():
        at = dict(zip(mesh, indices, strict=True))
        name = " ".join(f"{a}={i}" for a, i in at.items())
        if isinstance(there, Mesh):
            device = there.devices[indices]
            name = f"{device.platform} {device.id}"
        yield name, tuple(_bounds_of_dim(d, at, mesh) for d in view.dims)


def _bounds_of_dim(dim: DimView, at: dict[str, int], mesh: dict[str, int]) -> tuple[int, int]:
    """Where along `dim` the part of the device with coordinates `at` starts and stops."""
    part = 0
    for axis in dim.axes:
        part = part * mesh[axis] + at[axis]
    return min(part * dim.local, dim.size), min((part + 1) * dim.local, dim.size)
