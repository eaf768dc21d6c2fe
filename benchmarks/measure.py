"""Measures a step: how long it takes to build and to run beside others, and what it moves."""

import dataclasses
import gc
import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program import Collective

from .program import Program

_FOLDER = Path(__file__).parents[1] / "build" / "results"
_shown: list[dict[str, Any]] = []  # the tables of this benchmark so far


@dataclasses.dataclass(frozen=True)
class Built:
    """A compiled step, with the seconds that it took to trace, lower and compile.

    Those of tracing and lowering are seconds of their thread.
    """

    trace: float
    lower: float
    compile: float
    compiled: jax.stages.Compiled


def build(
    programs: Mapping[str, tuple[Program, tuple]],
    *,
    repeats: int = 1,
    compiler_options: Mapping[str, str] | None = None,
) -> dict[str, Built]:
    """Traces and lowers each step `repeats` times from nothing, in turns, and compiles it once.

    Tracing and lowering run in this thread, so its own clock is read, and the fastest time counts,
    which is the least disturbed one.

    Args:
      programs: for each name a program and its arguments.
    """
    best = dict.fromkeys(programs, (math.inf, math.inf))
    lowered = {}
    for _ in range(repeats):
        for name, (program, arguments) in programs.items():
            jax.clear_caches()
            gc.collect()
            start = time.thread_time()
            traced = program.make().trace(*arguments)
            between = time.thread_time()
            lowered[name] = traced.lower()
            best[name] = (
                min(best[name][0], between - start),
                min(best[name][1], time.thread_time() - between),
            )
    built = {}
    for name in programs:
        start = time.perf_counter()
        compiled = lowered[name].compile(compiler_options=compiler_options)
        built[name] = Built(*best[name], time.perf_counter() - start, compiled)
    return built


def interleaved(steps: Mapping[str, tuple], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in each round, A B C A B C ..., after one round that does not count.

    Args:
      steps: for each name a compiled step and its arguments.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, (step, arguments) in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds of one step's time over another's.

    Ratios are taken within a round, whose runs meet the same load of the machine.
    """
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))


def collectives(compiled, mesh) -> list[Collective]:
    """The collectives of a compiled program."""
    return from_hlo(compiled.as_text(), mesh)


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. The first row is its head; all columns but the first are numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(cells):
        padded = [
            c.rjust(w) if i else c.ljust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = (
        "| "
        + " | ".join("-" * (w - 1) + ":" if i else "-" * w for i, w in enumerate(widths))
        + " |"
    )
    return "\n".join([line(rows[0]), rule, *(line(row) for row in rows[1:])])


def show(rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table, and write all that this benchmark has printed to `build/results/NAME.json`.

    The file has the command, the versions and the machine beside the tables, in the form of the
    files in `benchmarks/results/`.

    Args:
      rows: as for `table`.
      title: what the table is of, where a benchmark prints several.
    """
    print(f"\n{title}\n\n" * bool(title) + table(rows), flush=True)
    columns, *others = rows
    what = {"title": title} if title else {}
    _shown.append(what | {"columns": list(columns), "rows": [list(row) for row in others]})
    benchmark = Path(sys.argv[0]).stem
    found = {
        "title": benchmark,
        "commands": [f"python -m benchmarks.{benchmark} {shlex.join(sys.argv[1:])}".strip()],
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "tables": _shown,
    }
    _FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    (_FOLDER / f"{benchmark}.json").write_text(f"{text}\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {}
    for package in ("jax", "jaxlib", "libtpu", "flax", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
