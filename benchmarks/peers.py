"""The time and memory of whole training steps at several budgets of memory, for pods of TPUs.

    python -m benchmarks.peers --rows "llama2-7b full" "llama2-7b 32GiB" --keep texts

Each row is a step of a published model, compiled for its target by the real compiler and replayed
from its schedule (`meshdsl.compiled.replay`): no TPU is needed, and nothing is measured on one. The
fused kernels of attention have no cycles in a schedule; a share of the chip's FLOP/s is assumed of
them, and they have a column of their own. MFU counts causal attention half.

"einsums" is attention whose scores stand in memory; a budget such as "32GiB" is what
`model.remat=auto` chooses for that memory.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from unittest import mock

import jax

import meshdsl as md
from meshdsl.commands.analysis import Analysis
from meshdsl.commands.settings import model_values
from meshdsl.compiled.report import CompiledReport
from meshdsl.compiled.topology import compile_only
from meshdsl.errors import MeshDSLError
from meshdsl.machine import FUSED_EFFICIENCY, find_target
from meshdsl.train.auto_remat import choose_remat
from meshdsl.train.config import Config
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import einsum_attention
from .measure import table

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """A training step on a target; `batch` is sequences of `length` tokens.

    Attributes:
      settings: of the run, beside the model and the batch.
      attention: "fused", or "einsums" for scores that stand in memory.
    """

    model: str
    layout: str
    target: str
    mesh: dict[str, int]
    batch: int
    length: int
    settings: dict[str, str] = field(default_factory=dict)
    attention: str = "fused"

    def compiled(self) -> tuple[str, CompiledReport]:
        """What is kept for the backward pass, and the report of the compiler."""
        config = override(
            Config(),
            **model_values(self.model)
            | {"batch": self.batch, "model.length": self.length, **self.settings},
        )
        layout, target = find_layout(self.layout), find_target(self.target)
        config = choose_remat(config, layout, self.mesh, target).config
        analysis = Analysis(self.model, config, layout, self.mesh, target)
        if self.attention == "fused":
            return analysis.config.model.remat, analysis.compile()[0]
        with mock.patch.object(md, "attention", einsum_attention.attention):
            return analysis.config.model.remat, analysis.compile()[0]


_7B = ("llama2-7b", "fsdp", "v5p:4x4x4", {"data": 64}, 256, 4096)
_8B = ("llama3-8b", "fsdp", "v5p:4x4x4", {"data": 64}, 128, 8192)
_70B = ("llama3-70b", "fsdp-sequence", "v5p:8x8x16", {"data": 128, "model": 8}, 256, 8192)
_405B = ("llama3-405b", "fsdp-sequence", "v5p:16x16x16", {"data": 512, "model": 8}, 1024, 8192)


def _kept(remat: str) -> dict[str, str]:
    return {"model.remat": remat}


def _within(memory: str) -> dict[str, str]:
    return {"model.remat": "auto", "memory": memory}


ROWS = {
    "llama2-7b einsums": Row(*_7B, _kept("full"), attention="einsums"),
    "llama2-7b full": Row(*_7B, _kept("full")),
    "llama2-7b attention": Row(*_7B, _kept("attention")),
    "llama2-7b qkv": Row(*_7B, _kept("qkv")),
    "llama2-7b hidden": Row(*_7B, _kept("hidden")),
    "llama2-7b 32GiB": Row(*_7B, _within("32GiB")),
    "llama2-7b 95GiB": Row(*_7B, _within("95GiB")),
    "llama3-8b full": Row(*_8B, _kept("full")),
    "llama3-8b 95GiB": Row(*_8B, _within("95GiB")),
    "llama3-70b full": Row(*_70B, _kept("full")),
    "llama3-70b 95GiB": Row(*_70B, _within("95GiB")),
    "llama3-405b full": Row(*_405B, _kept("full")),
    "llama3-405b 95GiB": Row(*_405B, _within("95GiB")),
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
]


def cells(row: Row) -> list[str]:
    """The columns of one row, but for its name."""
    try:
        remat, report = row.compiled()
    except MeshDSLError as error:
        return ["-", str(error).splitlines()[0][:80], *["-"] * 5]
    memory, time = report.memory, report.time
    if memory is None or time is None:
        return [remat, report.verdict, *["-"] * 5]
    return [
        remat,
        f"{memory.temporaries / GIB:.2f}",
        "-" if memory.peak is None else f"{memory.peak / GIB:.2f}",
        f"{1e3 * time.step:,.0f}",
        f"{time.mfu:.1%}",
        f"{1e3 * time.fused:,.0f}",
        f"{1e3 * time.exposed:,.0f}",
    ]


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
        rows.append([name, *cells(ROWS[name])])
        print("; ".join(rows[-1]), flush=True)
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
