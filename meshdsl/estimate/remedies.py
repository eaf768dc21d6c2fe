"""What to split when a program does not fit: which rule, over which axis, and how much it would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from meshdsl.estimate.explanation import MemoryView, OpView, TensorView
from meshdsl.figures import byte_words

_WORTHWHILE = 0.01  # of the chip's memory: what a rule must save to be named
_AT_REST = ("parameter", "gradient", "optimizer")


def remedies(
    memory: MemoryView, ops: tuple[OpView, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Ways to make it fit, the one that saves most first; none where it fits, or no machine is known.

    What is at rest can be split over every axis that does not split it yet; the largest of what lives at the peak
    over an axis that the op leaves unused,.
    """
    if memory.fits is not False:
        return ()
    rest = [t for t in memory.at_rest if t.kind in _AT_REST]
    capacity = memory.capacity or 0
    rules = (_rule(axis, size, rest) for axis, size in sizes.items() if size > 1)
    found = sorted(
        (rule for rule in rules if rule and rule[0] > _WORTHWHILE * capacity), reverse=True
    )
    lines = [
        f'`parameters = ["{dim} -> {axis}"]` would save {byte_words(saved)} of parameters, gradients and optimizer state'
        for saved, dim, axis in found
    ]
    saved = sum(rule[0] for rule in found)
    if sum(t.bytes for t in rest) - saved > capacity:
        what = "then" if found else "and every axis splits them"
        left = byte_words(sum(t.bytes for t in rest) - saved)
        lines.append(
            f"parameters, gradients and optimizer state alone are {left} {what}: it takes more devices"
        )
    activations = [t for t in memory.largest if t.kind == "activation"]
    if activations and memory.peak - saved > capacity:
        lines.append(_for_activations(activations[0], ops))
    return tuple(lines)


def _rule(axis: str, size: int, tensors: list[TensorView]) -> tuple[int, str, str] | None:
    """The dim that `axis` would split the most bytes by, and what that would save."""
    by_dim: Counter[str] = Counter()
    for t in tensors:
        if any(axis in d.axes for d in t.dims):
            continue
        for d in t.dims:
            if d.local % size == 0:
                by_dim[d.name] += t.bytes - t.bytes // size
    if not by_dim:
        return None
    dim, saved = by_dim.most_common(1)[0]
    return saved, dim, axis


def _for_activations(largest: TensorView, ops: tuple[OpView, ...]) -> str:
    op = next(
        (
            op
            for op in ops
            if op.source == largest.source and largest.name.startswith(op.name) and op.advice
        ),
        None,
    )
    return f"the largest array at the peak is {largest.notation}, {byte_words(largest.bytes)}" + (
        f": `{op.advice}` would split it" if op else ""
    )
