"""Figures as people read them (`1.5 GiB`, `350 us`), and aligned tables of text.

Sizes are in powers of 1024, whether memory holds them or links move them, so that an array has the
same figure wherever it appears. Rates are in powers of 1000, as makers of links state them.
"""

from __future__ import annotations

from collections.abc import Sequence


def byte_words(count: float) -> str:
    """Bytes in powers of 1024: `512 B`, `1.5 MiB`, `15.75 GiB`; two decimals from a GiB on."""
    if count < 1023.5:
        return f"{count:.0f} B"
    for unit, digits in (("KiB", 1), ("MiB", 1), ("GiB", 2), ("TiB", 2)):
        count /= 1024
        if round(count, digits) < 1024:
            return f"{count:.{digits}f} {unit}"
    return f"{count / 1024:.2f} PiB"


def flop_words(count: float) -> str:
    """FLOPs in powers of 1000: `750 FLOP`, `1.5 GFLOP`."""
    if count < 1000:
        return f"{count:.0f} FLOP"
    return _scaled(count / 1000, ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def time_words(seconds: float) -> str:
    """A time in the unit that suits it: `350 us`, `1.2 ms`, `3.4 s`."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds:.3g} s" if seconds < 99.95 else f"{seconds:,.0f} s"


def long_words(seconds: float) -> str:
    """A time that may be long in the unit that suits it: `45 s`, `12 min`, `3.4 h`, `27.5 days`."""
    if seconds < 99.95:
        return time_words(seconds) if seconds > 0 else "0 s"
    for unit, size, below in (("min", 60.0, 59.5), ("h", 3600.0, 47.5)):
        value = seconds / size
        if value < below:
            return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"
    return f"{seconds / 86400.0:,.1f} days"


def clock_words(seconds: float) -> str:
    """A time as a clock has it: `0:05`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def give_or_take(seconds: float, uncertainty: float | None) -> str:
    """How far off a time may be: `, give or take 21 ms (5.5%)`; nothing where that is not known."""
    if uncertainty is None or not seconds:
        return ""
    share = uncertainty / seconds
    words = f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"
    return f", give or take {time_words(float(f'{uncertainty:.2g}'))} ({words})"


def _scaled(value: float, units: Sequence[str]) -> str:
    """`value`, counted in the first of `units`, in the first one that keeps it below 1000."""
    for unit in units[:-1]:
        if value < 999.95:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} {units[-1]}"


def rule_words(why: str, layout: str) -> str:
    """The rule that caused a collective, without the layout's name: `rule 1: batch -> data`.

    For texts that name the layout in their heading.
    """
    return why.replace(f"{layout}, ", "")


def columns(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2
) -> list[str]:
    """One line of text for each row, with the cells of each column aligned.

    Args:
      right: positions of the columns that are aligned to the right.
      indent: spaces in front of each line.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return lines
