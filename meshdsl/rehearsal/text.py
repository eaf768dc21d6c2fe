"""What a rehearsal prints: what was assumed, the ways to run it as a table, and the cheapest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshdsl.errors import either
from meshdsl.figures import columns, long_words
from meshdsl.rehearsal.faults import Faults
from meshdsl.rehearsal.options import Rehearsal, Row
from meshdsl.rehearsal.run import Run
from meshdsl.rehearsal.simulate import CAUSES


def describe(rehearsal: Rehearsal, set_row: Row, rows: Sequence[Row]) -> str:
    """The run and its faults in words, a table of the ways to run it, and the cheapest."""
    return "\n".join(
        [
            *run_lines(rehearsal.run),
            fault_line(rehearsal.faults),
            f"{len(rehearsal.traces)} traces are drawn; the run as it is set meets "
            f"{set_row.faults:,.0f} faults in the mean",
            "",
            *table(rehearsal, set_row, rows),
            "",
            "where the time goes",
            *losses_table(rehearsal, set_row, rows),
            "",
            *verdict(rehearsal, set_row, rows),
        ]
    )


def run_lines(run: Run) -> Iterator[str]:
    steps = ", then ".join(
        f"{stretch.steps:,} steps of {stretch.seconds:.3g} s" for stretch in run.stretches
    )
    yield f"{steps}: {long_words(run.work(run.steps))} undisturbed"
    save = f"save: steps wait {long_words(run.handover)}, complete {long_words(run.write)} later"
    copy = f"copy in memory: sent in {long_words(run.copy)}, fetched in {long_words(run.fetch)}"
    yield f"{save}; {copy}" if run.hosts > 1 else save
    parts = run.restart
    yield f"first start {long_words(parts.first)}"
    yield (
        f"after a fault: detect {long_words(parts.detect)}, "
        f"replace {long_words(parts.replace)}, start {long_words(parts.start)}, "
        f"read {long_words(run.restore)}, compile {long_words(parts.compile)}"
    )


def fault_line(faults: Faults) -> str:
    """As `faults: one in the job every 4.0 h; a slice is gone every 3.0 days, for 1.0 h`."""
    said = []
    if faults.mtbf:
        said.append(f"one in the job every {long_words(faults.mtbf)}")
    if faults.host_mtbf:
        said.append(f"one of a host every {long_words(faults.host_mtbf)}")
    if faults.slice_mtbf:
        said.append(
            f"each slice is gone every {long_words(faults.slice_mtbf)}, for "
            f"{long_words(faults.slice_back)}"
        )
    return f"faults: {'; '.join(said)}"


def name_of(rehearsal: Rehearsal, row: Row, as_set: bool) -> tuple[str, ...]:
    """The way to run it, as the cells of a table: where state is, spares, and what is waited for.

    The last two are left out where no slice is ever gone.
    """
    cells = ("store, as set" if as_set else "memory, store" if row.option.memory else "store",)
    if rehearsal.faults.slice_mtbf:
        cells += (str(row.option.spares), "go on" if row.option.fewer else "wait")
    return cells


def words_of(rehearsal: Rehearsal, row: Row) -> str:
    """The way to run it in words, as `copies in memory, 1 spare slice, going on with fewer`."""
    said = ["copies in memory" if row.option.memory else "the store alone"]
    if rehearsal.faults.slice_mtbf:
        spares = row.option.spares
        said.append(f"{spares or 'no'} spare slice{'s' * (spares != 1)}")
        said.append("going on with fewer" if row.option.fewer else "waiting for lost slices")
    return ", ".join(said)


def table(rehearsal: Rehearsal, set_row: Row, rows: Sequence[Row]) -> list[str]:
    """A line for each way to run it, the run as it is set first."""
    slices = ("spares", "slice gone") if rehearsal.faults.slice_mtbf else ()
    heading = ("state in", *slices, "checkpoint", "goodput", "5% to 95%", "takes")
    lines: list[tuple[str, ...]] = [(*heading, "chip hours", "wasted")]
    for row in (set_row, *rows):
        low, high = row.spread
        lines.append(
            (
                *name_of(rehearsal, row, as_set=row is set_row),
                long_words(row.interval),
                f"{row.goodput:.1%}",
                f"{low:.1%} to {high:.1%}",
                long_words(row.seconds),
                f"{row.chip_hours:,.0f}",
                f"{row.wasted:,.0f}",
            )
        )
    count = len(lines[0])
    return columns(lines, right=[*range(count - 6, count)])


def losses_table(rehearsal: Rehearsal, set_row: Row, rows: Sequence[Row]) -> list[str]:
    """A line for each way to run it: the share of its time that each cause takes."""
    shown = [cause for cause in CAUSES if any(row.losses[cause] for row in (set_row, *rows))]
    slices = ("spares", "slice gone") if rehearsal.faults.slice_mtbf else ()
    lines: list[tuple[str, ...]] = [("state in", *slices, "steps", *shown)]
    for row in (set_row, *rows):
        shares = [row.goodput, *(row.losses[cause] for cause in shown)]
        name = name_of(rehearsal, row, as_set=row is set_row)
        lines.append((*name, *(f"{share:.2%}" for share in shares)))
    count = len(lines[0])
    return columns(lines, right=[*range(count - len(shown) - 1, count)])


def verdict(rehearsal: Rehearsal, set_row: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Which way is the cheapest, in all and with what runs have today."""
    best = min(rows, key=lambda row: row.chip_hours)
    saved = 1 - best.chip_hours / set_row.chip_hours
    yield f"cheapest in chip hours, {saved:.1%} less than as set"
    yield from _told(rehearsal, best)
    if best.option.memory:
        yield "the cheapest without copies in memory"
        yield from _told(
            rehearsal,
            min((r for r in rows if not r.option.memory), key=lambda row: row.chip_hours),
        )


def _told(rehearsal: Rehearsal, row: Row) -> Iterator[str]:
    yield f"  {words_of(rehearsal, row)}: {row.chip_hours:,.0f} chip hours"
    copies = f"; copies every {_steps(row.option.memory)}" if row.option.memory else ""
    yield f"  a checkpoint every {long_words(row.interval)} of steps, {_every(row)}{copies}"


def _steps(every: Sequence[int]) -> str:
    return f"{either([f'{each:,}' for each in dict.fromkeys(every)], 'and')} steps"


def _every(row: Row) -> str:
    """The settings that say so, as `checkpoint.every=150`."""
    every = dict.fromkeys(row.option.every)
    if len(every) == 1:
        return f"checkpoint.every={next(iter(every))}"
    return f"checkpoint.minutes={row.interval / 60:.3g}"
