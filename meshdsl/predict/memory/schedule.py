"""When kernels run, as far as a compiler's schedule changes what lives at once.

XLA's scheduler works from the end of a program and places a collective as late as it can, beside
what hides it. So the gradient of the last weights, which is reduced over devices and then only
waits for the optimizer, is not reduced before the loop over the layers but after it, and lives
through the loop. The product that makes the gradient is not late, because its operands are larger:
see `derivatives.together`. A collective runs beside the product that follows, so what it reads
lives until that product has run.

The scheduler does not always do so; where it reduces early, the estimate of memory is too high by
what the collective reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshdsl.predict.kernels.kernels import Kernel


def delayed(kernels: list[Kernel]) -> list[Kernel]:
    """`kernels` in the order in which the scheduler places them.

    A collective, or element-wise code around one, whose result is only used after a loop behind it
    is moved behind that loop: to the largest collective there, or else to where its result is used.
    """
    loops = [i for i, kernel in enumerate(kernels) if kernel.loop is not None]
    # For the id of a buffer where it is used first, in the order with kernels moved. A place is a
    # position and whether it is in front of the kernel there (-1), that kernel (0) or behind it.
    first_use: dict[int, tuple[int, int]] = {}
    end = len(kernels), 0
    places: dict[int, tuple[int, int]] = {}  # where kernels that can wait would go
    for i in reversed(range(len(kernels))):
        kernel, at = kernels[i], (i, 0)
        use = min((first_use.get(id(b), end) for b in kernel.writes), default=end)
        waits = [loop for loop in loops if i < loop and (loop, 0) < use]
        if waits and kernel.loop is None and not kernel.dots:
            beside = [
                j
                for j in range(waits[-1], len(kernels))
                if kernels[j].collective is not None and (j, 0) < use
            ]
            at = (max(beside, key=lambda j: _bytes(kernels[j])), 1) if beside else (use[0], -1)
            places[i] = at
        for b in kernel.reads:
            first_use[id(b)] = min(first_use.get(id(b), end), at)
    moved = _around_collectives(kernels, places)
    keys = [(*(places[i] if i in moved else (i, 0)), i) for i in range(len(kernels))]
    return [kernels[i] for *_, i in sorted(keys)]


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
