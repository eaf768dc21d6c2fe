"""When kernels run and how long their operands live, as far as a compiler's schedule changes what lives at once.

XLA's scheduler works from the end of a program and places what ends in a collective as late as it can, beside what hides it. So the gradient of the last
weights, which is reduced over devices and then only waits for the optimizer, is not computed before the loop over the layers but after it, and its operands
live through the loop. A collective runs beside the product that follows, so what it reads lives until that product has run.

It does not always wait: of the steps of Llama 3 that libtpu compiled with meshdsl's options, it did not in fsdp-sequence at a length of 8192. The estimate is then
too high by what the product reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshdsl.estimate.kernels import Kernel


def late(kernels: list[Kernel]) -> list[Kernel]:
    """`kernels` with what only waits through a loop, and ends in a collective, after it: beside the largest collective that stands there, or where it is needed."""
    loops = [i for i, kernel in enumerate(kernels) if kernel.loop is not None]
    first: dict[
        int, int
    ] = {}  # of a buffer: where it is first used, by kernels in their new places
    places: dict[int, tuple[int, int]] = {}  # of those that can wait
    for i in reversed(range(len(kernels))):
        kernel, at = kernels[i], i
        use = min((first.get(id(b), len(kernels)) for b in kernel.writes), default=len(kernels))
        waits = [loop for loop in loops if i < loop < use]
        if waits and kernel.loop is None:
            beside = [j for j in range(waits[-1], use) if kernels[j].collective is not None]
            places[i] = (
                (max(beside, key=lambda j: kernels[j].collective.bytes), 1) if beside else (use, -1)
            )
            at = places[i][0]
        for b in kernel.reads:
            first[id(b)] = min(first.get(id(b), len(kernels)), at)
    moved = _with_collectives(kernels, places)
    return [
        kernels[i]
        for i in sorted(
            range(len(kernels)), key=lambda i: (*(places[i] if i in moved else (i, 0)), i)
        )
    ]


def _with_collectives(kernels: list[Kernel], places: Iterable[int]) -> set[int]:
    """Of those that can wait, the collectives, what leads to one and what follows from these."""
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


def until(kernels: list[Kernel], i: int) -> int:
    """The place of the kernel beside which the collective at `i` runs: the next product before anything that needs its result, or itself."""
    made = {id(b) for b in kernels[i].writes}
    for j in range(i + 1, len(kernels)):
        if kernels[j].loop is not None or any(id(b) in made for b in kernels[j].reads):
            break
        if kernels[j].dots:
            return j
    return i
