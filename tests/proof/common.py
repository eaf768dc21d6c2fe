"""A small step of training, its program under a layout, and what it computes on one device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from meshdsl.program.program import Program
from meshdsl.proof import Proof, Reference
from meshdsl.proof.simulated import evaluated
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

TINY = (
    *("model.layers=2", "model.d_model=16", "model.heads=4", "model.kv_heads=4", "batch=8"),
    *("model.head_dim=4", "model.d_ff=32", "model.vocab=32", "model.length=8"),
)
_BOTH = {"data": 2, "model": 2}
_FSDP = ["d_model -> data"]
_TENSOR = ["batch -> data", "heads?, kv_heads?, d_ff, vocab -> model"]


def in_zigzag(data: int, context: int) -> md.Layout:
    """Rows in zigzag order, whose keys and values go round a ring."""
    order = {"order": "zigzag"}
    rules: list[Any] = [
        "batch -> data",
        {"rule": "length -> context", **order},
        {"rule": "queries? -> context", **order},
        {"rule": "memory? -> context", **order, "move": "ring"},
    ]
    mesh = {"data": data, "context": context}
    return md.Layout(rules, ["d_model -> data, context"], mesh=mesh)


LAYOUTS = {
    "fsdp": md.Layout(["batch -> data, model"], ["d_model -> data, model"], mesh=_BOTH),
    "fsdp-tensor": md.Layout(_TENSOR, _FSDP, mesh=_BOTH),
    "pipeline": md.Layout(
        [
            {"rule": "layers -> stage", "microbatches": {"batch": 4}},
            "batch -> data, stage",
        ],
        mesh={"stage": 2, "data": 2},
    ),
    "sequence": md.Layout([*_TENSOR, "length -> model"], _FSDP, mesh=_BOTH),
    "ulysses": md.Layout(
        ["batch -> data", "heads?, kv_heads? -> model", "queries, length -> model"],
        _FSDP,
        mesh=_BOTH,
    ),
    "zigzag": in_zigzag(2, 2),
    "zigzag-turns": in_zigzag(1, 4),
    "zero": md.Layout(["batch -> data"], optimizer=["d_model -> data"], mesh={"data": 4}),
}


def program(layout: md.Layout, *settings: str) -> Program:
    """The program of a step under a layout."""
    sizes = {axis: 8 if size == "rest" else int(size) for axis, size in layout.mesh.items()}
    mesh: Any = abstract_mesh(sizes)
    return Job(override(Config(), [*TINY, *settings]), layout, mesh).program()


@functools.cache
def reference(*settings: str) -> Reference:
    return Reference(program(md.Layout(), *settings).jaxpr)


def proof(layout: md.Layout, *settings: str) -> Proof:
    """What is proved of the program of a step under a layout."""
    found = program(layout, *settings)
    return reference(*settings).agrees(found.jaxpr, [result.name for result in found.results])


def computed(program: Any, args: Sequence[Any]) -> list[Any]:
    """What a program computes. It is compiled as a whole: by itself each operation takes longer."""
    return jax.jit(functools.partial(evaluated, program))(list(args))


@functools.cache
def on_one_device() -> tuple[Sequence[Any], list[Any]]:
    """Arguments of a step, and what it computes of them."""
    random = np.random.default_rng(0)
    one = program(md.Layout()).jaxpr

    def value(aval: Any) -> Any:
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            return jax.random.key(1)
        if jnp.issubdtype(aval.dtype, jnp.integer):
            return jnp.asarray(random.integers(0, 8, aval.shape), aval.dtype)
        return jnp.asarray(0.1 + random.random(aval.shape) / 2, aval.dtype)

    args = [value(var.aval) for var in one.jaxpr.invars]
    return args, computed(one, args)


def same(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-4) -> bool:
    """Whether numbers are the same, up to the order of sums."""
    for a, b in zip(found, expected, strict=True):
        if jnp.issubdtype(b.dtype, jax.dtypes.extended):
            continue
        a, b = np.asarray(a, float), np.asarray(b, float)
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * max(1e-3, np.abs(b).max())):
            return False
    return True
