"""Small states, and folders of checkpoints of them."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.tensor import parameter
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.config import Optimizer, Schedule
from meshdsl.train.optimizer import make_optimizer

FSDP = Layout(["batch -> data"], parameters=["d_model -> data"], mesh={"data": 8}, name="fsdp")
TENSOR = Layout(["batch -> data", "d_ff -> model"], mesh={"data": 2, "model": 2}, name="tensor")
ONE = Layout([], mesh={}, name="one")


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any
    key: Any


def make_state(layout=FSDP, d_ff=16, optimizer="adamw", seed=0):
    """A state of a matrix, a scale in bfloat16 and an optimizer, on the mesh of `layout`."""
    return _made(layout.name, d_ff, optimizer, seed)


@cache
def _made(name, d_ff, optimizer, seed):
    layout = next(each for each in (FSDP, TENSOR, ONE) if each.name == name)
    model, ff = Dim("d_model", 8), Dim("d_ff", d_ff)

    def make():
        params = {
            "up": parameter(
                jax.random.normal(jax.random.key(seed), (8, d_ff)), (model, ff), ins=(model,)
            ),
            "scale": parameter(jnp.linspace(1, 2, 8, dtype=jnp.bfloat16), (model,)),
        }
        opt_state = make_optimizer(
            Optimizer(name=optimizer, learning_rate=1e-3), Schedule(), steps=10
        ).init(params)
        return State(jnp.int32(seed), params, opt_state, jax.random.key(seed))

    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make), layout, make_mesh(layout)))()


def assert_equal(one, two):
    plain = lambda x: (
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(plain(a), plain(b)), one, two)


def opened(run: Path, report=print, **settings) -> Checkpoints:
    return Checkpoints(run / "checkpoints", **settings, report=report)


def saved(run: Path, states: dict[int, Any], **settings) -> None:
    """Checkpoints of `states` by step in the folder of a run."""
    checkpoints = opened(run, **settings)
    for step, state in states.items():
        checkpoints.save(step, state, {"next_index": step})
    checkpoints.close()
