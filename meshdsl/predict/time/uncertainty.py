"""How far an estimated step may be off, and which layouts the estimate cannot tell apart.

A chip's `residuals` (docs/hardware.md) say how far estimates of each kind of work were off on
programs that its figures were not fitted to. An error belongs to a piece of work, such as a product
of certain sizes: each of its executions, in every layer and under every layout, is off by the same
share. Errors of different pieces are taken as independent. So the difference of two layouts is as
uncertain as what they do not share, and a collective counts for as long as the device waits for it.

Beside these stands what is not foreseen at all, such as copies that the compiler adds: the `step`
is off by it under every layout alike, and each `layout` by more of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from meshdsl.machine import Chip
from meshdsl.machine.timeline import FUSED, Ran, Timeline
from meshdsl.predict.explanation import Estimate
from meshdsl.predict.kernels.kernels import Dot, Kernel
from meshdsl.predict.time.kernel_time import is_fused, is_grouped

# Two steps of which a smaller share of the uncertain work differs are partly the same layout: what
# is not foreseen of one holds of the other, the more so the less they differ.
_DIFFERENT = 0.05
# A layout that is faster by a smaller share of the step is not worth a compilation.
_WORTH = 0.005
# What a whole step is off by, under every layout alike, and under one layout.
STEP, LAYOUT = "step", "layout"
# So many standard deviations behind, a layout is faster than the best with a chance of 1 in 6.
_CLOSE = 1.0


class Estimated(Protocol):
    """A layout: its estimate, and the seconds that its step is believed to take by now.

    These are those of the compiler, or of the estimate.
    """

    @property
    def estimate(self) -> Estimate | None: ...

    @property
    def step(self) -> float | None: ...


E = TypeVar("E", bound=Estimated)


def deviations(ran: Timeline, chip: Chip, axis_sizes: Mapping[str, int]) -> dict[str, float]:
    """The standard deviation in seconds of each piece of work of a step, by its name.

    Empty for a chip without residuals.
    """
    if not chip.residuals:
        return {}
    seconds = {**ran.work, STEP: ran.step, LAYOUT: ran.step}
    for one in ran.collectives:
        work = _moved(one, axis_sizes)
        seconds[work] = seconds.get(work, 0.0) + one.exposed
    found = {work: took * chip.residuals.get(kind_of(work), 0.0) for work, took in seconds.items()}
    return {work: deviation for work, deviation in found.items() if deviation}


def work_of(kernel: Kernel) -> str:
    """What a kernel computes: its kind, then the sizes of its products, or of its largest array."""
    if kernel.dots:
        products = " ".join(dict.fromkeys(map(_sizes, kernel.dots)))
        assumed = is_fused(kernel) and not is_grouped(kernel)
        return f"{FUSED if assumed else 'product'} {products}"
    arrays = ((b.bytes, b.dtype, b.shape) for b in (*kernel.reads, *kernel.writes))
    _, dtype, shape = max(arrays, default=(0, "", ()))
    return f"pass {kernel.primitive} {dtype} {'x'.join(map(str, shape))}".rstrip()


def kind_of(work: str) -> str:
    """The kind of a piece of work, a key of a chip's `residuals`."""
    return work.partition(" ")[0]


def _sizes(dot: Dot) -> str:
    return f"{dot.dtype} {dot.batch}x{dot.m}x{dot.k}x{dot.n}"


def _moved(ran: Ran, axis_sizes: Mapping[str, int]) -> str:
    """What a collective moves, whatever the axes are called."""
    one = ran.collective
    size = math.prod(axis_sizes[axis] for axis in one.axes)
    return f"collective {one.operation} of {one.bytes} B over {size}"


def of_difference(one: Estimate, other: Estimate) -> float:
    """The standard deviation of the difference of two steps; what both do alike adds nothing."""
    mine, others = one.deviations, other.deviations
    names = (mine.keys() | others.keys()) - {STEP, LAYOUT}
    pairs = [(mine.get(name, 0.0), others.get(name, 0.0)) for name in names]
    apart, both = sum(abs(a - b) for a, b in pairs), sum(a + b for a, b in pairs)
    unlike = min(apart / (_DIFFERENT * both), 1.0) if both else 0.0
    own = unlike * math.hypot(mine.get(LAYOUT, 0.0), others.get(LAYOUT, 0.0))
    common = mine.get(STEP, 0.0) - others.get(STEP, 0.0)
    return math.hypot(own, common, *(a - b for a, b in pairs))


def plain_estimate(estimate: Estimate | None) -> dict[str, float | None]:
    """An estimate as JSON has it, with the standard deviation of the step."""
    if estimate is None:
        return {"estimated": None, "uncertainty": None}
    return {"estimated": estimate.step, "uncertainty": estimate.uncertainty}


def behind(one: Estimated, known: Sequence[Estimated]) -> float:
    """By how many standard deviations `one` is behind the fastest of the `known`.

    It is expected to differ as estimated from the known one that it has most in common with.
    Infinite where the estimate leaves no doubt, or its uncertainty is not known.
    """
    mine = one.estimate
    if mine is None:
        return math.inf
    differing = (
        (of_difference(mine, other.estimate), other.step + mine.step - other.estimate.step)
        for other in known
        if other.estimate is not None and other.step is not None
    )
    spread, expected = min(differing, default=(0.0, 0.0))
    if not spread:
        return math.inf
    fastest = min(other.step for other in known if other.step is not None)
    return (expected - (1 - _WORTH) * fastest) / spread


def close(some: Iterable[E], known: Sequence[Estimated]) -> list[E]:
    """Those that may well be faster than the fastest of the `known`, the likeliest first.

    That is a chance of 1 in 6 or more that one is faster by what is worth a compilation.
    """
    ranked = sorted(((behind(one, known), i, one) for i, one in enumerate(some)))
    return [one for far, _, one in ranked if far < _CLOSE]
