"""Functions for searches in tests, small enough that an estimate of one takes little time."""

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.layout_search.workload import Workload
from meshdsl.machine import Target, find_target
from meshdsl.mesh import abstract_mesh
from meshdsl.tools.search import function_workload

BATCH, D, F = md.Dim("batch", 512), md.Dim("d", 4096), md.Dim("f", 16384)


def weight(*dims):
    return md.parameter(
        jax.ShapeDtypeStruct(tuple(d.size for d in dims), jnp.float32), dims, ins=dims[0]
    )


def loss(weights, x):
    hidden = md.relu(md.einsum(x, weights["up"], out=(BATCH, F)))
    y = md.einsum(hidden, weights["down"], out=(BATCH, D))
    return md.mean(y * y)


WEIGHTS = {"up": weight(D, F), "down": weight(F, D)}
ROWS = md.tensor(jax.ShapeDtypeStruct((BATCH.size, D.size), jnp.float32), (BATCH, D))
STEP = md.value_and_grad(loss)


def workload(target: Target | str) -> Workload:
    """The gradients of a loss of two products."""
    found = find_target(target) if isinstance(target, str) else target
    mesh = abstract_mesh({"data": found.devices}, found.chip.kind)
    lowered = md.lower(STEP, md.Layout(mesh={"data": found.devices}), mesh)
    return function_workload(lowered, (WEIGHTS, ROWS), found, "two products", lambda layout: None)
