"""Kernels that are being built, which further equations of a block may join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshdsl.predict.kernels.equations import Equation
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from meshdsl.predict.kernels.primitives import ELEMENTWISE, REORDERS
from meshdsl.predict.kernels.written_values import SMALL


@dataclass(eq=False)
class Draft:
    """A kernel that is being built: further equations of the block may join the kernel.

    Attributes:
      place: the position of the kernel among the kernels of the block.
      elements: the number of elements that the kernel goes over; None for a kernel that an equation
        other than element-wise code or a reduction begins.
      equations: all equations that the kernel computes, those of unwritten operands included.
      of_batch: whether the kernel is a batch of products.
    """

    kernel: Kernel
    place: int
    elements: int | None = None
    equations: set[Equation] = field(default_factory=set)
    of_batch: bool = False


def is_heavy(draft: Draft) -> bool:
    """Whether a kernel makes its result by products, or by a loop, in an order of its own."""
    return bool(draft.kernel.dots) or draft.kernel.loop is not None


def is_bare(draft: Draft) -> bool:
    """Whether a kernel is one element-wise operation, and no chain of them."""
    large = [e for e in draft.equations if any(v.bytes > SMALL for v in e.outputs)]
    return len(large) == 1 and all(e.primitive in ELEMENTWISE - REORDERS for e in draft.equations)


def postpone(
    draft: Draft, kernels: list[Kernel], drafts: Iterable[Draft], others: Iterable[Buffer]
) -> bool:
    """Moves a kernel, and those that need what it writes, behind all other kernels of a block.

    Args:
      others: buffers that the kernel is to read too.

    Returns:
      Whether it did so; not if one of the `others` is computed from what the kernel writes.
    """
    written, after = {id(b) for b in draft.kernel.writes}, [draft.kernel]
    for kernel in kernels[draft.place + 1 :]:
        if any(id(source) in written for source in kernel.sources()):
            written |= {id(b) for b in kernel.writes}
            after.append(kernel)
    if any(id(b) in written for b in others):
        return False
    moved = {id(kernel) for kernel in after}
    kernels[:] = [kernel for kernel in kernels if id(kernel) not in moved] + after
    places = {id(kernel): i for i, kernel in enumerate(kernels)}
    for other in drafts:
        other.place = places[id(other.kernel)]
    return True
