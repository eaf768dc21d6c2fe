"""One collective of a program, in the words that jax uses for it.

Three descriptions of a step can be compared because they all end in this record: what the lowering recorded, what the
jaxpr says (`from_jaxpr`) and what the compiler made of it (`from_hlo`).
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

_GRADIENT = re.compile(r"(^|/)gradient/")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective over mesh axes.

    operation: psum, pmax, pmin, all_gather, psum_scatter, all_to_all or ppermute.
    axes: mesh axes in the mesh's order. Axes of size 1 move nothing and are left out.
    count: how often it runs in one call of the program; the lengths of the scans around it are multiplied in.
    bytes: of one execution on one device: the larger of its operand and its result.
    dtype: numpy's name, e.g. `bfloat16`.
    scope: the name stack it was traced in.
    """

    operation: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    dtype: str
    scope: str = ""

    @property
    def phase(self) -> str:
        """`forward`, `recompute` or `backward`, see `phase_of`."""
        return phase_of(self.scope)

    @property
    def total_bytes(self) -> int:
        """Bytes of all executions in one call, on one device."""
        return self.count * self.bytes


def phase_of(scope: str) -> str:
    """The pass that a name stack tells: `forward`, `backward`, or `recompute` for a forward part run again by `jax.checkpoint`.

    Transposed code is named `transpose(...)`, and the sums over devices of whole gradients `gradient`; `jax.checkpoint` names
    what it runs again `rematted_computation`, which stands inside the transposed scope.
    """
    if "rematted_computation" in scope:
        return "recompute"
    return "backward" if "transpose(" in scope or _GRADIENT.search(scope) else "forward"


def phase_in_step(scope: str) -> str:
    """As `phase_of`, and `optimizer` for what stands outside of the lowered function; a compiler's own code has no scope and is no optimizer's."""
    return "optimizer" if scope and "shard_map" not in scope else phase_of(scope)


def live_axes(axes: Iterable[str], axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The `axes` larger than 1, in the order of the mesh."""
    wanted = set(axes)
    return tuple(axis for axis, size in axis_sizes.items() if axis in wanted and size > 1)


def crossed(
    pairs: Iterable[tuple[int, int]], axes: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """The `axes` along which any of the `pairs` of positions moves, positions counted along `axes` major first."""
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
