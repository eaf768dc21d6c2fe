"""What to split when a program does not fit: which rules, and how much memory they would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from meshdsl.estimate.explanation import MemoryView, OpView, TensorView
from meshdsl.figures import byte_words

_WORTHWHILE = 0.01  # the share of the chip's memory that a rule must save to be named
_AT_REST = ("parameter", "gradient", "optimizer")


def remedies(
    memory: MemoryView, ops: tuple[OpView, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Sentences that say how to make a program fit, the one that saves the most first.

    What is at rest can be split over every axis that does not split it yet. The largest array that
    lives at the peak can be split over an axis that its op leaves unused. There are none if the
    program fits, or if no machine is known.

    Args:
      sizes: of the mesh axes.
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
        f'`parameters = ["{dim} -> {axis}"]` would save {byte_words(saved)} '
        "of parameters, gradients and optimizer state"
        for saved, dim, axis in found
    ]
    saved = sum(rule[0] for rule in found)
    if sum(t.bytes for t in rest) - saved > capacity:
        what = "then" if found else "and every axis splits them"
        left = byte_words(sum(t.bytes for t in rest) - saved)
        lines.append(
            f"parameters, gradients and optimizer state alone are {left} {what}: "
            "it takes more devices"
        )
    activations = [t for t in memory.largest if t.kind == "activation"]
    if activations and memory.peak - saved > capacity:
        lines.append(_for_activations(activations[0], ops))
    return tuple(lines)


def _rule(axis: str, size: int, tensors: list[TensorView]) -> tuple[int, str, str] | None:
    """The rule that splits `tensors` over `axis` and saves the most, as (bytes saved, dim, axis).

    None if it can split none of them.
    """
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
    """What there is to say of the largest array at the peak, with the advice for its op if any."""
    advice = (
        f": `{op.advice}` would split it"
        for op in ops
        if op.source == largest.source and largest.name.startswith(op.name) and op.advice
    )
    size = byte_words(largest.bytes)
    return f"the largest array at the peak is {largest.notation}, {size}{next(advice, '')}"
