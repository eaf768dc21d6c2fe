"""The figures of a chip, from the times that were measured on its devices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshdsl.calibration.timing import Spread, Subject
from meshdsl.machine.chips import Chip
from meshdsl.machine.network import levels_of_form, seconds_over

Times = Sequence[tuple[Subject, Spread]]


@dataclass(frozen=True)
class Figure:
    """A figure of a hardware file: its value in the base unit, and how it was found."""

    value: float
    how: str


def of_products(times: Times, peak: float) -> dict[str, Figure]:
    """The peak of products and what they reach of it.

    Args:
      peak: FLOP/s that are known of the chip; 0 where nothing is known: then the peak is what the
        fastest product in bfloat16 reaches.
    """
    rates = {
        dtype: [
            subject.size / spread.median
            for subject, spread in times
            if subject.kind == "product" and subject.name == dtype
        ]
        for dtype in ("bfloat16", "float32")
    }
    usual = {dtype: statistics.geometric_mean(found) for dtype, found in rates.items()}
    spread = _spread(times, "product")
    found = {}
    if not peak:
        peak = max(rates["bfloat16"])
        found["flops"] = Figure(peak, f"the fastest product in bfloat16, {spread}")
    found["matmul_efficiency"] = Figure(
        usual["bfloat16"] / peak, f"the geometric mean of products in bfloat16, {spread}"
    )
    found["float32_slowdown"] = Figure(
        usual["bfloat16"] / usual["float32"], f"products in float32 to those in bfloat16, {spread}"
    )
    return found


def of_passes(times: Times, bandwidth: float) -> dict[str, Figure]:
    """The bandwidth of memory, and how many elements a second are computed.

    Both are fitted to passes that move few bytes for an element, or many.

    Args:
      bandwidth: bytes/s that are known of the chip's memory, or 0.
    """
    passes = [(subject, spread.median) for subject, spread in times if subject.kind == "pass"]
    rows = [(subject.size, float(subject.elements)) for subject, _ in passes]
    per_byte, per_element = _fit(rows, [seconds for _, seconds in passes])
    how = f"fitted to passes of 8 to 20 bytes an element, {_spread(times, 'pass')}"
    found = {}
    if per_byte:
        reached = 1 / per_byte
    else:  # computing hides all of the memory: at least the most that any pass has moved
        reached = max(subject.size / seconds for subject, seconds in passes)
    if bandwidth:
        found["hbm_efficiency"] = Figure(reached / bandwidth, how)
    else:
        found["hbm_bandwidth"] = Figure(reached, how)
    if per_element:
        found["vector_rate"] = Figure(1 / per_element, how)
    return found


def beside(times: Times, chip: Chip) -> dict[str, Figure]:
    """What comes beside products and passes: copies of operands, and memory that is taken anew.

    Args:
      chip: with the figures of products and of memory.
    """
    rate = chip.flops * chip.matmul_efficiency / chip.float32_slowdown
    layers = [(s, spread.median) for s, spread in times if s.kind == "layers"]
    left = [max(seconds - s.size / rate, 1e-3 * seconds) for s, seconds in layers]
    per_moved, per_kept = _fit([(4.0 * s.elements, s.kept) for s, _ in layers], left)
    of_layers = _spread(times, "layers")
    found = {}
    if per_moved:
        found["operand_bandwidth"] = Figure(
            1 / per_moved,
            f"what layers with their gradients take beside the FLOPs of products, {of_layers}",
        )
    ((copied, spread),) = ((s, spread) for s, spread in times if s.kind == "fresh")
    written = 2 * copied.size / (chip.hbm_bandwidth * chip.hbm_efficiency)
    per_fresh = max(spread.median - chip.step_latency - written, 0.0) / copied.size
    if per_fresh + per_kept:
        found["fresh_bandwidth"] = Figure(
            1 / (per_fresh + per_kept),
            f"a call whose result is a copy, {_spread(times, 'fresh')}, and layers that keep more "
            f"or less, {of_layers}",
        )
    return found


def of_links(times: Times, chip: Chip, *, between_nodes: bool) -> dict[str, Figure]:
    """Latency and bandwidth that describe all collectives within nodes, or between them, best.

    They serve collectives that have no times of their own.

    Args:
      chip: with `link_efficiency` of 1.
    """
    name = "scale_out" if between_nodes else "link"
    rows, seconds = [], []
    for subject, spread in times:
        levels = levels_of_form(subject.name, chip)
        if [level.kind == "scale-out" for level in levels] != [between_nodes]:
            continue

        def cost(latency: float, bandwidth: float, subject: Subject = subject) -> float:
            known = {f"{name}_latency": latency, f"{name}_bandwidth": bandwidth}
            one = replace(chip, collectives={}, link_efficiency=1.0, **known)
            return seconds_over(levels_of_form(subject.name, one), subject.kind, subject.size, one)

        rows.append((cost(0.0, 1.0), cost(1.0, math.inf)))
        seconds.append(spread.median)
    per_byte, latency = _fit(rows, seconds)
    how = f"fitted to all collectives, {_spread(times, *{s.kind for s, _ in times})}"
    found = {f"{name}_bandwidth": Figure(1 / per_byte if per_byte else 1e15, how)}
    return found | {f"{name}_latency": Figure(max(latency, 1e-9), how)}


def curves(times: Times) -> dict[str, dict[str, list[tuple[float, Spread]]]]:
    """For each collective and form of a group its times by bytes, none less than a smaller one's.

    A time that is less was disturbed, or the one before it was: both get the mean of their
    logarithms.
    """
    found: dict[str, dict[str, list[tuple[float, Spread]]]] = {}
    for subject, spread in times:
        at = found.setdefault(subject.kind, {}).setdefault(subject.name, [])
        at.append((subject.size, spread))
    for forms in found.values():
        for points in forms.values():
            points.sort(key=lambda point: point[0])
            rising = _rising([math.log(spread.median) for _, spread in points])
            points[:] = [
                (size, replace(spread, median=math.exp(level)))
                for (size, spread), level in zip(points, rising, strict=True)
            ]
    return found


def _rising(values: Iterable[float]) -> list[float]:
    """The nearest values of which none is less than the one before (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools.pop(-2), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return [value for value, count in pools for _ in range(count)]


def _fit(rows: Sequence[tuple[float, float]], seconds: Sequence[float]) -> tuple[float, float]:
    """The factors of both columns, of which neither is negative, with the least relative errors."""
    relative = np.array(rows) / np.array(seconds)[:, None]
    ones = np.ones(len(seconds))
    both = np.linalg.lstsq(relative, ones, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = [float(column @ ones / (column @ column)) for column in relative.T]
    errors = [((column * x - 1) ** 2).sum() for column, x in zip(relative.T, alone, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


def _spread(times: Times, *kinds: str) -> str:
    """How far the quartiles lie from the median, in words."""
    widths = [
        (spread.high - spread.low) / 2 / spread.median for s, spread in times if s.kind in kinds
    ]
    count = max(spread.samples for s, spread in times if s.kind in kinds)
    return f"quartiles +-{statistics.median(widths):.0%} around medians of {count} samples"
