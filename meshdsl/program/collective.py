"""One collective of a program, described in the words that JAX uses for it.

Three accounts of a program end in this description and can therefore be compared: what the lowering
recorded, what the jaxpr says (`from_jaxpr`), and what the compiler made of it (`from_hlo`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

_GRADIENT = re.compile(r"(^|/)gradient/")
_OPTIMIZER = re.compile(r"(^|/)optimizer/")
# What stands around the code of a lowered function. On one device there is no `shard_map`, but the
# function that `lower` gives to `jax.jit`.
_LOWERED = re.compile(r"shard_map|jit\(_spmd\)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective over mesh axes.

    Attributes:
      operation: psum, pmax, pmin, all_gather, psum_scatter, all_to_all or ppermute.
      axes: mesh axes in the mesh's order. Axes of size 1 move nothing and are left out.
      count: how often it runs in one call of the program; a collective in a scan counts as often as
        the scan is long.
      bytes: of one execution on one device: the larger of its operand and its result.
      dtype: NumPy's name, such as `bfloat16`.
      scope: the name stack that it was traced in.
      whole: whether the devices that work together are all those along the axes, in their order;
        what a compiler makes need not be.
    """

    operation: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    dtype: str
    scope: str = ""
    whole: bool = True

    @property
    def phase(self) -> str:
        """`forward`, `recompute`, `backward` or `optimizer`, see `phase_of`."""
        return phase_of(self.scope)

    @property
    def total_bytes(self) -> int:
        """Bytes of all executions in one call, on one device."""
        return self.count * self.bytes


def phase_of(scope: str) -> str:
    """What the code under a name stack belongs to: `forward`, `recompute`, `backward`, `optimizer`.

    `recompute` is a part of the forward pass that `jax.checkpoint` runs again. JAX names transposed
    code `transpose(...)`; the sums of whole gradients over devices are named `gradient` here, and
    what an optimizer lowers is named `optimizer`. What `jax.checkpoint` runs again is named
    `rematted_computation`, inside the transposed scope.
    """
    if _OPTIMIZER.search(scope):
        return "optimizer"
    if "rematted_computation" in scope:
        return "recompute"
    return "backward" if "transpose(" in scope or _GRADIENT.search(scope) else "forward"


def phase_in_step(scope: str) -> str:
    """The phase of a training step: as `phase_of`, or `optimizer` outside of the lowered function.

    Code that a compiler adds has no scope, and does not count as the optimizer's.
    """
    return "optimizer" if scope and not _LOWERED.search(scope) else phase_of(scope)


def live_axes(axes: Iterable[str], axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Those of the `axes` that are larger than 1, in the order of the mesh."""
    wanted = set(axes)
    return tuple(axis for axis, size in axis_sizes.items() if axis in wanted and size > 1)


def crossed(
    pairs: Iterable[tuple[int, int]], axes: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Those of the `axes` along which a permutation moves anything, in the order of the mesh.

    Args:
      pairs: source and target of each move, as positions that count through `axes`, the last axis
        fastest.
    """
    found = set()
    for source, target in pairs:
        for axis in reversed(axes):
            source, a = divmod(source, axis_sizes[axis])
            target, b = divmod(target, axis_sizes[axis])
            if a != b:
                found.add(axis)
    return live_axes(found, axis_sizes)


def summary(
    collectives: Iterable[Collective],
) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """`{(operation, axes): (count, total bytes)}`, sorted by operation and axes."""
    totals: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for c in collectives:
        count, size = totals.get((c.operation, c.axes), (0, 0))
        totals[c.operation, c.axes] = (count + c.count, size + c.total_bytes)
    return dict(sorted(totals.items()))
