"""The largest models on the largest pods, from a laptop: how long `explain` and compiling take.

    python -m benchmarks.big_models --models llama3-70b

The table also says whether the model fits. What is timed is what `meshdsl explain` and `meshdsl
compile` do, from the configuration to the answer, without Python's imports.
"""

from __future__ import annotations

import argparse
import time

from meshdsl.figures import byte_words
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.tools.analysis import Analysis

from .estimate_accuracy import Case
from .measure import show
from .pipelines import pipeline

_MESH = {"stage": 16, "data": 64, "model": 4}
_STAGES = ("llama3-405b", "pipeline-tensor", "v5p:16x16x16", _MESH, 1024, 8192)
# The 8 heads of keys allow a `model` of 8. Two sequences for each device along `data`.
CASES = {
    "llama3-70b": Case(
        "llama3-70b", "fsdp-sequence", "v5p:8x8x16", {"data": 128, "model": 8}, 256, 8192
    ),
    "llama3-405b": Case(
        "llama3-405b", "fsdp-sequence", "v5p:16x16x16", {"data": 512, "model": 8}, 1024, 8192
    ),
    # A half of a side of the torus is no ring, but all of it is left to `data`.
    "llama3-405b, model=4": Case(
        "llama3-405b",
        "fsdp-sequence",
        "v5p:16x16x16",
        {"data": 1024, "model": 4},
        1024,
        8192,
        "hidden",
    ),
    "llama3-405b, stages": Case(*_STAGES, "full"),
    "llama3-405b, stages, qkv": Case(*_STAGES, "qkv"),
}
# 8 rounds: each stage has 8 runs of one layer, and waits for 15 of 143 ticks.
STAGES = pipeline(
    16, 16, rounds=8, early=True, parameters=["d_model -> data"], gather="step", name="16 stages"
)


def timed(what):
    """What `what()` returns, and the seconds that it took."""
    start = time.perf_counter()
    made = what()
    return made, time.perf_counter() - start


def row(analysis: Analysis, *, compile: bool) -> list[str]:
    """The cells of one model; those of the compiler are dashes without `compile`."""
    explanation, explaining = timed(analysis.explain)
    estimate = [
        f"{explaining:.1f}",
        byte_words(explanation.memory.peak),
        f"{explanation.time.step:.2f}",
        f"{explanation.time.mfu:.0%}",
    ]
    if not compile:
        return estimate + ["-"] * 5
    report, compiling = timed(analysis.compile)
    if report.time is None:
        return [*estimate, f"{compiling:.0f}", report.verdict, *["-"] * 3]
    memory = report.memory.needed if report.memory.peak is None else report.memory.peak
    return [
        *estimate,
        f"{compiling:.0f}",
        "yes" if report.fits else "no",
        byte_words(memory),
        f"{report.time.step:.2f}",
        f"{report.time.mfu:.0%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="only explain")
    given = parser.parse_args()
    compile_only()
    head = [
        "model, target, chips, mesh, batch",
        "explain s",
        "peak",
        "step s",
        "MFU",
        "compile s",
        "fits",
        "peak",
        "step s",
        "MFU",
    ]
    rows = [head]
    for name in given.models:
        case = CASES[name]
        layout = STAGES if "stage" in case.mesh else None
        analysis = case.analysis(layout)
        mesh = ", ".join(f"{axis}={n}" for axis, n in case.mesh.items())
        of = case.layout if layout is None else layout.name
        title = (
            f"{name}, {case.target}, {analysis.target.devices:,}, {of} {mesh}, "
            f"{case.batch} x {case.length}"
        )
        rows.append([title, *row(analysis, compile=given.compile)])
        print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
