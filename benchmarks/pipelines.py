"""Pipelines against FSDP with split sequences, compiled for TPUs that need not be there.

    python -m benchmarks.pipelines --rows fsdp-sequence "4 stages" "4 stages, 4 rounds"

Each row is a training step of llama3-8b, or of another `--model`: memory by the compiler, and the
time of its schedule, replayed. With `--slices 2` two such slices are joined by the data centre's
network: `stage` goes across it, or `replica` where there are no stages, and the batch is twice as
large.

In a row that is called "early" each microbatch goes back as soon as its loss is known, and stages
share the head by its vocabulary: a microbatch is too small to be cut into rows.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from meshdsl.figures import byte_words
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.mesh import axis_sizes
from meshdsl.predict.compiler.topology import compile_only

from .estimate_accuracy import Case
from .measure import show

BATCH, LENGTH, TARGET, MICROBATCHES = 64, 8192, "v5p:4x4x4", 8


def pipeline(stages: int, count: int, rounds: int = 1, early: bool = False, **how) -> Layout:
    """`pipeline-tensor` with so many stages and microbatches; `how` are other lines of the layout.

    Args:
      count: how many microbatches.
    """
    layout = Layout.load("pipeline-tensor")
    first, *others = layout.rules
    assert isinstance(first, dict)
    first = {**first, "microbatches": {"batch": count}, "rounds": rounds}
    if early:
        first = {**first, "schedule": "early"}
        others = [*others, {"rule": "vocab? -> model, stage", "uneven": "pad"}]
    mesh = {"stage": stages, "data": "rest", "model": 4}
    return replace(layout, rules=[first, *others], mesh=mesh, **how)


def replicas(layout: Layout) -> Layout:
    """The same layout on two slices, each of which has a half of the batch."""
    rules = ["batch -> replica", *layout.rules]
    return replace(layout, rules=rules, mesh={"replica": 2, **layout.mesh}, dcn=("replica",))


def on_one_slice(count: int) -> dict[str, Layout]:
    """The layouts of all rows, with so many microbatches."""
    found = {"fsdp-sequence": Layout.load("fsdp-sequence")}
    for stages in (4, 8):
        for rounds in (1, 2, 4):
            found[f"{stages} stages, rounds {rounds}"] = pipeline(stages, count, rounds)
    for rounds in (1, 2):
        found[f"8 stages, rounds {rounds}, early"] = pipeline(8, count, rounds, early=True)
    split = {"parameters": ["d_model -> data"]}
    found["4 stages, FSDP"] = pipeline(4, count, gather="step", **split)
    found["4 stages, FSDP per layer"] = pipeline(4, count, gather="layer", **split)
    return found


def on_two_slices(count: int) -> dict[str, Layout]:
    """The same for two slices."""
    return {
        "fsdp-sequence, replicas": replicas(Layout.load("fsdp-sequence")),
        "2 stages": replace(pipeline(2, count), dcn=("stage",)),
        "2 stages, rounds 4": replace(pipeline(2, count, 4), dcn=("stage",)),
    }


def row(model: str, name: str, layout: Layout, batch: int, slices: int) -> list[str]:
    """The cells of one layout."""
    target = find_target(TARGET, slices=slices)
    sizes = axis_sizes(layout.mesh, target.devices)
    case = Case(model, "pipeline-tensor", TARGET, sizes, batch * slices, LENGTH)
    analysis = case.analysis(layout, target)
    estimated = analysis.explain()
    assert estimated.time is not None
    report = analysis.compile().report
    mesh = ", ".join(f"{axis}={n}" for axis, n in sizes.items())
    if report.time is None or report.memory is None:
        return [name, mesh, report.verdict, *["-"] * 6]
    peak = report.memory.needed if report.memory.peak is None else report.memory.peak
    return [
        name,
        mesh,
        byte_words(report.memory.temporaries or 0),
        byte_words(peak),
        byte_words(estimated.memory.peak or 0),
        f"{report.time.step:.2f}",
        f"{estimated.time.step:.2f}",
        f"{report.time.exposed / report.time.step:.1%}",
        f"{report.time.mfu:.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", help="by default all")
    parser.add_argument("--model", default="llama3-8b", help="a published model")
    parser.add_argument("--slices", type=int, default=1, choices=(1, 2))
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences on a slice")
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    given = parser.parse_args()
    layouts = (on_one_slice if given.slices == 1 else on_two_slices)(given.microbatches)
    compile_only()
    head = ["layout", "mesh", "temporaries", "peak", "estimated", "step s", "estimated", "waits"]
    rows = [[*head, "MFU"]]
    for name in given.rows or layouts:
        rows.append(row(given.model, name, layouts[name], given.batch, given.slices))
        print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
