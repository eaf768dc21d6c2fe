"""Tensor: an array whose dimensions have names.

Outside a lowering a Tensor holds a whole (global) array, and ops on it are plain JAX. Inside a
lowering it holds what one device has, and `placement` says how the whole was cut: which axes split
each dim, over which axes a sum is still pending, and the scope it lives in. Dims always state
whole sizes.

A Tensor is a pytree with one leaf, its array, so `jax.grad`, optax and orbax work on models of
Tensors as they are. Inside a lowering that leaf is settled first, and split in a way that depends
on its dims alone, so that `jax.tree.map` may combine Tensors element by element whatever had been
done to them before; see `lowering.resharding.leaf`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jax.typing import DTypeLike

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.mesh import axis_names
from meshdsl.values import Values, canonical, check_shape


class Parameter(NamedTuple):
    """What training may know of a parameter: the names of the dims that it contracts and makes.

    A parameter with `ins` is a matrix (weight decay and muon ask); a scale or a bias has none.
    Dims in neither (the `layers` of a stack) only count copies.

    Attributes:
      ins, outs: the names of the dims that it contracts, and of those that it makes.
      signs: the size of the step that training takes against the sign of the gradient, whatever
        the optimizer; 0: the optimizer moves it. Such a parameter is state rather than weight.
    """

    ins: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    signs: float = 0.0


class Dtypes(NamedTuple):
    """The dtypes of a Tensor that is kept in one dtype and used or moved in another.

    Attributes:
      use: in which ops take it.
      sums: in which its gradient is summed over devices.
      moves: in which it travels, if that is not the dtype of use: one that has all its values.
    """

    use: np.dtype
    sums: np.dtype
    moves: np.dtype | None = None

    @property
    def travels(self) -> np.dtype:
        """The dtype in which it moves between devices."""
        return self.use if self.moves is None else self.moves


class Placement(NamedTuple):
    """Where a Tensor inside a lowering stands. Static: part of the tree structure, never traced.

    Two placements that differ only in level, reasons or wire are equal: a parameter and its
    gradient, split alike, have the same tree structure, and what is made of both has the level of
    the first.

    Attributes:
      scope: what all Tensors of the lowering share.
      axes: for each dim the axes that split it, major first.
      pending: the axes over which the arrays of the devices have yet to be summed.
      level: which lists of the layout split the Tensor, and so how it leaves the lowering.
      origin: the parameters that it was computed from, by number, while gradients are taken.
      dtypes: of a parameter that is used in another dtype than it has at rest.
      reasons: for each pending axis the rule that made it pending, for the record.
      wire: of a parameter whose gradients travel in few bits, the axes over which they do, each
        with the name of a wire, see `lowering.wires`.
    """

    scope: Any
    axes: tuple[tuple[str, ...], ...]
    pending: tuple[str, ...] = ()
    level: str = "rules"
    origin: frozenset[int] = frozenset()
    dtypes: Dtypes | None = None
    reasons: tuple[tuple[str, str], ...] = ()
    wire: tuple[tuple[str, str], ...] = ()

    def _standing(self):
        return self.scope, self.axes, self.pending, self.origin, self.dtypes

    def __eq__(self, other):
        return isinstance(other, Placement) and self._standing() == other._standing()

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self._standing())


@jax.tree_util.register_pytree_with_keys_class
class Tensor(Values):
    """An array with named dims, made by `tensor` or `parameter`; arithmetic follows the names.

    Attributes:
      array: the data; its shape is that of `dims` outside a lowering, and the local shape inside.
        It may be NumPy's: then it stays on the host until an op takes it, as one of JAX.
      stored: the same as it is at rest, where it is used in another dtype, see `Dtypes`.
      dims: the dims, in the order in which they lie in memory.
      role: `Parameter` for parameters and what follows them, else None.
      placement: where it stands inside a lowering, see `Placement`; None outside of one.
    """

    __slots__ = ("dims", "placement", "role", "stored")
    # `Tensor[Batch, Length]` says more to a type checker, see stubs/declarations.pyi.
    __class_getitem__ = classmethod(GenericAlias)
    __array_priority__ = 1000  # so that `numpy_array * tensor` asks us first

    def __init__(
        self, array, dims: Dims, role: Parameter | None = None, placement: Placement | None = None
    ):
        self.stored = array
        self.dims = dims
        self.role = role
        self.placement = placement

    def tree_flatten(self):
        x = self if self.placement is None else self.placement.scope.leaf(self)
        return (x.stored,), (x.dims, x.role, x.placement)

    def tree_flatten_with_keys(self):
        (array,), aux = self.tree_flatten()
        return ((jax.tree_util.GetAttrKey("array"), array),), aux

    @classmethod
    def tree_unflatten(cls, aux, children):
        x = cls(*children, *aux)
        return x if x.placement is None else x.placement.scope.unleaf(x)

    def replace(self, **changes) -> Tensor:
        """This Tensor with another `array`, `dims`, `role` or `placement`."""
        kept = {
            "array": self.stored,
            "dims": self.dims,
            "role": self.role,
            "placement": self.placement,
        }
        return Tensor(**{**kept, **changes})

    @property
    def array(self):
        dtypes = self.placement and self.placement.dtypes
        return self.stored.astype(dtypes.use) if dtypes else self.stored

    @property
    def dtype(self):
        """The dtype of `array`."""
        dtypes = self.placement and self.placement.dtypes
        if dtypes:
            return dtypes.use
        dtype = getattr(self.stored, "dtype", None)
        if dtype is None:
            check_shape("Tensor.dtype", self)  # it holds no array, and this says so
        if isinstance(self.stored, (np.ndarray, np.generic)):
            return jax.dtypes.canonicalize_dtype(dtype)  # that in which ops take it
        return dtype

    @property
    def size(self) -> int:
        """Elements of the whole tensor, over all devices."""
        return dim_algebra.size(self.dims)

    @property
    def pending(self) -> tuple[str, ...]:
        """Axes over which this is a sum that has not been taken yet; empty outside a lowering."""
        return self.placement.pending if self.placement else ()

    @property
    def split(self) -> dict[Dim, tuple[str, ...]]:
        """The axes that split each dim, major first; dims that are not split are left out."""
        return {d: axes for d, axes in zip(self.dims, axes_of(self), strict=True) if axes}

    def dim(self, name: str) -> Dim:
        """The dim called `name`."""
        return dim_algebra.find("Tensor.dim", self.dims, name)

    # JAX's types declare the class jax.Device as a variable.
    def local_shards(
        self,
    ) -> list[tuple[jax.Device, np.ndarray]]:  # pyright: ignore[reportInvalidTypeForm]
        """What each device of this process holds: pairs of a device and its part of the array."""
        if not isinstance(self.array, jax.Array) or isinstance(self.array, Tracer):
            raise MeshDSLError(
                "local_shards: only a Tensor of concrete data has shards; this one is being traced"
            )
        return [(s.device, np.asarray(s.data)) for s in self.array.addressable_shards]

    def __repr__(self):
        pending = f" pending({', '.join(self.pending)})" if self.pending else ""
        dtype = getattr(self.array, "dtype", type(self.array).__name__)
        text = f"Tensor{notation(self.dims, axes_of(self))} {dtype} {self.shape}{pending}"
        shape = getattr(self.stored, "shape", None)
        if shape is not None and tuple(shape) != self._expected_shape():
            return f"{text}, but its array has shape {tuple(shape)}"
        return text + self._shown_values()

    __hash__ = object.__hash__


def is_tensor(x) -> bool:
    return isinstance(x, Tensor)


def is_value(x) -> bool:
    """Whether `x` is a Tensor, an array or a number: what a JAX program takes and returns."""
    array = x.stored if is_tensor(x) else x
    if isinstance(array, (np.ndarray, np.generic)):
        return array.dtype.kind not in "OSUMm"
    return isinstance(array, (jax.Array, float, complex)) or (
        isinstance(array, int) and -(2**63) <= array < 2**63
    )


def notation(dims: Dims, axes: tuple[tuple[str, ...], ...]) -> str:
    """`[batch_data, length, d_model]`: each dim with the axes that split it."""
    return f"[{', '.join('_'.join((d.name, *a)) for d, a in zip(dims, axes, strict=True))}]"


def axes_of(x: Tensor) -> tuple[tuple[str, ...], ...]:
    """For each dim of `x` the axes that split it: by its placement, or its array's sharding."""
    if x.placement:
        return x.placement.axes
    spec = getattr(getattr(x.array, "sharding", x.array), "spec", None)
    if spec is None or len(spec) > len(x.dims):
        return ((),) * len(x.dims)
    parts = [() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in spec]
    return tuple(parts) + ((),) * (len(x.dims) - len(parts))


def tensor(array, dims) -> Tensor:
    """A Tensor of `array`, or of anything that `jnp.asarray` takes, with the names `dims`.

    Raises:
      MeshDSLError: a name occurs twice, or the shape is not that of the dims.
    """
    dims = dim_algebra.distinct(dims, "tensor")
    if is_tensor(array):
        raise MeshDSLError(
            f"tensor: this is a Tensor {dim_algebra.show(array.dims)} already; md.rename gives its "
            "dims other names, md.transpose another order"
        )
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        try:
            array = jnp.asarray(array)
        except (TypeError, ValueError, OverflowError):
            raise MeshDSLError(
                f"tensor: an array of numbers gets dims, not {quote(array)}"
            ) from None
    if tuple(array.shape) != tuple(d.size for d in dims):
        raise MeshDSLError(
            f"tensor: an array of shape {tuple(array.shape)} cannot have dims "
            f"{dim_algebra.show(dims)}"
        )
    if isinstance(array, (np.ndarray, np.generic)):
        array = canonical("tensor", array, dims)
    return Tensor(array, dims)


def abstract(dims, dtype: DTypeLike = jnp.float32) -> Tensor:
    """A Tensor without data: only its dims and its dtype, for tools that never compute with it.

        md.abstract((batch, length), jnp.int32)

    Raises:
      MeshDSLError: a name occurs twice.
    """
    dims = dim_algebra.distinct(dims, "abstract")
    return Tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims)


def parameter(array, dims, *, ins=()) -> Tensor:
    """A Tensor that is trained.

    At rest it is split by the layout's `rules` and, below them, its `parameters`.

    Args:
      ins: dims that the parameter contracts when it is used, for a matrix; none for a scale or a
        bias.
    """
    made = tensor(array, dims)
    ins = dim_algebra.find_all("parameter", made.dims, ins)
    outs = dim_algebra.without(made.dims, ins) if ins else ()
    made.role = Parameter(tuple(d.name for d in ins), tuple(d.name for d in outs))
    return made


def from_local(shards, dims, mesh: Mesh, split: Mapping) -> Tensor:
    """A whole Tensor from the parts on the devices of this process: the inverse of `local_shards`.

    Args:
      shards: pairs of a device and its part, or a dict from device to part.
      dims: dims of the whole.
      mesh: the mesh of those devices.
      split: for each split dim the axis, or a tuple of axes, that split it.

    Raises:
      MeshDSLError: a dim or axis is unknown, or a part has the wrong shape.
    """
    dims = dim_algebra.distinct(dims, "from_local")
    by_dim = {
        dim_algebra.find("from_local", dims, d): axis_names("from_local", a)
        for d, a in split.items()
    }
    for dim, axes in by_dim.items():
        for axis in axes:
            if axis not in mesh.shape:
                raise MeshDSLError(
                    f"from_local: no axis `{axis}` in the mesh{nearest(axis, mesh.shape)}"
                )
        if dim.size % math.prod(mesh.shape[a] for a in axes):
            raise MeshDSLError(
                f"from_local: `{dim.name}`={dim.size} does not divide over "
                f"{' x '.join(f'`{a}`={mesh.shape[a]}' for a in axes)}"
            )
    sharding = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*(by_dim.get(d) for d in dims))
    )
    whole = tuple(d.size for d in dims)
    local = sharding.shard_shape(whole)
    arrays = []
    if not isinstance(shards, Mapping) and not (
        isinstance(shards, Sequence)
        and all(isinstance(s, (tuple, list)) and len(s) == 2 for s in shards)
    ):
        raise MeshDSLError(
            "from_local: the shards are pairs of a device and its part, or a dict from device "
            f"to part, not {quote(shards)}"
        )
    for device, part in dict(shards).items():
        if not isinstance(device, jax.Device):
            raise MeshDSLError(
                "from_local: each part comes with its device, one of jax.devices(), not with "
                f"{quote(device)}"
            )
        if np.shape(part) != local:
            raise MeshDSLError(
                f"from_local: the part on {device} has shape {np.shape(part)}; "
                f"{dim_algebra.show(dims)} needs {local}"
            )
        arrays.append(jax.device_put(part, device))
    missing = set(sharding.addressable_devices) - {d for d, _ in dict(shards).items()}
    if missing:
        raise MeshDSLError(f"from_local: no part for {', '.join(sorted(map(str, missing)))}")
    return Tensor(jax.make_array_from_single_device_arrays(whole, sharding, arrays), dims)
