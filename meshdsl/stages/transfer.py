"""`transfer`: Tensors of one mesh, brought to another mesh and split there by another layout.

A copy from device to device is fast and waits for nothing, but both ends must have the same parts:
`jax.device_put` fetches an array to the host where they differ, and the program waits for it. So a
tensor crosses in parts that both meshes can hold, as many as possible, so that few bytes cross. Its
own mesh cuts or gathers it to these parts before, and the other mesh after, by collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from meshdsl.dims import show
from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shardings
from meshdsl.stages.transfers import Transfer, Transfers
from meshdsl.tensor import axes_of, is_tensor, is_value, notation


def transfer(
    tree,
    layout: Layout,
    mesh: Mesh,
    *,
    level: str | None = None,
    name: str = "",
    transfers: Transfers | None = None,
):
    """The Tensors of `tree` on another mesh, split there by `layout`.

        activations = md.transfer(activations, LAST, last_mesh)

    The call returns at once, and what comes after it may be called while the copies are still made.
    It is for what lives outside of lowerings, in a program of one process. Data of the host can be
    transferred too.

    Args:
      tree: a pytree of Tensors; arrays and numbers in it become whole on every device of `mesh`.
      level: "rules", "parameters" or "optimizer"; by default what each Tensor is, see `shardings`.
      name: what the record calls this transfer.
      transfers: the record to which the tensors and their bytes are added.

    Returns:
      The same tree, of arrays on `mesh`.

    Raises:
      MeshDSLError: the layout names an axis that the mesh lacks, or splits a dim that does not
        divide; the mesh has devices of another process; a Tensor is being traced, by a lowering, by
        `jax.jit` or by `jax.grad`; a leaf is no array.
    """
    if transfers is not None and not isinstance(transfers, Transfers):
        raise MeshDSLError(
            f"transfer: `transfers` is a record, md.Transfers(), not {quote(transfers)}"
        )
    return send(tree, layout, mesh, level, name, transfers)()


def send(
    tree,
    layout: Layout,
    mesh: Mesh,
    level: str | None,
    name: str,
    transfers: Transfers | None,
) -> Callable[[], Any]:
    """Begin a transfer, with the arguments and the errors of `transfer`: the copies are begun.

    Returns:
      A function that gives the tree, split by the law. It begins collectives on the other mesh,
      whose devices do what they are asked in order. So it is called when the tree is needed, and
      not before work that needs it not.
    """
    layout.check_axes(mesh.shape)
    _check_process("the mesh", mesh.devices.flat)
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    for path, leaf in with_paths:
        _check(leaf, f"`{name or 'tree'}{jax.tree_util.keystr(path)}`")
    is_target = lambda x: is_tensor(x) or isinstance(x, NamedSharding)
    targets = jax.tree.leaves(shardings(tree, layout, mesh, level), is_leaf=is_target)
    sent: list[tuple[Any, Any, NamedSharding | None]] = []  # each leaf, its array, and its target
    for (path, leaf), target in zip(with_paths, targets, strict=True):
        if is_tensor(leaf) and not jax.tree.leaves(leaf):  # optax masked it out
            sent.append((leaf, None, None))
            continue
        array = leaf.array if is_tensor(leaf) else leaf
        target = target.array if is_tensor(target) else target
        way = _way(_sharding_of(array), target, np.shape(array))
        crossing = array if way.leaves is None else _resharded(array, way.leaves)
        sent.append((leaf, _crossed(crossing, way), target))
        if transfers is not None:
            itemsize = jnp.result_type(array).itemsize
            where = _standing(leaf, _sharding_of(array)), _standing(leaf, target)
            said = name + jax.tree_util.keystr(path)
            transfers.add(Transfer(said, *where, way.parts, way.elements * itemsize))

    def arrived() -> Any:
        found = []
        for leaf, array, target in sent:
            if target is not None:
                array = _resharded(array, target)
                leaf = leaf.replace(array=array) if is_tensor(leaf) else array
            found.append(leaf)
        return jax.tree.unflatten(structure, found)

    return arrived


def _check(leaf, what: str) -> None:
    """Raise a MeshDSLError for a leaf without numbers, or whose numbers are not known yet."""
    array = leaf.stored if is_tensor(leaf) else leaf
    if isinstance(array, Tracer):
        raise MeshDSLError(
            f"transfer: {what} is being traced; a transfer stands between two programs, so it is "
            "called outside of lowerings, of jax.jit and of jax.grad. md.Stages takes gradients "
            "of a model whose stages are on several meshes"
        )
    if is_tensor(leaf) and not jax.tree.leaves(leaf):
        return
    if not is_value(leaf):
        kind = f"a Tensor {show(leaf.dims)} {quote(array)}" if is_tensor(leaf) else quote(leaf)
        raise MeshDSLError(
            f"transfer: {what} is {kind}; Tensors of data, arrays and numbers are transferred"
        )
    if isinstance(array, jax.Array):
        _check_process(what, array.sharding.device_set)


def _check_process(what: str, devices: Iterable) -> None:
    """Raise a MeshDSLError unless this process has all of the devices."""
    if any(device.process_index != jax.process_index() for device in devices):
        raise MeshDSLError(
            f"transfer: {what} has devices of another process; a transfer is between meshes of the "
            "devices of one process"
        )


class _Way(NamedTuple):
    """How an array goes from one mesh to another.

    Attributes:
      leaves: its sharding over the devices that it comes from, in the parts that cross; None where
        it has these parts already.
      arrives: its sharding over the devices that it goes to.
      pieces: where several devices get pieces of one part: for each part, by its first index in
        each dim, the sharding of its pieces. Empty where devices get whole parts.
      parts: how many different parts, or pieces of them, arrive.
      elements: those of all parts and copies that a device gets and did not have.
    """

    leaves: NamedSharding | None
    arrives: NamedSharding
    pieces: tuple[tuple[tuple[int, ...], Sharding], ...]
    parts: int
    elements: int


@cache
def _way(source: Sharding | None, target: NamedSharding, shape: tuple[int, ...]) -> _Way:
    goal, there = _parts(target, shape), target.num_devices
    direct = _Way(None, target, (), math.prod(goal), _arriving(source, target, shape))
    if source is None or source.device_set == target.device_set:
        return direct  # JAX does this well
    start = _parts(source, shape)
    common = math.gcd(source.num_devices, there)
    legal = [p for p in (goal, start, _most(shape, common)) if common % math.prod(p) == 0]
    # The fewest bytes cross in the most parts. Of ways with as many parts, the least to do.
    parts = min(legal, key=lambda p: (-math.prod(p), (p != goal) + (p != start)))
    if source.num_devices == 1 and math.prod(goal) == there:
        return direct  # JAX cuts what lies on one device there, before it leaves
    if not isinstance(target.mesh, Mesh):
        return direct
    leaves = None
    if parts != start:
        if not isinstance(source, NamedSharding) or not isinstance(source.mesh, Mesh):
            return direct  # over devices in an order that is not known
        leaves = _cut(source.mesh, parts)
    arrives, pieces = target if parts == goal else _cut(target.mesh, parts), ()
    ways = there // math.prod(parts)
    cut = [i for i, n in enumerate(shape) if n and n // parts[i] % ways == 0]
    cut.sort(key=lambda i: -parts[i])  # the axes of one dim are one axis
    if ways > 1 and cut:
        arrives = _cut(target.mesh, parts, cut[0])
        if arrives.is_equivalent_to(target, len(shape)):
            arrives = target
        pieces = _pieces(_cut(target.mesh, parts), shape, cut[0])
    different = math.prod(_parts(arrives, shape))
    return _Way(leaves, arrives, pieces, different, _arriving(leaves or source, arrives, shape))


def _pieces(whole: NamedSharding, shape: tuple[int, ...], position: int):
    """`_Way.pieces`: each part of a sharding, cut at a position over the devices that have it."""
    devices: dict[tuple[int, ...], list] = {}
    for device, index in whole.devices_indices_map(shape).items():
        devices.setdefault(_begin(index), []).append(device)
    spec = PartitionSpec(*(None,) * position, "pieces")
    auto = (AxisType.Auto,)
    return tuple(
        (begin, NamedSharding(Mesh(np.array(those), ("pieces",), axis_types=auto), spec))
        for begin, those in devices.items()
    )


def _begin(index) -> tuple[int, ...]:
    return tuple(part.start or 0 for part in index)


def _crossed(array, way: _Way):
    """The array on the other mesh, as it arrives there."""
    if not way.pieces:
        return jax.device_put(array, way.arrives)
    parts = {_begin(shard.index): shard.data for shard in array.addressable_shards}
    cut = [jax.device_put(parts[begin], sharding) for begin, sharding in way.pieces]
    arrays = [shard.data for part in cut for shard in part.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, way.arrives, arrays)


def _parts(sharding: Sharding, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Into how many parts a sharding cuts each dim."""
    local = sharding.shard_shape(shape)
    return tuple(n // part if part else 1 for n, part in zip(shape, local, strict=True))


def _most(shape: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """The cut of one dim in the most parts that divide it and a number of devices."""
    parts = [math.gcd(n, devices) if n else 1 for n in shape]
    best = parts.index(max(parts)) if parts else 0
    return tuple(n if i == best else 1 for i, n in enumerate(parts))


def _cut(mesh: Mesh, parts: Sequence[int], again: int | None = None) -> NamedSharding:
    """So many parts of each dim over the devices of a mesh, in its order, and copies of these.

    Args:
      again: the position of a dim whose parts are cut once more, so that there are no copies.
    """
    axes: list[tuple[int, int | None]] = [(n, i) for i, n in enumerate(parts) if n > 1]
    copies = mesh.devices.size // math.prod(parts)
    if again is not None and axes and axes[-1][1] == again:
        axes[-1], copies = (axes[-1][0] * copies, again), 1
    axes.append((copies, again))
    spec = [
        tuple(f"axis{k}" for k, (_, i) in enumerate(axes) if i == at) for at, _ in enumerate(parts)
    ]
    devices = mesh.devices.reshape([n for n, _ in axes])
    names = tuple(f"axis{k}" for k, _ in enumerate(axes))
    made = Mesh(devices, names, axis_types=(AxisType.Auto,) * len(axes))
    return NamedSharding(made, PartitionSpec(*spec))


def _arriving(source: Sharding | None, target: Sharding, shape: tuple[int, ...]) -> int:
    """The elements that devices of `target` get and do not have by `source`."""
    had = source.devices_indices_map(shape) if source is not None else {}
    wanted = target.devices_indices_map(shape)
    new = sum(had.get(device) != index for device, index in wanted.items())
    return new * math.prod(target.shard_shape(shape))


def _resharded(array, sharding: NamedSharding):
    """An array in another sharding over the devices that it lies on.

    XLA's partitioner breaks down at some changes between meshes whose axes do not nest, such as 2 x
    3 and 3 x 2. Between these the array is whole on every device.
    """
    if array.sharding == sharding:
        return array
    if not _nest(array.sharding.mesh, sharding.mesh):
        array = _program(NamedSharding(sharding.mesh, PartitionSpec()))(array)
    return _program(sharding)(array)


@cache
def _nest(mesh: Mesh, other: Mesh) -> bool:
    """Whether both are the same devices in order, as axes that are products of common factors."""
    inner = {math.prod(m.devices.shape[:i]) for m in (mesh, other) for i in range(m.devices.ndim)}
    return all(b % a == 0 for a, b in pairwise(sorted(inner)))


@cache
def _program(sharding: NamedSharding):
    def reshard(array):
        return array

    return jax.jit(reshard, out_shardings=sharding)


def _sharding_of(array) -> Sharding | None:
    """Where an array lies; None for one of the host."""
    return array.sharding if isinstance(array, jax.Array) else None


def _standing(leaf, sharding: Sharding | None) -> str:
    """`[batch_data, features] on 4 devices`"""
    where = "the host"
    if sharding is not None:
        where = f"{sharding.num_devices} device{'s' * (sharding.num_devices > 1)}"
    if not is_tensor(leaf):
        return f"whole on {where}"
    return f"{notation(leaf.dims, axes_of(leaf.replace(array=sharding)))} on {where}"
