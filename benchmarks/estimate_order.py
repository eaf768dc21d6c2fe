"""Whether the estimate puts the layouts of one workload into the order that the compiler does.

    python -m benchmarks.estimate_order --workloads "8b 8k" "8b 2k"
    python -m benchmarks.estimate_order --random 12 --seed 7

Each workload is one step of training on one target, under many layouts, meshes and policies of
rematerialisation. Each is estimated, and compiled with the options that training uses; the
compiler's schedule is replayed. What does not fit by the compiler has no time, and leaves the
order.

A compilation takes a minute or two, so what the compiler said is written into
`estimate_order.json` beside this file, and is read from there the next time; `--compiled` leaves
out what is not there, and takes seconds. After a change of the replay, or with another compiler,
delete that file and compile anew. With `--keep` the compiled programs stay in a folder as well.

With `--random N` a seed draws the workloads (see `random_workloads`), so that the estimate is
judged on what it was not fitted to: take a seed that is not in that file.

Spearman's rank correlation is 1 where both put the layouts into the same order. Regret is how much
longer the layout takes that the estimate takes for the fastest of those that fit by the estimate,
than the fastest of all that fit by the compiler.

`explain` says how far off a step may be. Where that is honest, two steps in three lie within it (a
standard deviation), and 19 in 20 within twice as much; the same holds of the difference of any two
steps of a workload. The layouts that `compare` says should be compiled are few, and the fastest is
among them: then the regret is 0 once these are compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.machine import Network
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.out_of_memory import parse_oom
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.predict.explanation import Estimate
from meshdsl.predict.time.uncertainty import LAYOUT, STEP, close, of_difference
from meshdsl.tools.analysis import Analysis

from .kept import compiled
from .measure import show
from .random_workloads import KINDS, WAYS, draw
from .workloads import WORKLOADS, Workload

GIB = 2**30
SAID = Path(__file__).with_suffix(".json")  # what the compiler said, by workload and way


@dataclass(frozen=True)
class Found:
    """What came of one way; times in seconds, memory in bytes.

    Attributes:
      replayed_exposed: waiting for collectives, and copies.
      error: why there is no compiled program.
    """

    way: str
    estimated: float
    compute: float
    exposed: float
    peak: int
    fits: bool | None
    seconds: float
    replayed: float = 0.0
    replayed_compute: float | None = None
    replayed_exposed: float | None = None
    needed: int = 0
    error: str = ""
    estimate: Estimate | None = None

    @property
    def step(self) -> float:
        """Seconds by the estimate, as `uncertainty.close` asks for them."""
        return self.estimated


@dataclass
class Order:
    """How an order by the estimate compares with that by the compiler."""

    found: Sequence[Found]
    timed: list[Found] = field(init=False)

    def __post_init__(self):
        self.timed = [f for f in self.found if f.replayed]

    @property
    def spearman(self) -> float:
        """The correlation of both ranks of what the compiler gives a time."""
        first = _ranks([f.estimated for f in self.timed])
        second = _ranks([f.replayed for f in self.timed])
        return float(np.corrcoef(first, second)[0, 1]) if len(self.timed) > 1 else 1.0

    @property
    def regret(self) -> float:
        """How much longer the estimate's winner takes; infinite if the compiler refuses it."""
        able = [f for f in self.found if f.fits is not False]
        chosen = min(able, key=lambda f: f.estimated)
        best = min(f.replayed for f in self.timed)
        return chosen.replayed / best - 1 if chosen.replayed else float("inf")

    @property
    def within(self) -> str:
        """The shares of steps within one and two standard deviations, and of their differences."""
        alone, apart = [], []
        for i, f in enumerate(self.timed):
            assert f.estimate is not None
            off = f.replayed - f.estimated
            alone.append((off, f.estimate.uncertainty))
            for other in self.timed[:i]:
                assert other.estimate is not None
                difference = off - (other.replayed - other.estimated)
                apart.append((difference, of_difference(f.estimate, other.estimate)))
        return f"{_shares(alone)}; {_shares(apart)}"

    @property
    def worth_compiling(self) -> list[Found]:
        """What `compare` says should be compiled, with the fastest by the estimate first."""
        able = sorted((f for f in self.found if f.fits is not False), key=lambda f: f.estimated)
        return [*able[:1], *close(able[1:], able[:1])]

    @property
    def regret_compiled(self) -> float:
        """The regret once these are compiled: 0 if the fastest is among them.

        Infinite if the compiler refuses all.
        """
        times = [f.replayed for f in self.worth_compiling if f.replayed]
        best = min(f.replayed for f in self.timed)
        return min(times, default=float("inf")) / best - 1

    @property
    def wrongly_fit(self) -> list[str]:
        """What fits by the estimate, and the compiler refuses."""
        return [f.way for f in self.found if f.fits and f.error]


def residual(steps: Sequence[tuple[float, Estimate]]) -> float:
    """How far steps are off beyond what the residuals of their pieces say.

    Half of it, as a variance, is taken to be common to all layouts of a model: this is `step` of a
    chip's residuals, and `layout` as well.

    Args:
      steps: the seconds of the compiler, and the estimate.
    """
    more = []
    for real, estimate in steps:
        pieces = [d for n, d in estimate.deviations.items() if n not in (STEP, LAYOUT)]
        more.append(
            math.log(real / estimate.step) ** 2 - (math.hypot(*pieces) / estimate.step) ** 2
        )
    return math.sqrt(max(float(np.mean(more)), 0.0) / 2) if more else 0.0


def _ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(np.array(values)))


def _shares(errors: Sequence[tuple[float, float | None]]) -> str:
    """How many errors are within one and two of their standard deviations: `68%, 95%`."""
    sure = [abs(error) / deviation for error, deviation in errors if deviation]
    if not sure:
        return "-"
    return ", ".join(f"{sum(x <= most for x in sure) / len(sure):.0%}" for most in (1, 2))


def find(
    name: str, workload: Workload, way: str, keep: Path | None, compiled_only: bool
) -> Found | None:
    """Estimate and compile one way of a workload; None where it is not compiled and shall not be.

    Args:
      keep: a folder for compiled programs.

    Raises:
      MeshDSLError: the layout or mesh does not suit the model or the target.
    """
    everything = json.loads(SAID.read_text()) if SAID.exists() else {}
    said = everything.get(name, {}).get(way)
    if said is None and compiled_only:
        return None
    analysis = workload.analysis(way)
    start = time.perf_counter()
    explanation = analysis.explain()
    seconds = time.perf_counter() - start
    estimated, memory = explanation.time, explanation.memory
    assert estimated is not None
    if said is None:
        said = _compile(analysis, keep and keep / f"order-{name} {way}".replace(" ", "-"))
        everything.setdefault(name, {})[way] = said
        SAID.write_text(json.dumps(everything, indent=1) + "\n")
    return Found(
        way=way,
        estimated=estimated.step,
        compute=estimated.compute,
        exposed=estimated.exposed,
        peak=memory.peak,
        fits=memory.fits,
        seconds=seconds,
        estimate=estimated.estimate,
        **said,
    )


def _compile(analysis: Analysis, kept: Path | None) -> dict[str, Any]:
    """What the compiler says of one way, as fields of `Found`."""
    assert analysis.target is not None
    mesh = make_mesh(analysis.sizes, target_devices(analysis.target))
    got = compiled(kept, lambda: analysis.on(mesh).lowered, {})
    if "error" in got:
        verdict = parse_oom(got["error"])
        return {"needed": verdict.needed if verdict else 0, "error": got["error"][:90]}
    network = Network(analysis.target, analysis.sizes)
    run = replay(got["text"], analysis.target.chip, network, analysis.sizes)
    return {
        "replayed": run.step,
        "replayed_compute": run.compute,
        "replayed_exposed": run.exposed + run.copies,
        "needed": got["peak"],
    }


_HEAD = (
    "layout",
    "step ms, explain",
    "give or take",
    "compiler",
    "off by",
    "compute ms, explain",
    "compiler",
    "exposed ms, explain",
    "compiler",
    "peak GiB, explain",
    "compiler",
)
_SUMMARY = (
    "workload",
    "target",
    "layouts",
    "with a time",
    "error of 9 steps in 10",
    "of 9 peaks in 10",
    "Spearman",
    "regret",
    "refused",
    "steps within 1, 2 deviations; differences",
    "worth compiling",
    "the fastest among them",
    "regret then",
)


def row(f: Found) -> list[str]:
    """A line of a workload's table."""
    unsure = f.estimate.uncertainty if f.estimate else None
    peaks = [f"{f.peak / GIB:.1f}", f"{f.needed / GIB:.1f}"]
    if f.error:
        return [f.way, _ms(f.estimated), _ms(unsure), "refused", *["-"] * 5, *peaks]
    times = [_ms(f.estimated), _ms(unsure), _ms(f.replayed), f"{f.estimated / f.replayed - 1:+.1%}"]
    parts = [f.compute, f.replayed_compute, f.exposed, f.replayed_exposed]
    return [f.way, *times, *map(_ms, parts), *peaks]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _all(name: str, workload: Workload, keep: Path | None, compiled_only: bool) -> Iterator[Found]:
    for way in workload.ways:
        try:
            found = find(name, workload, way, keep, compiled_only)
        except MeshDSLError as error:
            print(f"{name}, {way}: {error}", file=sys.stderr)
            continue
        if found is not None:
            print(name, "|", "; ".join(row(found)), file=sys.stderr, flush=True)
            yield found


def _errors(found: Sequence[Found]) -> list[str]:
    """The 90th percentile of the errors of steps and of peaks, without their signs."""
    steps = [abs(f.estimated / f.replayed - 1) for f in found if f.replayed]
    peaks = [abs(f.peak / f.needed - 1) for f in found if f.needed]
    return [f"{np.percentile(errors, 90):.1%}" if errors else "-" for errors in (steps, peaks)]


def _residuals(everything: Mapping[str, Sequence[Found]]) -> Iterator[list[str]]:
    """A row for each chip, of the ways that were compiled for it."""
    for chip, found in everything.items():
        steps = [(f.replayed, f.estimate) for f in found if f.estimate is not None]
        yield [chip, str(len(steps)), f"{residual(steps):.2g}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=list(WORKLOADS),
        metavar="WORKLOAD",
        help=f"some of: {'; '.join(WORKLOADS)}",
    )
    parser.add_argument("--random", type=int, metavar="N", help="so many drawn workloads instead")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="what draws them")
    parser.add_argument(
        "--ways", type=int, default=WAYS, metavar="N", help="how many each of the drawn has"
    )
    parser.add_argument(
        "--models", nargs="+", choices=KINDS, default=list(KINDS), help="which are drawn"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where compiled programs are kept"
    )
    parser.add_argument("--compiled", action="store_true", help="only what was compiled before")
    given = parser.parse_args()
    compile_only()
    if given.random:
        workloads = dict(draw(given.seed, given.random, given.ways, given.models))
    else:
        workloads = {name: WORKLOADS[name] for name in given.workloads}
    summary = [list(_SUMMARY)]
    tables = {}
    everything: dict[str, list[Found]] = defaultdict(list)
    for name, workload in workloads.items():
        found = list(_all(name, workload, given.keep, given.compiled))
        if not found:
            continue
        order = Order(found)
        everything[workload.target.partition(":")[0]] += order.timed
        by_compiler = sorted(found, key=lambda f: f.replayed or float("inf"))
        tables[f"{name}: {workload.words}"] = [list(_HEAD), *map(row, by_compiler)]
        summary.append(
            [
                name,
                workload.target,
                str(len(found)),
                str(len(order.timed)),
                *_errors(found),
                f"{order.spearman:.2f}",
                f"{order.regret:.1%}",
                ", ".join(order.wrongly_fit) or "none",
                order.within,
                str(len(order.worth_compiling)),
                "yes" if not order.regret_compiled else "no",
                f"{order.regret_compiled:.1%}",
            ]
        )
    show(summary)
    show([["chip", "steps", "residuals `step` and `layout`"], *_residuals(everything)])
    for name, rows in tables.items():
        show(rows, name)


if __name__ == "__main__":
    main()
