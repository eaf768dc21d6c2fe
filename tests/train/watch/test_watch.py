"""What a record of a step says, and when."""

import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshdsl import hosts
from meshdsl.train.watch import bits_per_byte, perplexity
from meshdsl.train.watch.units import UNITS
from tests.train.common import losses, records
from tests.train.watch.runs import measured, run, watch


def steps(metrics):
    return [one["step"] for one in metrics]


def test_a_loss_in_nats_in_other_units():
    assert bits_per_byte(math.log(2)) == pytest.approx(1.0)
    assert bits_per_byte(math.log(2), bytes_per_token=4.0) == pytest.approx(0.25)
    assert perplexity(math.log(7)) == pytest.approx(7.0)
    assert perplexity(1e9) == math.inf and math.isnan(perplexity(math.nan))


def test_records_come_one_step_late_and_none_is_lost(tmp_path):
    with watch(tmp_path) as seen:
        assert steps(seen.step(1, measured(1))) == []
        assert steps(seen.step(2, measured(2))) == [1]
        assert steps(seen.settle()) == [2]
        assert steps(seen.settle()) == []
        assert steps(seen.step(3, measured(3))) == []
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]


def test_what_is_told_now_and_then_comes_together(tmp_path):
    with watch(tmp_path) as seen:
        for step in (1, 2, 3):
            with seen.spent("input"):
                time.sleep(0.01 * step)
            assert not steps(seen.step(step, measured(step), tell=step == 3))
            assert seen.ended == (step > 1)
        assert records(tmp_path) == []
        assert steps(seen.step(4, measured(4), tell=False)) == [1, 2, 3]
        assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]
        assert steps(seen.settle()) == [4]
        seen.note(4, {"validation_loss": 3.0})
        seen.step(5, measured(5), tell=False)
    found = records(tmp_path)
    assert [record["loss"] for record in found] == [9.0, 8.0, 7.0, 6.0, 5.0]
    assert found[3]["validation_loss"] == 3.0
    # The seconds are those until a step has ended, and not until its loss was known.
    assert [record["input_seconds"] >= 0.01 for record in found[:3]] == [True, True, False]


class Pending:
    """A scalar that is not computed yet: whoever reads it would wait."""

    def copy_to_host_async(self):
        pass

    def __array__(self, *how):
        raise AssertionError("waited for a step that was just started")


def test_a_step_that_was_just_started_is_not_waited_for(tmp_path):
    with pytest.raises(KeyboardInterrupt), watch(tmp_path) as seen:
        seen.step(1, measured(1))
        assert steps(seen.step(2, {"loss": Pending()})) == [1]
        raise KeyboardInterrupt
    assert [record["step"] for record in records(tmp_path)] == [1]


MEASURED = {"cross_entropy": 3.0, "trained": 0.75, "parameter_norm": 2.0, "loss_scale": 8.0}


def test_a_record_has_every_metric_and_every_metric_has_a_unit(tmp_path):
    with watch(tmp_path, peak_flops=1e9, bytes_per_token=2.0) as seen:
        seen.step(1, measured(1, **MEASURED, skipped=1))
        for what in ("input", "checkpoint", "validation"):
            with seen.spent(what):
                pass
        seen.step(2, measured(2, **MEASURED))
    record, last = records(tmp_path)
    assert record["cross_entropy"] == 4.0  # over the tokens that are trained on
    assert record["bits_per_byte"] == pytest.approx(4.0 / math.log(2) / 2.0)
    expected = {"loss": 9.0, "gradient_norm": 1.0, "parameter_norm": 2.0, "loss_scale": 8.0}
    expected |= {"skipped": 1.0, "learning_rate": 0.5, "tokens": 1000}
    assert {name: record[name] for name in expected} == expected
    assert record["tokens_per_second"] == pytest.approx(4 * record["tokens_per_second_per_device"])
    assert record["mfu_full"] == pytest.approx(2 * record["mfu_causal"])
    training = record["input_seconds"] + record["step_seconds"]
    assert record["mfu_causal"] == pytest.approx(4e6 / training / (4 * 1e9))
    assert {*record, *last} <= set(UNITS)


def test_what_is_not_known_is_left_out(tmp_path):
    run(tmp_path, 1, 1)
    names = "step time wait_seconds loss tokens gradient_norm learning_rate tokens_per_second "
    names += "tokens_per_second_per_device seconds input_seconds step_seconds"
    assert set(records(tmp_path)[0]) == set(names.split())


def test_time_is_told_apart_and_adds_up(tmp_path):
    with watch(tmp_path) as seen:
        with seen.spent("input"):
            time.sleep(0.02)
        seen.step(1, measured(1))
        seen.settle()
        with seen.spent("validation"):
            time.sleep(0.03)
        with seen.spent("checkpoint"):
            time.sleep(0.04)
        seen.step(2, measured(2))
    first, second = records(tmp_path)
    assert first["input_seconds"] >= 0.02
    assert first["seconds"] == pytest.approx(first["input_seconds"] + first["step_seconds"])
    assert second["validation_seconds"] >= 0.03 and second["checkpoint_seconds"] >= 0.04
    assert second["input_seconds"] == 0.0
    beside = second["validation_seconds"] + second["checkpoint_seconds"]
    assert second["seconds"] == pytest.approx(beside + second["step_seconds"])
    assert second["tokens_per_second"] == pytest.approx(1000 / (second["seconds"] - beside))


def test_learning_rates_are_right_far_into_a_run(tmp_path):
    run(tmp_path, 2047, 2050)
    assert [record["learning_rate"] for record in records(tmp_path)] == pytest.approx(
        [0.5 / step for step in range(2047, 2051)]
    )


def test_validation_is_part_of_the_record_of_its_step_and_on_disk_before_a_checkpoint(tmp_path):
    with watch(tmp_path) as seen:
        seen.step(1, measured(1))
        seen.step(2, measured(2))
        seen.settle()
        seen.note(2, {"validation_loss": 3.0})
        with seen.spent("checkpoint"):
            assert [record.get("validation_loss") for record in records(tmp_path)] == [None, 3.0]
        seen.step(3, measured(3))
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]


def test_a_run_that_went_back_has_one_record_per_step(tmp_path):
    with watch(tmp_path) as seen:
        for step in (1, 2, 3, 4):
            seen.step(step, measured(step))
        time.sleep(0.2)
        seen.rewind(2)
        for step in (3, 4):
            seen.step(step, measured(step, loss=0.5))
    assert records(tmp_path)[2]["seconds"] < 0.2
    assert losses(tmp_path) == [9.0, 8.0, 0.5, 0.5]


def test_only_process_0_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "first_does", lambda do: None)
    with watch(tmp_path) as seen:
        seen.step(1, measured(1))
        assert [metrics["loss"] for metrics in seen.settle()] == [9.0]
    assert not list(tmp_path.iterdir())


def test_memory_in_use_is_that_of_the_fullest_device(tmp_path, monkeypatch):
    class Device:
        def __init__(self, used):
            self.memory_stats = lambda: {"bytes_in_use": used, "peak_bytes_in_use": 2 * used}

    monkeypatch.setattr(
        jax,
        "local_devices",
        lambda backend=None: [Device(5), Device(7)] if backend is None else jax.devices(backend),
    )
    run(tmp_path, 1, 1)
    (record,) = records(tmp_path)
    assert (record["memory_bytes"], record["memory_peak_bytes"]) == (7, 14)


def test_values_split_over_a_mesh_are_read(tmp_path):
    everywhere = jax.sharding.NamedSharding(
        jax.make_mesh((8,), ("data",)), jax.sharding.PartitionSpec()
    )
    values = {"loss": jnp.float32(2.0), "gradient_norm": np.float32(1.0)}
    with watch(tmp_path) as seen:
        seen.step(1, jax.device_put(values, everywhere))
    assert losses(tmp_path) == [2.0]


def test_every_metric_is_documented_with_its_unit():
    text = (Path(__file__).parents[3] / "docs" / "watching.md").read_text()
    for metric, unit in UNITS.items():
        assert f"| `{metric}` | {unit}" in text
