"""Figures for a page: those of `meshdsl.figures`, and a few more.

No line break tears them from their units.
"""

from __future__ import annotations

from meshdsl.figures import byte_words, flop_words, time_words


def _unbroken(text: str) -> str:
    return text.replace(" ", "\u00a0")


def size(count: float) -> str:
    """A number of bytes: `1.5 MiB`."""
    return _unbroken(byte_words(count))


def work(flops: float) -> str:
    """A number of FLOPs: `1.1 TFLOP`."""
    return _unbroken(flop_words(flops))


def time(seconds: float) -> str:
    """A time: `350 \u00b5s`, `1.2 ms`; 0 has no unit."""
    if seconds < 1e-9:
        return "<1\u00a0ns" if seconds > 0 else "0"
    return _unbroken(time_words(seconds)).replace("us", "\u00b5s")


def many(count: float) -> str:
    """A count with few digits: `8.03 million`, `205,534`."""
    for name, per in (("billion", 1e9), ("million", 1e6)):
        if count >= per:
            return f"{count / per:.3g}\u00a0{name}"
    return f"{count:,.0f}"


def share(part: float, total: float) -> str:
    """What share of `total` a part is: `41.2%`; below a tenth of a percent `<0.1%`."""
    value = part / total if total else 0.0
    return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"


def plural(count: int, word: str) -> str:
    """A count of things: `1 device`, `8 devices`."""
    return f"{count:,}\u00a0{word}{'' if count == 1 else 's'}"


def product(shape: tuple[int, ...]) -> str:
    """A shape: `32 \u00d7 256`."""
    return " \u00d7 ".join(f"{n:,}" for n in shape)
