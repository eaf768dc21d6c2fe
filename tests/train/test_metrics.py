"""Records of steps: on disk and on screen."""

import io
import json

import pytest
from rich.console import Console

from meshdsl.train.metrics import MetricsFile, bits_per_byte, progress


def record(step):
    return {"step": step, "loss": 2.0, "bits_per_byte": 2.885, "tokens_per_second": 12345.6, "seconds": 0.5}


def test_a_loss_in_nats_is_shown_in_bits():
    assert bits_per_byte(0.6931471805599453) == pytest.approx(1.0)


def test_a_resumed_file_has_one_record_per_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, steps=0) as file:
        for step in (1, 2, 3, 4):
            file.write(record(step))
    path.write_text(path.read_text() + '{"step": 5, "lo')  # killed while it wrote
    with MetricsFile(path, steps=2) as file:
        file.write(record(3))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def show(steps, **console):
    out = io.StringIO()
    with progress(Console(file=out, **console), 0, steps, log_every=10) as see:
        for step in range(1, steps + 1):
            see(record(step))
    return out.getvalue()


def test_without_a_terminal_every_nth_step_is_a_line():
    lines = show(25).splitlines()
    assert [line.split()[1] for line in lines] == ["1/25", "10/25", "20/25", "25/25"]
    assert lines[1] == "step 10/25  loss 2.0000  2.885 bits/byte  12,346 tokens/s  0:08 left"


def test_on_a_terminal_there_is_a_bar():
    shown = show(25, force_terminal=True, width=100)
    assert "25/25" in shown and "loss 2.0000" in shown and "12,346 tokens/s" in shown and "left" in shown
