"""The time and memory of whole training steps at several budgets of memory, for pods of TPUs.

    python -m benchmarks.peers --rows "llama2-7b full" "llama2-7b 32GiB" --keep texts

Each row is a step of a published model, compiled for its target by the real compiler and replayed
from its schedule (`meshdsl.predict.compiler.replay`): no TPU is needed, and nothing is measured on
one. The fused kernels of attention have no cycles in a schedule; a share of the chip's FLOP/s is
assumed of them, and they have a column of their own. MFU counts causal attention half.

"einsums" is attention whose scores stand in memory; a budget such as "32GiB" is what a run chooses
for that memory where `model.remat` and `model.loss_chunk` are "auto", as they are by default; in
other rows `model.loss_chunk` alone is, but for "chunks". "bound by" is what a step is made of: the
share of it in which the device computes, and those in which it waits for collectives over an axis.
Where a budget keeps a faster choice out, memory is named too.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import jax

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.fields import AUTO
from meshdsl.machine import FUSED_EFFICIENCY
from meshdsl.predict.compiler.report import CompiledReport
from meshdsl.predict.compiler.topology import compile_only

from . import einsum_attention
from .estimate_accuracy import Case
from .measure import show

GIB = 2**30


@dataclass(frozen=True)
class Row(Case):
    """A case in which `loss_chunk` is what a run has by default."""

    loss_chunk: int | str = AUTO


_7B = ("llama2-7b", "fsdp", "v5p:4x4x4", {"data": 64}, 256, 4096)
_8B = ("llama3-8b", "fsdp", "v5p:4x4x4", {"data": 64}, 128, 8192)
_70B = ("llama3-70b", "fsdp-sequence", "v5p:8x8x16", {"data": 128, "model": 8}, 256, 8192)
_405B = ("llama3-405b", "fsdp-sequence", "v5p:16x16x16", {"data": 512, "model": 8}, 1024, 8192)

EINSUMS = "llama2-7b einsums"
ROWS = {
    EINSUMS: Row(*_7B, "full"),
    "llama2-7b full": Row(*_7B, "full"),
    "llama2-7b full, chunks": Row(*_7B, "full", loss_chunk=4096),
    "llama2-7b attention": Row(*_7B, "attention"),
    "llama2-7b qkv": Row(*_7B, "qkv"),
    "llama2-7b hidden": Row(*_7B, "hidden"),
    "llama2-7b 32GiB": Row(*_7B, "auto", "32GiB"),
    "llama2-7b 95GiB": Row(*_7B, "auto", "95GiB"),
    "llama3-8b full": Row(*_8B, "full"),
    "llama3-8b 95GiB": Row(*_8B, "auto", "95GiB"),
    "llama3-70b full": Row(*_70B, "full"),
    "llama3-70b 95GiB": Row(*_70B, "auto", "95GiB"),
    "llama3-405b full": Row(*_405B, "full"),
    "llama3-405b 95GiB": Row(*_405B, "auto", "95GiB"),
}
HEAD = [
    "row",
    "kept",
    "temporaries GiB",
    "compiler's peak GiB",
    "step ms",
    "MFU",
    "fused kernels ms",
    "waits for collectives ms",
    "bound by",
]


def cells(name: str) -> list[str]:
    """The columns of one row, but for its name."""
    scores_in_memory = mock.patch.object(md, "attention", einsum_attention.attention)
    try:
        with scores_in_memory if name == EINSUMS else nullcontext():
            analysis = ROWS[name].analysis()
            remat = analysis.remat or ROWS[name].remat
            report = analysis.compile().report
    except MeshDSLError as error:
        return ["-", str(error).splitlines()[0][:80], *["-"] * 6]
    memory, time = report.memory, report.time
    if memory is None or time is None:
        return [remat, report.verdict, *["-"] * 6]
    return [
        remat,
        f"{memory.temporaries / GIB:.2f}",
        "-" if memory.peak is None else f"{memory.peak / GIB:.2f}",
        f"{1e3 * time.step:,.0f}",
        f"{time.mfu:.1%}",
        f"{1e3 * time.fused:,.0f}",
        f"{1e3 * time.exposed:,.0f}",
        bound_by(report),
    ]


def bound_by(report: CompiledReport) -> str:
    """What the step that is reported is made of, in words; no waits under half a percent."""
    assert report.time is not None
    step, waits = report.time.step, Counter[str]()
    for one in report.collectives:
        waits[", ".join(one.axes)] += (one.exposed or 0.0) / step
    words = [f"compute {1 - report.time.exposed / step:.1%}"]
    words += [f"{axes} {share:.1%}" for axes, share in waits.most_common() if share >= 0.005]
    if " would be faster" in report.choice:
        better = report.choice.partition(" would be faster")[0].rpartition("; ")[2]
        words.append(f"memory ({better} does not fit)")
    return ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    given = parser.parse_args()
    compile_only()
    print(
        f"Python {sys.version.split()[0]}, jax {jax.__version__}; fused kernels at "
        f"{FUSED_EFFICIENCY:.0%} of the chip's FLOP/s",
        flush=True,
    )
    rows = [HEAD]
    for name in given.rows:
        rows.append([name, *cells(name)])
        print("; ".join(rows[-1]), flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
