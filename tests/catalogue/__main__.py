"""Writes docs/ops.md, the row of each op: `python -m tests.catalogue`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import meshdsl as md
from meshdsl.ops.declare import Case, Declaration
from meshdsl.tensor import is_tensor
from tests.catalogue.read import families, lowered_moves

PAGE = Path(__file__).parents[2] / "docs/ops.md"
HEAD = """# Every op

Generated from the declarations in `meshdsl/ops` by `python -m tests.catalogue`; a test keeps it
current. Each row was run: the collectives are those that the op itself asks for in the forward pass
when a dim that it works along is split over four devices, and when only others are (then there are
none, unless the row says so). What the layout makes of operands and results comes on top, by the
law: see [layouts](layouts.md) and [placements](placements.md). "pending sum" means that the op
leaves a sum that is taken, or scattered, where the result is needed. Dims that do not divide are
exact in every row ([uneven dims](placements.md#dims-that-do-not-divide)). Dims of size 0 are legal
in every row, and nothing travels along one; what has to choose an element and finds none (`max`,
`argmax`) is an error. A row gives the same dtype and value as on one device for numbers of any
kind: sums of integers wrap around, and an `einsum` of bools is whether any product is true. Complex
numbers are ordered by their real parts, then by their imaginary parts (`max`, `sort`), or refused
where JAX refuses them (`argmax`). The last column names the class of Mesh-TensorFlow that does the
same, and what that forbids or lacks.
"""
COLUMNS = (
    "op",
    "dims",
    "what each device computes",
    "other dims split",
    "a dim it works along split",
    "Mesh-TensorFlow",
)
BACKPROP = ", ".join(
    f"`{name}`"
    for name in (
        "PoolBackPropOperation",
        "Conv2or3dBackpropInputOperation",
        "Conv2or3dBackpropFilterOperation",
    )
)
REST = {
    "`ImportOperation`, `Constant`": "`tensor`; plain numbers",
    "`ImportLaidOutTensorOperation`": "`from_local`",
    "`Variable`, `ReadVariable`, `Assign`": "`parameter`: a model is a pytree of values, "
    "and a step returns the next one",
    "`Depend`": "none needed: programs are functions, and XLA orders them",
    BACKPROP: "none needed: JAX differentiates the lowered program",
    "`ScalarSummaryOperation`": "what a loss function returns beside its value",
    "`PrintOperation`": "`jax.debug.print` on `x.array`, on each device",
}


class Fixed:
    """A `Draw` of the same arguments every time.

    Dims have a size of eight, numbers are of one seed, and of options it is the first.
    """

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


def tensors(tree) -> list[md.Tensor]:
    """The Tensors in a tree."""
    return [t for t in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(t)]


def shape(case: Case) -> str:
    """`[a, b], [b] -> [a]`: the dims of the operands and of the results of an example."""
    names = lambda t: f"[{', '.join(d.name for d in t.dims)}]"
    operands = map(names, tensors(case.args))
    results = map(names, tensors(jax.eval_shape(case.fn, *case.args)))
    return f"{', '.join(operands) or '()'} -> {', '.join(dict.fromkeys(results))}"


def moves(case: Case, along) -> str:
    """What the ops of an example move when each of the dims `along` is split over four devices."""
    seen, waits = set(), False
    for dim in along:
        found, pending = lowered_moves(
            case, md.Layout([f"{dim.name} -> p"], mesh={"p": 4}, uneven="pad"), [dim]
        )
        seen, waits = seen | found, waits or pending
    words = [*sorted(seen), *(["pending sum"] if waits else [])]
    return ", ".join(words) or "none"


def line(cells: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def rows(declarations: list[Declaration]) -> list[str]:
    """A line for each declaration; those that differ in nothing but the name share one."""
    lines: dict[tuple, list[str]] = {}
    for d in declarations:
        case = d.case(Fixed())
        every = {dim for t in tensors(case.args) for dim in t.dims}
        others = sorted(every.difference(case.along), key=lambda dim: dim.name)
        split = moves(case, case.along) if case.along else "works along none"
        row = (shape(case), d.computes, moves(case, others), split, d.mesh_tensorflow or "-")
        lines.setdefault(row, []).append(f"`{d.name}`")
    return [line((" ".join(names), *row)) for row, names in lines.items()]


def page() -> str:
    """The text of docs/ops.md."""
    parts = [HEAD]
    for title, declarations in families().items():
        parts += [f"\n## {title}\n", line(COLUMNS), line(["---"] * len(COLUMNS))]
        parts += rows(declarations)
    parts += ["", "## The rest of Mesh-TensorFlow", "", line(("class", "here"))]
    parts += [line(["---"] * 2), *map(line, REST.items())]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    PAGE.write_text(page())
