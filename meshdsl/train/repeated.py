"""Silent data corruption: a device that computes something else now and then (`guard.repeat`).

A worn chip gives no error. It gives a wrong number, which goes into the parameters of all others
(Dixit et al., 2021, "Silent Data Corruptions at Scale"). What can be seen of it:

- The same program on the same numbers gives the same bits. So the gradients of a step are computed
  twice, and each device takes a digest of its part, of 32 bits.
- Devices that have the same part of an array, replicas of it, have the same bits. So the digests of
  parameters and gradients are compared over those too.

The numbers that are compared are those that lie on a device. Where gradients are summed over
devices, a wrong number of one is a part of what others have; then all that differ are named, and
the worn one is one of them or has sent to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.checkpoints.digest import digest
from meshdsl.train.checkpoints.tree_leaves import named_leaves
from meshdsl.train.job import Job
from meshdsl.train.step import State

_NAMED = 8  # devices that an error names


class Repeated:
    """Computes the gradients of a step twice, and compares what the devices came to.

    Args:
      folder: of the run, for the error.
    """

    def __init__(self, job: Job, folder: Path):
        self._job, self._folder = job, folder
        self._devices = list(job.mesh.devices.flat)
        step, grads = job.step, job.step.split_of_gradients
        # What is compared, in words, and where it lies: parameters first.
        self._compared = [
            (f"`{name}`", leaf) for name, leaf in _shardings(_kept(step.shardings)).items()
        ]
        self._compared += [
            (f"the gradient of `{name}`", leaf) for name, leaf in _shardings(grads).items()
        ]
        self._compiled: Any = None

    def check(self, state: State, batch: dict[str, Tensor], number: int) -> None:
        """Compute the gradients of the step `number` twice.

        Raises:
          MeshDSLError: the two differ, or replicas of a parameter or a gradient; it names devices.
        """
        if self._compiled is None:
            options = self._job.step.compiler_options
            program = jax.jit(self._digests, compiler_options=options or None)
            self._compiled = program.lower(state, batch).compile()
        first, second = (np.asarray(self._compiled(state, batch)) for _ in range(2))
        for j, (what, sharding) in enumerate(self._compared):
            if wrong := _other_than_replicas(first[:, j], sharding):
                have = "have" if len(wrong) > 1 else "has"
                self._end(number, wrong, f"{have} other bits of {what} than other replicas")
        if wrong := np.flatnonzero((first != second).any(1)).tolist():
            j = int(np.flatnonzero((first != second).any(0))[0])
            self._end(
                number, wrong, f"came to other bits of {self._compared[j][0]} the second time"
            )

    def _digests(self, state: State, batch: dict[str, Tensor]) -> jax.Array:
        """The digests of parameters and gradients, uint32 [devices, arrays], on every device."""
        mesh = self._job.mesh
        grads = self._job.step.gradients(state, batch)
        arrays = jax.tree.leaves((_kept(state), grads))
        specs = [sharding.spec for _, sharding in self._compared]
        per_device = jax.shard_map(
            lambda *parts: jnp.stack([digest(part) for part in parts])[None],
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=PartitionSpec(mesh.axis_names),
            check_vma=False,  # it would take replicas to be equal, which is the question
        )(*arrays)
        everywhere = NamedSharding(mesh, PartitionSpec())
        return jax.lax.with_sharding_constraint(per_device, everywhere)

    def _end(self, number: int, wrong: Sequence[int], what: str) -> None:
        devices = [self._devices[i] for i in wrong[:_NAMED]]
        names = ", ".join(
            f"{d.id}" + (f" of process {d.process_index}" if hosts.count() > 1 else "")
            for d in devices
        )
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise MeshDSLError(
            f"step {number}: device{'s' * (len(wrong) > 1)} {names}{more} {what} (guard.repeat); "
            "a device computes or keeps wrong numbers; leave it out, and go on from a checkpoint "
            f"of before: meshdsl train --resume --out {self._folder}"
        )


def _kept(state: State) -> dict[str, Any]:
    """What a run carries from step to step and must not change by itself."""
    return {"params": state.params, "adapters": state.adapters}


def _shardings(tree: Any) -> dict[str, NamedSharding]:
    """The sharding of each array of a tree, by its name, in the order of `jax.tree.leaves`."""
    return {name: jax.tree.leaves(leaf)[0] for name, leaf in named_leaves(tree).items()}


def _other_than_replicas(digests: np.ndarray, sharding: NamedSharding) -> list[int]:
    """The devices, by their places in the mesh, that differ from most of their replicas.

    Where as many say one thing as another, all of these.

    Args:
      digests: uint32 [devices].
    """
    mesh: Mesh = sharding.mesh  # pyright: ignore[reportAssignmentType]  # not an AbstractMesh
    split = [
        axis
        for axes in sharding.spec
        if axes is not None
        for axis in ((axes,) if isinstance(axes, str) else axes)
    ]
    rest = [axis for axis in mesh.axis_names if axis not in split]
    order = [mesh.axis_names.index(axis) for axis in (*split, *rest)]
    replicas = math.prod(mesh.shape[axis] for axis in rest)
    places = np.arange(mesh.size).reshape(mesh.devices.shape).transpose(order)
    places = places.reshape(-1, replicas)
    found: list[int] = []
    for row in places[(digests[places] != digests[places][:, :1]).any(1)]:
        counts = Counter(digests[row].tolist()).most_common()
        most = counts[0][0] if counts[0][1] > counts[1][1] else None
        found += [int(i) for i in row if digests[i] != most]
    return sorted(found)
