"""Writes docs/ops.md from the catalogue and docs/api.md from the code: `python -m tests.catalogue`."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import meshdsl as md
from meshdsl.tensor import is_tensor
from tests.catalogue import Case, Entry, api
from tests.catalogue.read import families, lowered_moves

PAGE = Path(__file__).parents[2] / "docs/ops.md"
HEAD = """# Every op

Generated from `tests/catalogue` by `python -m tests.catalogue`; a test keeps it current. Each row was run: the collectives are those that the op itself
asks for in the forward pass when a dim that it works along is split over four devices, and when only others are (then there are none, unless the row
says so). What the layout makes of operands and results comes on top, by the law: see [layouts](layouts.md) and [placements](placements.md). "pending sum" means that the op leaves
a sum that is taken, or scattered, where the result is needed. Dims that do not divide are exact in every row ([uneven dims](placements.md#dims-that-do-not-divide)).
Dims of size 0 are legal in every row, and nothing travels along one; what has to choose an element and finds none (`max`, `argmax`) is an error.
A row gives the same dtype and value as on one device for numbers of any kind: sums of integers wrap around, and an `einsum` of bools is whether any
product is true. Complex numbers are ordered by their real parts, then by their imaginary parts (`max`, `sort`), or refused where JAX refuses them (`argmax`).
The last column names the class of Mesh-TensorFlow that does the same, and what that forbids or lacks.
"""
TAIL = """
## The rest of Mesh-TensorFlow

| class | here |
| --- | --- |
| `ImportOperation`, `Constant` | `tensor`; plain numbers |
| `ImportLaidOutTensorOperation` | `from_local` |
| `Variable`, `ReadVariable`, `Assign` | `parameter`: a model is a pytree of values, and a step returns the next one |
| `Depend` | none needed: programs are functions, and XLA orders them |
| `PoolBackPropOperation`, `Conv2or3dBackpropInputOperation`, `Conv2or3dBackpropFilterOperation` | none needed: JAX differentiates the lowered program |
| `ScalarSummaryOperation` | what a loss function returns beside its value |
| `PrintOperation` | `jax.debug.print` on `x.array`, on each device |
"""
TITLES = {
    "component": "Component-wise", "contract": "Contracting", "reduce": "Reducing", "shape": "Shape", "index": "Indexing, cutting and running along a dim",
    "order": "Order", "scatter": "Scattering, segments and triangles", "conv": "Convolution and pooling", "control": "Control flow and calculus",
    "random": "Randomness", "placement": "Placement",
}  # fmt: skip


class Fixed:
    """The same arguments every time: dims of eight, numbers of one seed, the first of all options."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def dims(self, *names, low=0):
        return tuple(md.Dim(name, max(8, -(-low // 4) * 4)) for name in names)

    def tensor(self, *dims, low=-1.0, high=1.0):
        return md.tensor(
            self.rng.uniform(low, high, [d.size for d in dims]).astype(np.float32), dims
        )

    def integers(self, *dims, below):
        return md.tensor(self.rng.integers(0, below, [d.size for d in dims]).astype(np.int32), dims)

    def integer(self, low, high):
        return min(max(low, 2), high)

    def pick(self, *options):
        return options[0]


def shape(case: Case) -> str:
    """`[a, b], [b] -> [a]`: the dims of the operands and of the results of an example."""
    names = lambda t: f"[{', '.join(d.name for d in t.dims)}]"
    results = jax.tree.leaves(jax.eval_shape(case.fn, *case.args), is_leaf=is_tensor)
    operands = [t for t in jax.tree.leaves(case.args, is_leaf=is_tensor) if is_tensor(t)]
    return f"{', '.join(map(names, operands)) or '()'} -> {', '.join(dict.fromkeys(names(t) for t in results if is_tensor(t)))}"


def moves(case: Case, along) -> str:
    """What the ops of an example move when the dims `along` are split, each over four devices in turn."""
    seen, waits = set(), False
    for dim in along:
        found, pending = lowered_moves(
            case, md.Layout([f"{dim.name} -> p"], mesh={"p": 4}, uneven="pad"), [dim]
        )
        seen, waits = seen | found, waits or pending
    words = [*sorted(seen), *(["pending sum"] if waits else [])]
    return ", ".join(words) or "none"


def rows(entries: list[Entry]) -> list[str]:
    """A line for each entry; those that differ in nothing but the name share one."""
    lines: dict[tuple, list[str]] = {}
    for entry in entries:
        case = entry.example(Fixed())
        every = {
            d for t in jax.tree.leaves(case.args, is_leaf=is_tensor) if is_tensor(t) for d in t.dims
        }
        others = sorted(every.difference(case.along), key=lambda d: d.name)
        split = moves(case, case.along) if case.along else "works along none"
        row = (shape(case), entry.local, moves(case, others), split, entry.mesh_tensorflow or "-")
        lines.setdefault(row, []).append(f"`{entry.op}`")
    return [f"| {' '.join(names)} | {' | '.join(row)} |" for row, names in lines.items()]


def page() -> str:
    parts = [HEAD]
    for family, entries in families().items():
        parts += [
            f"\n## {TITLES[family]}\n",
            "| op | dims | what each device computes | other dims split | a dim it works along split | Mesh-TensorFlow |",
        ]
        parts += ["| --- | --- | --- | --- | --- | --- |", *rows(entries)]
    return "\n".join(parts) + "\n" + TAIL


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    PAGE.write_text(page())
    api.PAGE.write_text(api.page(TITLES))
