"""When kernels run, as far as a compiler's schedule changes what lives at once.

XLA's scheduler works from the end of a program and places a collective as late as it can, beside
what hides it. So the gradient of the last weights, which is reduced over devices and then only
waits for the optimizer, is not reduced before the loop over the layers but after it, and lives
through the loop. The product that makes the gradient is late too, unless its operands are larger,
or there is a collective before the loop that it can hide. A sum, such as that of a loss, is never
late: its operand is larger.

What is gathered stands beside the product before its use. A collective runs beside the product that
follows, so what it reads lives until that product has run.

The scheduler does not always do so; where it reduces early, the estimate of memory is too high by
what the collective reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshdsl.predict.kernels.kernels import Kernel
from meshdsl.predict.kernels.reordered import COPY, REORDER, REORDER_ROWS
from meshdsl.predict.kernels.written_values import SMALL


def delayed(kernels: list[Kernel]) -> list[Kernel]:
    """`kernels` in the order in which the scheduler places them.

    A collective, or what leads to one, whose result is only used after a loop behind it is moved
    behind that loop: to the largest collective there, or else to where its result is used.
    """
    loops = [i for i, kernel in enumerate(kernels) if kernel.loop is not None]
    # For the id of a buffer where it is used first, in the order with kernels moved. A place is a
    # position and whether it is in front of the kernel there (-1), that kernel (0) or behind it.
    first_use: dict[int, tuple[int, int]] = {}
    end = len(kernels), 0
    moved = {id(b) for kernel in kernels if kernel.collective is not None for b in kernel.writes}
    last = {id(b): i for i, kernel in enumerate(kernels) for b in kernel.reads}
    places: dict[int, tuple[int, int]] = {}  # where kernels that can wait would go
    gathers = (k for k in kernels if k.collective and k.collective.operation == "all_gather")
    gathered = {id(b) for kernel in gathers for b in kernel.writes}
    soon: dict[int, tuple[int, int]] = {}  # where what is gathered stands

    def hides(i: int, loop: int) -> bool:
        """Whether it is a product that a collective in front of the loop can run beside."""
        early = (j for j in range(i + 1, loop) if j not in places)
        return bool(kernels[i].dots) and any(_bytes(kernels[j]) > SMALL for j in early)

    for i in reversed(range(len(kernels))):
        kernel, at = kernels[i], (i, 0)
        use = min((first_use.get(id(b), end) for b in kernel.writes), default=end)
        waits = [loop for loop in loops if i < loop and (loop, 0) < use]
        if waits and not hides(i, waits[0]) and _can_wait(kernel, waits[0], last, moved):
            beside = [
                j
                for j in range(waits[-1], len(kernels))
                if kernels[j].collective is not None and (j, 0) < use
            ]
            at = (max(beside, key=lambda j: _bytes(kernels[j])), 1) if beside else (use[0], -1)
            places[i] = at
        elif use < end and _is_gathered(kernel, gathered):
            at = (use[0], -1)
            if kernel.collective is not None:
                before = [j for j in range(i + 1, use[0]) if kernels[j].dots]
                at = (before[-1], -1) if before else at
            soon[i] = at
        for b in kernel.reads:
            first_use[id(b)] = min(first_use.get(id(b), end), at)
    late = _around_collectives(kernels, places)
    places = soon | {i: places[i] for i in late}
    keys = [(*places.get(i, (i, 0)), i) for i in range(len(kernels))]
    return [kernels[i] for *_, i in sorted(keys)]


def _can_wait(kernel: Kernel, loop: int, last: dict[int, int], moved: set[int]) -> bool:
    """Whether what a kernel gives needs as much memory as what it alone would keep through a loop.

    Args:
      last: for the id of a buffer the position of the last kernel that reads it.
      moved: ids of what collectives give.
    """
    if kernel.loop is not None or kernel.collective is not None:
        return kernel.loop is None
    kept = (b for b in kernel.reads if last[id(b)] < loop and not b.name and id(b) not in moved)
    return sum(b.bytes for b in kept) <= sum(b.bytes for b in kernel.writes)


def _is_gathered(kernel: Kernel, gathered: set[int]) -> bool:
    """Whether a kernel gathers an array, or copies one of the `gathered` into another order."""
    copies = kernel.primitive in (COPY, REORDER, REORDER_ROWS) and len(kernel.reads) == 1
    return any(id(b) in gathered for b in (kernel.reads if copies else kernel.writes))


def _bytes(kernel: Kernel) -> int:
    return kernel.collective.bytes if kernel.collective is not None else 0


def _around_collectives(kernels: list[Kernel], places: Iterable[int]) -> set[int]:
    """Of the kernels that can wait, those at the given `places` in `kernels`, the ones that do.

    They are collectives, what leads to a collective, and what follows from one that waits.
    """
    waiting = sorted(places)
    found = {i for i in waiting if kernels[i].collective is not None}
    reduced = {id(b) for kernel in kernels if kernel.collective is not None for b in kernel.reads}
    before = -1
    while len(found) != before:
        before = len(found)
        read = reduced | {id(b) for i in found for b in kernels[i].reads}
        made = {id(b) for i in found for b in kernels[i].writes}
        found |= {
            i
            for i in waiting
            if any(id(b) in read for b in kernels[i].writes)
            or any(id(b) in made for b in kernels[i].reads)
        }
    return found


def runs_until(kernels: list[Kernel], i: int) -> int:
    """The position of the kernel beside which the collective at `i` runs.

    That is the next product before anything that needs the collective's result; `i` itself if there
    is none.
    """
    made = {id(b) for b in kernels[i].writes}
    for j in range(i + 1, len(kernels)):
        if kernels[j].loop is not None or any(id(b) in made for b in kernels[j].reads):
            break
        if kernels[j].dots:
            return j
    return i
