"""What `explain` says of llama3-8b on 64 chips, FSDP and sequence parallel, and a ledger."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from meshdsl.commands.analysis import analysis_of
from meshdsl.predict.explanation import Explanation, PipelineView, RepeatedView
from meshdsl.predict.ledger.report import LedgerEntry, LedgerReport, Unforeseen
from meshdsl_cli.parser import parse

MESH = {"data": 16, "model": 4}
STEP = (
    "explain --model llama3-8b --layout fsdp-sequence --batch 64 --length 8192"
    " model.remat=full model.loss_chunk=512"
)


@cache
def _explained(*words: str) -> Explanation:
    given = parse([*STEP.split(), "--mesh", "data=16,model=4", *words]).arguments
    found = analysis_of(given, given.layout, given.mesh).explain()
    take = next(op for op in found.ops if op.name == "take")
    return replace(found, repeated=_repeated(take.tag), notes=("A first note.", "Another note."))


def sample() -> Explanation:
    """The plan on v5p:4x4x4: it fits, and has times."""
    return _explained("--target", "v5p:4x4x4")


def _repeated(tag: str) -> tuple[RepeatedView, ...]:
    """A line whose work an axis repeats, one that has no op, and one that is too small to show."""
    over = ("model",)
    lookup = RepeatedView(
        *("embedding.py:23", tag, ("take", "cast"), over, 4, 3_300_000_000_000, 2**28, 0.02, 0.01),
        advice="d_model -> model",
    )
    optimizer = RepeatedView(
        "optimizer", "", (), ("data", "model"), 64, 2_000_000, 2**20, 1e-6, 0.002
    )
    small = RepeatedView("norm.py:25", tag, ("rsqrt",), over, 4, 1000, 4096, 1e-9, 1e-9)
    return lookup, optimizer, small


def without_target() -> Explanation:
    return replace(_explained(), notes=())


def too_large() -> Explanation:
    whole = sample()
    memory = replace(whole.memory, capacity=6_000_000_000)
    remedies = ("split `length` over `model`: softmax is 4.00 GiB",)
    return replace(whole, target="v5e:8x8", memory=memory, remedies=remedies)


def piped() -> Explanation:
    """The plan with a pipeline in it, of two rounds, and one without times."""
    view = PipelineView(
        tag="md.loss_and_gradients.3",
        dim="layers",
        size=30,
        axes=("model",),
        stages=4,
        microbatches=8,
        rounds=2,
        ticks=19,
        chunk=4,
        loops=(),
        source="transformer.py:324 stack.py:104",
        parameters=2**30,
        split=True,
        kept=19 * 2**28,
        forward=0.4,
        backward=1.5,
    )
    other = {"tag": "md.f.9", "rounds": 1, "ticks": 11, "chunk": 8, "split": False, "kept": 0}
    untimed = replace(view, **other, forward=None, backward=None, loops=(("turns", 3),))
    return replace(sample(), pipelines=(view, untimed))


def ledger() -> LedgerReport:
    """A ledger of two ops, one collective that nobody asked for, and an optimizer."""
    op = "md.loss.3", "einsum[batch_data, length, d_model, d_ff_model]", "mlp.py:47 linear.py:30"
    gather = LedgerEntry(
        *(
            "collective",
            "all_gather(data)",
            *op,
            "forward",
            "layout fsdp-sequence.toml, rule 1: batch -> data",
            "combined with others",
        ),
        *(False, 32, 0.2, 0.25, 0.05, 0.3, 0.24),
    )
    computing = LedgerEntry("op", "compute", *op, "backward", seconds=0.5, estimate=0.2)
    surprise = replace(gather, tag="", op="", source="", rule="", surprise=True, estimate=None)
    optimizer = LedgerEntry("optimizer", "optimizer", "", "", "", "optimizer", seconds=0.01)
    unforeseen = [Unforeseen("surprise", f"{n} x psum(model), of no op", 0.2) for n in range(12)]
    unforeseen.append(Unforeseen("estimate", "compute: 2.5 times as long", 0.3))
    return LedgerReport(
        title="llama3-8b, batch 64",
        layout="layout fsdp-sequence.toml",
        target="v5p:4x4x4",
        axes=MESH,
        devices=("TPU:0", "TPU:1"),
        calls=5,
        seconds=1.2,
        busy=(0.9, 1.0),
        idle=(0.3, 0.2),
        entries=(computing, gather, surprise, optimizer),
        unforeseen=tuple(unforeseen),
        estimate=1.0,
    )
