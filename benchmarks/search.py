"""How good the layouts are that a search finds, and how long it takes.

    python -m benchmarks.search regret
    python -m benchmarks.search regret --of block
    python -m benchmarks.search time

`regret`: the gradients of a function on 64 v5p in a mesh of 8 x 8. Every layout of a restricted
kind is estimated, and searches of the same function are held against the best of them. `perceptron`
has two layers and a table of logits: for each axis an ordered list of at most two dims for all
values, and one of a few for parameters; it takes half an hour. `block` is attention and a
perceptron, with at most two of batch, length, heads and d_ff for each axis, and d_model for
parameters or not; it takes some minutes.

`time`: `meshdsl search` as a user calls it, with the import of JAX and the first trace.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import permutations, product

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.judge import Judge, rank
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.plan import Plan, rule_of
from meshdsl.layout_search.text import candidate_lines
from meshdsl.layout_search.workload import Workload
from meshdsl.machine import find_target
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.tools.search import function_workload

from .measure import show

TARGET, AXES = "v5p:4x4x4", {"data": 8, "model": 8}
BATCH, D, F, VOCAB = (
    md.Dim(name, size)
    for name, size in {"batch": 32768, "d_model": 4096, "d_ff": 16384, "vocab": 32768}.items()
)
COMMANDS = {
    "llama3-8b, 64": "--model llama3-8b --target v5p:4x4x4 --batch 32 --seconds 4.7",
    "llama3-70b, 512": (
        "--model llama3-70b --target v5p:8x8x8 --batch 256 --length 4096 --seconds 9"
    ),
    "llama3-70b, 1,024": "--model llama3-70b --target v5p:8x8x16 --batch 256 --seconds 9",
}


def weight(*dims):
    shape = jax.ShapeDtypeStruct(tuple(d.size for d in dims), jnp.bfloat16)
    return md.parameter(shape, dims, ins=dims[0])


def perceptron():
    """The loss of a perceptron, and its arguments."""

    def loss(weights, x):
        hidden = md.gelu(md.einsum(x, weights["up"], out=(BATCH, F)))
        y = md.einsum(hidden, weights["down"], out=(BATCH, D))
        logits = md.einsum(y, weights["head"], out=(BATCH, VOCAB))
        return md.mean(md.logsumexp(md.cast(logits, jnp.float32), VOCAB))

    weights = {"up": weight(D, F), "down": weight(F, D), "head": weight(D, VOCAB)}
    x = md.tensor(jax.ShapeDtypeStruct((BATCH.size, D.size), jnp.bfloat16), (BATCH, D))
    return loss, (weights, x)


def block():
    """The loss of attention and a perceptron, and its arguments."""
    rows, length = md.Dim("batch", 64), md.Dim("length", 4096)
    heads, head_dim = md.Dim("heads", 32), md.Dim("head_dim", 128)

    def loss(weights, x):
        q, k, v = (
            md.einsum(x, weights[name], out=(rows, heads, length, head_dim)) for name in "qkv"
        )
        k, v = (md.rename(t, "length", "memory") for t in (k, v))
        found = md.attention(md.rename(q, "length", "queries"), k, v, causal=True)
        found = md.rename(found, "queries", "length")
        y = x + md.einsum(found, weights["o"], out=(rows, length, D))
        hidden = md.gelu(md.einsum(y, weights["up"], out=(rows, length, F)))
        y = y + md.einsum(hidden, weights["down"], out=(rows, length, D))
        return md.mean(md.square(md.cast(y, jnp.float32)))

    weights = {name: weight(D, heads, head_dim) for name in "qkv"}
    weights |= {"o": weight(heads, head_dim, D), "up": weight(D, F), "down": weight(F, D)}
    shape = jax.ShapeDtypeStruct((rows.size, length.size, D.size), jnp.bfloat16)
    return loss, (weights, md.tensor(shape, (rows, length, D)))


def workload(of: str) -> Workload:
    loss, args = WORKLOADS[of]()
    target = find_target(TARGET)
    mesh = abstract_mesh(dict(AXES), target.chip.kind)
    lowered = md.lower(md.value_and_grad(loss), md.Layout(mesh=AXES), mesh)
    return function_workload(lowered, args, target, of, _never)


def _never(layout):
    raise NotImplementedError("nothing is compiled here")


WORKLOADS = {"perceptron": perceptron, "block": block}
# The dims of which an axis may split two, and what it may split at rest. A dim that has other names
# inside of attention is split there as well.
DIMS = {
    "perceptron": (
        ("batch", "d_model", "d_ff", "vocab"),
        ((), ("batch",), ("d_model",), ("d_ff",), ("vocab",), ("d_model", "vocab")),
    ),
    "block": (("batch", "length", "heads", "d_ff"), ((), ("d_model",))),
}
ALSO = {"length": ("length", "queries", "memory")}


def plans(of: str) -> Iterator[Plan]:
    """Every layout of the restricted kind."""
    names, at_rest = DIMS[of]
    rules = [dims for n in range(3) for dims in permutations(names, n)]
    for lists in product(rules, rules, at_rest, at_rest):
        levels = ("rules", "rules", "parameters", "parameters")
        lines = tuple(
            rule_of(level, name, axis)
            for level, axis, dims in zip(levels, (*AXES, *AXES), lists, strict=True)
            for dim in dims
            for name in (ALSO.get(dim, (dim,)) if of == "block" else (dim,))
        )
        yield Plan(tuple(AXES.items()), lines)


def regret(of: str, evaluations: list[int]) -> None:
    began = time.monotonic()
    judge = Judge(workload(of), find_target(TARGET).chip.hbm or 0)
    for i, plan in enumerate(plans(of), 1):
        judge(plan)
        if i % 200 == 0:
            print(f"  {i:,} layouts, {time.monotonic() - began:.0f} s", file=sys.stderr)
    best = min(judge.judged.values(), key=rank)
    print("\n".join(candidate_lines(best.candidate)))
    rows = [("search", "step", "regret", "estimates", "CPU s", "ended")]
    count = f"{len(judge.judged):,}"
    rows.append(("every layout", f"{best.step * 1e3:.3f} ms", "-", count, "-", "-"))
    for count in evaluations:
        cpu = time.process_time()
        found = find(workload(of), Constraints(mesh=AXES), seconds=None, evaluations=count)
        rows.append(
            (
                f"of {count} estimates",
                f"{found.best.step * 1e3:.3f} ms",
                f"{found.best.step / best.step - 1:+.2%}",
                f"{found.explained}",
                f"{time.process_time() - cpu:.1f}",
                f"{found.ended}",
            )
        )
        print("\n".join(candidate_lines(found.best.candidate)))
    show(rows)


def times() -> None:
    rows = [("model and chips", "wall", "CPU", "estimated", "best", "best shipped")]
    for name, words in COMMANDS.items():
        began, before = time.monotonic(), _cpu_of_children()
        command = [sys.executable, "-m", "meshdsl_cli", "search", *words.split()]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        wall, cpu = time.monotonic() - began, _cpu_of_children() - before
        said = re.search(r"searched: ([\d,]+) layouts estimated", out)
        best = re.search(r"^best: step ([\d.]+ \w+)", out, re.M)
        shipped = re.search(r"^.*(faster|fast as|it is the shipped).*$", out, re.M)
        assert said and best and shipped, out
        rows.append((name, f"{wall:.1f} s", f"{cpu:.1f} s", *said.groups(), best[1], shipped[0]))
    show(rows)


def _cpu_of_children() -> float:
    """Seconds that processes that were started and have ended computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["regret", "time"])
    parser.add_argument("--of", choices=list(WORKLOADS), default="perceptron")
    parser.add_argument("--evaluations", type=int, nargs="+", default=[12, 24, 48, 96])
    given = parser.parse_args()
    compile_only()
    if given.what == "time":
        times()
    else:
        regret(given.of, given.evaluations)
