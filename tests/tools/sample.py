"""What `explain` says of llama3-8b, FSDP and sequence parallel on 64 chips, with a few ops less.

Times come from a scheduler of a few lines: good for pictures, not for predictions.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshdsl.predict.explanation import (
    AxisView,
    DimView,
    Explanation,
    MemoryView,
    MoveView,
    OpView,
    PipelineView,
    RepeatedView,
    Span,
    TensorView,
    TimeView,
)
from meshdsl.predict.ledger.report import LedgerEntry, LedgerReport, Unforeseen

MESH = {"data": 16, "model": 4}
SIZES = {
    "batch": 64,
    "length": 8192,
    "memory": 8192,
    "d_model": 4096,
    "kv_heads": 8,
    "group": 4,
    "head_dim": 128,
    "d_ff": 14336,
    "vocab": 128256,
    "layers": 32,
}
RULE = {
    "data": "layout fsdp-sequence.toml, rule 1: batch -> data",
    "model": "layout fsdp-sequence.toml, rule 2: heads?, kv_heads?, d_ff, vocab -> model",
    "length": "layout fsdp-sequence.toml, rule 3: length -> model",
}
NESTS = {
    "S": "batch:data length:model d_model",
    "H": "batch:data length kv_heads:model group head_dim",
    "SCORES": "batch:data length kv_heads:model group memory",
}
TRANSPOSED = {"all_gather": "psum_scatter", "psum_scatter": "all_gather"}

# For each op its name, loop nest, source, and moves as "operation axis bytes".
HEAD = """
    cast; vocab:model d_model:data; embedding.py:23
    take; vocab:model d_model batch:data length; embedding.py:23; \
        all_gather data 262668288, all_gather model 131072
    settle; S; stack.py:41; psum_scatter model 268435456
"""
LAYER = """
    cast; S; norm.py:23
    mean; S; norm.py:24
    rsqrt; batch:data length:model; norm.py:25
    multiply; S; norm.py:25; all_gather data 16384
    einsum; batch:data length d_model kv_heads:model group head_dim; linear.py:30; \
        all_gather model 268435456, all_gather data 8388608
    einsum; batch:data length d_model kv_heads:model head_dim; linear.py:30; all_gather data 2097152
    split; H; rotary.py:23
    concat; H; rotary.py:24
    rename; batch:data memory kv_heads:model head_dim; attention.py:53
    einsum; batch:data length kv_heads:model group head_dim memory; attention.py:73
    softmax; SCORES; attention.py:75
    einsum; batch:data length kv_heads:model group memory head_dim; attention.py:76
    einsum; batch:data length kv_heads:model group head_dim d_model; linear.py:30; \
        all_gather data 8388608
    settle; S; transformer.py:145; psum_scatter model 268435456
    einsum; batch:data length d_model d_ff:model; linear.py:30; \
        all_gather model 268435456, all_gather data 29360128
    silu; batch:data length d_ff:model; mlp.py:47
    einsum; batch:data length d_ff:model d_model; linear.py:30; all_gather data 29360128
    settle; S; transformer.py:146; psum_scatter model 268435456
    add; S; transformer.py:146
"""
TAIL = """
    square; S; norm.py:24
    multiply; S; norm.py:25; all_gather data 16384
    einsum; batch:data length d_model vocab:model; linear.py:30; \
        all_gather model 268435456, all_gather data 262668288
    logsumexp; batch:data length vocab:model; transformer.py:200; \
        pmax model 131072, psum model 131072
    one_hot; batch:data length vocab:model; transformer.py:201; all_gather model 131072
    settle; ; loss.py:12; psum data+model 4
"""
PARAMETERS = (
    ("embedding.table", "vocab:model d_model:data"),
    ("blocks.layer.attention_norm.scale", "layers d_model:data"),
    ("blocks.layer.attention.query.weight", "layers d_model:data kv_heads:model group head_dim"),
    ("blocks.layer.attention.key.weight", "layers d_model:data kv_heads:model head_dim"),
    ("blocks.layer.attention.value.weight", "layers d_model:data kv_heads:model head_dim"),
    ("blocks.layer.attention.out.weight", "layers kv_heads:model group head_dim d_model:data"),
    ("blocks.layer.mlp_norm.scale", "layers d_model:data"),
    ("blocks.layer.mlp.gate.weight", "layers d_model:data d_ff:model"),
    ("blocks.layer.mlp.up.weight", "layers d_model:data d_ff:model"),
    ("blocks.layer.mlp.down.weight", "layers d_ff:model d_model:data"),
    ("norm.scale", "d_model:data"),
    ("head.weight", "d_model:data vocab:model"),
)


def sample() -> Explanation:
    """The plan on v5p:4x4x4: it fits, and has times."""
    ops = _ops()
    spans = _spans(ops)
    step = max(span.end for span in spans)
    moves = [move for op in ops for move in op.moves]
    busy = sum(sum(op.flops.values()) for op in ops) / RATE
    talk = sum(move.count * move.seconds for move in moves)
    axes = []
    for (name, size), where in zip(MESH.items(), ("x and y", "z"), strict=True):
        over = [m for m in moves if name in m.axes]
        lies = f"ring of {size} along {where} of the torus, 2 links, 180 GB/s both ways"
        count, total = sum(m.count for m in over), sum(m.count * m.bytes for m in over)
        seconds = sum(m.count * m.seconds for m in over)
        axes.append(AxisView(name, size, count, total, lies, seconds))
    waits, flops = max(step - busy, 0.0), (4.1e14, 4.6e14, 459e12)
    return Explanation(
        title="llama3-8b, batch 64, length 8,192",
        layout="layout fsdp-sequence.toml",
        target="v5p:4x4x4",
        axes=tuple(axes),
        ops=tuple(ops),
        memory=_memory(),
        time=TimeView(busy, talk, step, busy + talk, waits, *flops, tuple(spans)),
        units=SIZES["batch"] * SIZES["length"],
        notes=("Times assume 60% of the peak.", "Compiler cycles agree with the compiler."),
        repeated=_repeated(),
    )


def _repeated() -> tuple[RepeatedView, ...]:
    """A line whose work an axis repeats, one that has no op, and one that is too small to show."""
    tag, over = "md.loss_and_gradients.1", ("model",)
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
    whole = sample()
    moves = [tuple(replace(move, seconds=None) for move in op.moves) for op in whole.ops]
    ops = tuple(replace(op, moves=its) for op, its in zip(whole.ops, moves, strict=True))
    axes = tuple(replace(axis, lies="", seconds=None) for axis in whole.axes)
    memory = replace(whole.memory, capacity=None)
    return replace(whole, target="", time=None, memory=memory, ops=ops, axes=axes, notes=())


def too_large() -> Explanation:
    whole = sample()
    memory = replace(whole.memory, capacity=16_000_000_000)
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


RATE = 0.6 * 459e12


def _dims(text: str) -> tuple[DimView, ...]:
    found = []
    for word in text.split():
        name, *axes = word.split(":")
        local = SIZES[name] // prod(MESH[axis] for axis in axes)
        found.append(DimView(name, SIZES[name], local, tuple(axes)))
    return tuple(found)


def _array(name: str, kind: str, nest: str, dtype: str, source: str = "") -> TensorView:
    dims = _dims(nest)
    shape = tuple(dim.local for dim in dims)
    size = prod(shape) * (2 if dtype == "bfloat16" else 4)
    return TensorView(name, kind, dims, shape, dtype, size, source)


def _ops() -> list[OpView]:
    found = []
    for rows, loops in ((HEAD, ()), (LAYER, (("layers", 32),)), (TAIL, ())):
        for row in rows.strip().splitlines():
            name, nest, source, moved = (*map(str.strip, row.split(";")), "", "")[:4]
            tag = f"md.loss_and_gradients.{len(found)}"
            found.append(_op(tag, name, NESTS.get(nest, nest), source, moved, loops))
    scale = _array("gradient", "gradient", "layers d_model:data", "float32")
    moved = ("gradient", 1, scale.bytes, "float32", RULE["length"], _seconds(scale.bytes))
    sums, flops = MoveView("psum", ("model",), *moved), {"gradient": 8192.0}
    tag = "md.loss_and_gradients.87"
    found.append(OpView(tag, "gradient", scale.dims, 1, (), "loss.py:13", flops, (sums,)))
    update, flops = _dims("layers d_model:data d_ff:model"), {"optimizer": 2.2e9}
    found.append(OpView("md.adamw.0", "adamw", update, 1, (), "optimizer.py:40", flops, ()))
    return found


def _op(tag: str, name: str, nest: str, source: str, moved: str, loops) -> OpView:
    dims, count = _dims(nest), prod(n for _, n in loops)
    flops = (2.0 if name == "einsum" else 1.0) * prod(dim.local for dim in dims) * count
    again = {"recompute": flops} if loops else {}
    each = {"forward": flops} | again | {"backward": 2 * flops}
    moves = []
    for words in filter(None, moved.split(", ")):
        operation, axes, size = words.split()
        phases = [("forward", operation), ("backward", TRANSPOSED.get(operation))]
        phases += [("recompute", operation)] if loops else []
        for phase, what in phases:
            if what:
                over, n = tuple(axes.split("+")), int(size)
                rest = (n, "bfloat16", RULE[over[-1]], _seconds(n))
                moves.append(MoveView(what, over, phase, count, *rest))
    idle, advice = (("model",), "d_model -> model") if name == "take" else ((), "")
    flops = {} if name in ("rename", "settle") else each
    return OpView(tag, name, dims, count, loops, source, flops, tuple(moves), idle, advice)


def _seconds(size: int) -> float:
    return 2e-6 + size / 180e9


def _spans(ops: list[OpView]) -> list[Span]:
    """Collectives start when the op before theirs does; an op waits for its own."""
    spans: list[Span] = []
    free = {"compute": 0.0}
    for phases, group in _passes(ops):
        loops = group[0].loops
        start = free["compute"]
        turns = prod(n for _, n in loops)
        issue = start
        for op in group:
            ready = free["compute"]
            for phase in phases:
                for move in (m for m in op.moves if m.phase == phase):
                    stream = ", ".join(move.axes)
                    begin = max(free.get(stream, 0.0), issue)
                    free[stream] = end = begin + move.seconds
                    spans.append(Span(stream, move.operation, begin, end, phase, op.tag, turns))
                    ready = max(ready, end)
                if flops := op.flops.get(phase, 0.0) / max(op.count, 1):
                    issue, free["compute"] = ready, ready + flops / RATE
                    end = free["compute"]
                    spans.append(Span("compute", op.name, issue, end, phase, op.tag, turns))
                    ready = end
        if turns > 1:
            end = start + turns * (max(free.values()) - start)
            spans.append(Span("loops", "scan", start, end, phases[-1]))
            free = dict.fromkeys(free, end)
    return spans


def _passes(ops: list[OpView]):
    head, layer, (*tail, _, _) = ops[:3], [op for op in ops if op.loops], ops[22:]
    yield ("forward",), head
    yield ("forward",), layer
    yield ("forward",), tail
    yield ("backward",), tail[::-1]
    yield ("recompute", "backward"), layer[::-1]
    yield ("backward",), head[::-1]
    yield ("gradient", "optimizer"), ops[-2:]


def _memory() -> MemoryView:
    kinds = (("parameter", ""), ("optimizer", "mu."), ("optimizer", "nu."), ("gradient", ""))
    at_rest = [
        _array(prefix + name, kind, nest, "float32")
        for kind, prefix in kinds
        for name, nest in PARAMETERS
    ]
    batch = "batch:data length:model"
    at_rest += [_array(name, "batch", batch, "int32") for name in ("tokens", "targets")]
    arguments = sum(t.bytes for t in at_rest if t.kind != "gradient")
    large = (
        ("softmax", NESTS["SCORES"], "bfloat16", "attention.py:75"),
        ("logits", "batch:data length vocab:model", "float32", "transformer.py:198"),
        ("stack of layers", "layers batch:data length:model d_model", "bfloat16", "stack.py:41"),
        ("up", "batch:data length d_ff:model", "bfloat16", "mlp.py:47"),
        ("gathered", "batch:data length d_model", "bfloat16", "linear.py:30"),
    )
    largest = [_array(name, "activation", *rest) for name, *rest in large]
    largest.sort(key=lambda t: -t.bytes)
    at_peak, capacity = "attention.py:75, backward", 102_005_473_280
    return MemoryView(tuple(at_rest), arguments, 20_413_290_688, tuple(largest), at_peak, capacity)


def ledger() -> LedgerReport:
    """A ledger of two ops, one collective that nobody asked for, and an optimizer."""
    op = "md.loss.3", "einsum[batch_data, length, d_model, d_ff_model]", "mlp.py:47 linear.py:30"
    gather = LedgerEntry(
        *("collective", "all_gather(data)", *op, "forward", RULE["data"], "combined with others"),
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
