"""Figures for a page: those of `plan.words`, which no line break tears from their unit, and a few more."""

from __future__ import annotations

from meshdsl.figures import byte_words, flop_words, time_words


def _kept(text: str) -> str:
    return text.replace(" ", "\u00a0")


def size(count: float) -> str:
    """Bytes: `1.5 MiB`."""
    return _kept(byte_words(count))


def work(flops: float) -> str:
    """`1.1 TFLOP`."""
    return _kept(flop_words(flops))


def time(seconds: float) -> str:
    """`350 \u00b5s`, `1.2 ms`; 0 without a unit."""
    if seconds < 1e-9:
        return "<1\u00a0ns" if seconds > 0 else "0"
    return _kept(time_words(seconds)).replace("us", "\u00b5s")


def many(count: float) -> str:
    """A count with few digits: `8.03 million`, `205,534`."""
    for name, per in (("billion", 1e9), ("million", 1e6)):
        if count >= per:
            return f"{count / per:.3g}\u00a0{name}"
    return f"{count:,.0f}"


def share(part: float, whole: float) -> str:
    """`41.2%`; below a tenth of a percent `<0.1%`."""
    value = part / whole if whole else 0.0
    return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"


def plural(count: int, word: str) -> str:
    return f"{count:,}\u00a0{word}{'' if count == 1 else 's'}"


def product(shape: tuple[int, ...]) -> str:
    """`32 \u00d7 256`."""
    return " \u00d7 ".join(f"{n:,}" for n in shape)
