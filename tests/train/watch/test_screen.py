"""Steps on the screen."""

import io

from rich.console import Console

from meshdsl.train.watch.screen import progress


def record(step):
    return {
        "step": step,
        "loss": 2.0,
        "bits_per_byte": 2.885,
        "tokens_per_second": 12345.6,
        "seconds": 0.5,
    }


def show(steps, more=None, **console):
    out = io.StringIO()
    with progress(Console(file=out, **console), 0, steps, every=10) as see:
        for step in range(1, steps + 1):
            see(record(step) | (more or {}))
    return out.getvalue()


def test_without_a_terminal_every_nth_step_is_a_line():
    lines = show(25).splitlines()
    assert [line.split()[1] for line in lines] == ["1/25", "10/25", "20/25", "25/25"]
    assert lines[1] == "step 10/25  loss 2.0000  2.885 bits/byte  12,346 tokens/s  0:08 left"


def test_a_line_says_the_mfu_that_a_step_was_skipped_and_hours():
    lines = show(20, {"mfu_causal": 0.4123, "skipped": 1.0, "seconds": 360.0}).splitlines()
    assert lines[1] == (
        "step 10/20  loss 2.0000  2.885 bits/byte  12,346 tokens/s  MFU 41.2%  skipped  "
        "1:00:00 left"
    )


def test_on_a_terminal_there_is_a_bar():
    shown = show(25, {"mfu_causal": 0.4123}, force_terminal=True, width=120)
    for text in ("25/25", "loss 2.0000", "12,346 tokens/s  MFU 41.2%", "left"):
        assert text in shown
