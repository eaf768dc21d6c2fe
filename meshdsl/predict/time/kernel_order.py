"""The order in which a compiler runs the kernels of a block, so that collectives are hidden.

The TPU compiler makes its schedule from the end of a block to its beginning: at each moment it
takes a kernel whose result is only used by what it has placed already. A collective that runs while
the device computes is placed where its result is first used; kernels that have nothing to do with
it follow, and when these take as long as the collective, its start. One such collective is under
way at a time, and none while a loop runs that has its own.

Of several kernels the compiler takes the one that ends the longest chain, so that what is short,
such as the product that gives a gradient of a weight, is left for the time of a collective.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from meshdsl.predict.kernels.kernels import Kernel

_HARDLY = 0.1  # of a collective's time


def scheduled(
    kernels: Sequence[Kernel],
    seconds: Callable[[Kernel], float],
    is_asynchronous: Callable[[Kernel], bool],
) -> list[Kernel]:
    """The kernels of a block in the order of the schedule; a collective stands where it starts.

    Args:
      kernels: in program order.
      seconds: how long a kernel takes.
      is_asynchronous: whether it is a collective that runs while the device computes.
    """
    before = _needed(kernels)
    users = [0] * len(kernels)
    for needed in before:
        for i in needed:
            users[i] += 1
    lasts = [seconds(kernel) for kernel in kernels]
    hides = [is_asynchronous(kernel) for kernel in kernels]
    moving = _chains(before, [s if h else 0.0 for s, h in zip(lasts, hides, strict=True)])
    chains = _chains(before, lasts)
    alone = [_communicates(kernel) for kernel in kernels]
    ready = {i for i, count in enumerate(users) if not count}
    placed: list[Kernel] = []
    now, under_way, satisfied = 0.0, -1, math.inf

    def place(i: int) -> None:
        placed.append(kernels[i])
        for n in before[i]:
            users[n] -= 1
            if not users[n]:
                ready.add(n)

    while ready or under_way >= 0:
        if under_way >= 0 and now >= satisfied:
            place(under_way)
            under_way = -1
            continue
        if under_way < 0 and (moves := [i for i in ready if hides[i]]):
            under_way = max(moves, key=lambda i: (moving[i], lasts[i], i))
            ready.remove(under_way)
            satisfied = now + lasts[under_way]
            continue
        able = [i for i in ready if not hides[i] and not (under_way >= 0 and alone[i])]
        if not able:
            now = satisfied
            continue
        chosen = max(able, key=lambda i: (moving[i], chains[i], i))
        ready.remove(chosen)
        place(chosen)
        now += lasts[chosen]
    return placed[::-1]


def without_products(order: Sequence[Kernel], seconds: Callable[[Kernel], float]) -> set[Kernel]:
    """The collectives of a block with hardly a product between them and the first use of theirs.

    A compiler that spreads collectives over the products beside them lets these wait.
    """
    found = set()
    before = 0.0  # seconds of products so far
    begun: dict[int, tuple[Kernel, float]] = {}
    for kernel in order:
        for buffer in kernel.sources():
            if (start := begun.pop(id(buffer), None)) is not None:
                collective, then = start
                if before - then < _HARDLY * seconds(collective):
                    found.add(collective)
        before += seconds(kernel) if kernel.dots or kernel.loop is not None else 0.0
        if kernel.collective is not None:
            begun |= {id(b): (kernel, before) for b in kernel.writes}
    return found


def _needed(kernels: Sequence[Kernel]) -> list[set[int]]:
    """For each kernel, the positions of those that have to run before it.

    These make what it reads, and read what it writes over.
    """
    makers: dict[int, int] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    found: list[set[int]] = []
    for i, kernel in enumerate(kernels):
        read = {id(buffer) for buffer in kernel.sources()}
        needed = {makers[b] for b in read | {id(b) for b in kernel.behind} if b in makers}
        for buffer in kernel.writes:
            needed |= readers[id(buffer)]
            if id(buffer) in makers:
                needed.add(makers[id(buffer)])
            makers[id(buffer)] = i
        for b in read:
            readers[b].add(i)
        found.append(needed - {i})
    return found


def _chains(before: Sequence[set[int]], seconds: Sequence[float]) -> list[float]:
    """For each kernel the seconds of the longest chain of kernels that ends with it."""
    found: list[float] = []
    for needed, own in zip(before, seconds, strict=True):
        found.append(own + max((found[i] for i in needed), default=0.0))
    return found


def _communicates(kernel: Kernel) -> bool:
    """Whether a loop or a branch holds a collective."""
    inside = [
        *(kernel.loop.kernels if kernel.loop else ()),
        *(k for b in kernel.branches for k in b),
    ]
    return any(k.collective is not None or _communicates(k) for k in inside)
