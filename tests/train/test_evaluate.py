"""Losses on held-out batches: exact, whatever fills them up."""

import functools
import math

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.train.evaluate import Evaluator
from meshdsl.train.job import Job
from tests.train.common import tiny_job


def job(layout: str, *settings: str) -> Job:
    return tiny_job(layout, "model.vocab=64", "model.dropout=0.2", *settings)


@functools.cache
def first(layout: str):
    """The parameters that a run begins with."""
    return job(layout).step.init(jax.random.key(0)).params


def batches(*filled: int, separate: bool = False) -> list[dict[str, np.ndarray]]:
    """A batch for each number of rows that have targets."""
    rng = np.random.default_rng(0)
    made = []
    for rows in filled:
        tokens, targets = rng.integers(0, 64, (2, 8, 16), np.int32)
        targets[rows:] = -1
        made.append({"tokens": tokens, "targets": targets})
        if separate:
            targets[:, 4] = -1
            made[-1] |= {
                "segments": np.tile(np.arange(16) > 4, (8, 1)).astype(np.int32),
                "positions": np.tile([*range(5), *range(11)], (8, 1)).astype(np.int32),
            }
    return made


def test_a_loss_is_the_mean_over_all_targets_of_all_batches():
    made = job("single")
    params, data = first("single"), batches(8, 3)
    nats_of = jax.jit(lambda *rows: params.nats(*rows).array)
    nats = []
    for batch in data:
        rows = [md.tensor(batch[name], made.held_out[name].dims) for name in ("tokens", "targets")]
        nats.append(np.asarray(nats_of(*rows)))
    found = Evaluator(made).measure(params, {"some": data, "none": batches(0)})
    expected = (nats[0].sum() + nats[1][:3].sum()) / (11 * 16)
    assert found["some"]["loss"] == pytest.approx(expected, rel=1e-6)
    assert math.isnan(found["none"]["loss"])


def test_losses_are_the_same_under_a_layout_that_splits_everything_each_dataset_by_itself():
    data = {"one": batches(8, 5, separate=True), "two": batches(2, separate=True)}
    found = []
    for name in ("single", "fsdp-sequence"):
        made = job(name, "data.separate=true")
        evaluator = Evaluator(made)
        found.append(evaluator.measure(first(name), data))
        assert evaluator._sums._cache_size() == 1
    for name in data:
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-5)
    assert found[0]["one"] != found[0]["two"]


def test_losses_are_computed_in_the_precision_of_the_run():
    wide, narrow = job("single"), job("single", "precision.compute=bfloat16")
    exact, rounded = (
        Evaluator(each).measure(first("single"), {"some": batches(8)})["some"]["loss"]
        for each in (wide, narrow)
    )
    assert exact != rounded == pytest.approx(exact, rel=1e-2)
