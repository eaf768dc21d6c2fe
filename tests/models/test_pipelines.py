"""Models whose layers run as a pipeline equal the same model on one device, gradients included.

The shipped layouts of pipelines are among those of test_parity, test_documents and test_generate.
Here are more stages, rounds, layers that do not divide, and pipelines inside of a loop.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import only
from tests.models import common

MICRO, ROWS = md.Dim("micro", 2), md.Dim("batch", 8)
BESIDE = {
    "fsdp": {"parameters": ["d_model -> data"]},
    "fsdp-once": {"parameters": ["d_model -> data"], "gather": "step"},
}


def layout(stages: int, rounds: int, beside: str, model: int, schedule: str) -> md.Layout:
    """Of 8 devices: stages, tensor and sequence parallel in each, `beside` over what is left."""
    layers = {"rule": "layers -> stage", "microbatches": {"batch": stages}, "rounds": rounds}
    layers["schedule"] = schedule
    return md.Layout(
        [
            {**layers, "uneven": "pad"},
            "batch -> data, stage",
            "heads?, kv_heads?, d_ff, vocab -> model",
            "length -> model",
        ],
        mesh={"stage": stages, "data": 8 // stages // model, "model": model},
        **BESIDE[beside],
    )


@functools.cache
def one_device(style: str, layers: int, accumulate: bool):
    """Arguments, the function that gives loss and gradients, and what it gives on one device."""
    config = dataclasses.replace(common.CONFIGS[style], layers=layers)
    outer = {"micro": MICRO.size} if accumulate else {}
    batch, key = common.batch(config, rows=ROWS, **outer), jax.random.key(5)
    keys = md.tensor(jax.random.split(key, MICRO.size), MICRO) if accumulate else key
    fn = md.value_and_grad(common.loss, has_aux=True, accumulate=MICRO if accumulate else None)
    args = common.init(config), batch, keys
    return args, fn, jax.jit(fn)(*args)


# Style, layers, then stages, rounds, what is beside the pipeline, the size of `model`, accumulate.
CASES = [
    ("llama", 3, 2, 2, "fsdp-once", 2, False),
    ("llama", 8, 4, 2, "fsdp", 1, False),
    ("llama", 4, 2, 2, "fsdp", 1, True),
    ("gpt2", 3, 2, 1, "fsdp-once", 1, True),
]


SCHEDULES = "late", "early"
ALL = [(*case, schedule) for case in CASES for schedule in SCHEDULES]
OFTEN = [(*case, SCHEDULES[i % 2]) for i, case in enumerate(CASES)]


# tests/ops/test_pipeline.py has the same op by default.
@pytest.mark.parametrize(
    "style, layers, stages, rounds, beside, model, accumulate, schedule", only([], ALL, OFTEN)
)
def test_loss_and_every_gradient_equal_one_device(
    style, layers, stages, rounds, beside, model, accumulate, schedule
):
    args, fn, ((value, aux), grads) = one_device(style, layers, accumulate)
    lowered = md.lower(fn, layout(stages, rounds, beside, model, schedule))
    traced, program = lowered.trace_program(*args)
    (got, got_aux), got_grads = traced.lower().compile()(*args)
    np.testing.assert_allclose(got.array, value.array, rtol=1e-6)
    for name, expected in aux.items():
        np.testing.assert_allclose(got_aux[name].array, expected.array, rtol=1e-6)
    common.assert_same_gradients(got_grads, grads)
    (one,) = {op.schedule for op in program.ops if op.schedule}
    assert (one.stages, one.rounds, one.early) == (stages, rounds, schedule == "early")
