"""How runs stand, while they go on, when they were killed, and when they have ended."""

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from meshdsl import MeshDSLError
from meshdsl.commands.top import watch_runs
from meshdsl.figures import clock_words, long_words
from meshdsl.train.watch.event_words import event_words
from meshdsl.train.watch.metrics_file import MetricsReader
from meshdsl.train.watch.standing import RunReader
from meshdsl.train.watch.standing_text import chart, standing_lines
from meshdsl_cli.parser import parse

NOW = 1_800_000_000.0


def write(path, lines, torn=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def write_run(folder, began=NOW - 100.0, end=None, steps=40):
    """A run that was killed and went on: 40 of 80 steps, a second each, of which two were lost."""
    start = {"time": began, "event": "start", "step": 0, "steps": 80, "devices": 8}
    again = {**start, "time": began + 35, "step": 20, "seen": began + 30, "processes": 2}
    parts = {"startup_seconds": 8.0, "startup_compile_seconds": 6.0, "startup_data_seconds": 2.0}
    events = [
        start,
        {"time": began + 8, "event": "first_step", "step": 1, **parts},
        {"time": began + 28, "event": "checkpoint", "step": 20, "seconds": 0.5},
        again,
        {"time": began + 40, "event": "lost", "step": 20, "steps": 2, "last": 22, "seconds": 2.0},
        {"time": began + 43, "event": "first_step", "step": 21, **parts},
        {"time": began + 50, "event": "slow", "step": 25, "processes": [1], "hosts": ["b"]},
        *([{"time": began + 70, "event": "end", "step": steps, **end}] if end else []),
    ]
    lines = [
        {
            "step": step,
            "loss": 5.0 / step,
            "time": began + 8 + step + (15 if step > 20 else 0),
            "tokens_per_second": 1000.0,
            "mfu_causal": 0.4,
            "memory_bytes": 3 * 2**30,
            "seconds": 1.0,
            "step_seconds": 1.0,
            "wait_seconds": 0.9,
            **({"validation_loss": 0.5} if step % 10 == 0 else {}),
        }
        for step in range(1, steps + 1)
    ]
    write(folder / "events.jsonl", events, torn='{"time": 18000')
    write(folder / "metrics.jsonl", lines, torn='{"step": 41, "lo')
    return folder


def top(*words):
    return watch_runs(parse(["top", *map(str, words)]).arguments)


def test_a_run_is_shown_in_lines(tmp_path):
    standing = RunReader("a", write_run(tmp_path / "a")).standing(NOW - 35)
    lines = list(standing_lines(standing, 80))
    assert lines[0] == "a  running  step 40 of 80  left 0:40"
    assert lines[1].strip().startswith("2.") or lines[1].strip().startswith("5")
    facts = "loss 0.1250  validation loss 0.5000  tokens/s 1,000  MFU 40.0%  memory 3.00 GiB"
    goodput = "goodput 61.5% of 1:05, 2 starts"
    assert facts in lines and goodput in lines
    at = lines.index(goodput)
    assert lines[at + 1] == "   24.6%      0:16  starting: compile 0:12, data 0:04"
    assert "    3.1%      0:02  steps that were trained again: 2 steps" in lines
    assert lines[-5] == "     35 s ago  gone without a word"
    assert lines[-4].endswith("started on 8 devices of 2 processes, goes on after step 20")
    assert lines[-1] == "     15 s ago  slow: process 1 (b)"
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("later", "end", "state"),
    [
        (-30.0, None, "running"),
        (3600.0, None, "no sign of life"),
        (0.0, {"reason": "preempted"}, "preempted"),
        (0.0, {"reason": "MeshDSLError", "error": "no room"}, "MeshDSLError"),
    ],
)
def test_the_state_of_a_run_follows_from_its_last_sign_of_life(tmp_path, later, end, state):
    standing = RunReader("a", write_run(tmp_path / "a", end=end)).standing(NOW + later)
    assert standing.state == state


def test_a_run_that_starts_and_one_without_events_are_shown(tmp_path, capsys):
    write(tmp_path / "a/events.jsonl", [{"time": time.time(), "event": "start", "steps": 9}])
    write(
        tmp_path / "b/metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}]
    )
    assert top(tmp_path / "a", tmp_path / "b", "--once") == 0
    out = capsys.readouterr().out
    assert "a  starting for 0 s  step 0 of 9\n" in out and "b  unknown  step 2\n" in out
    assert top(tmp_path / "a", tmp_path / "b", "--page", tmp_path / "page.html") == 0


def test_the_page_is_one_file_that_loads_nothing_and_shows_every_event(tmp_path, capsys):
    folder = write_run(tmp_path / "<b>&", end={"reason": "Boom", "error": "<i>"})
    assert top(folder, "--page", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert capsys.readouterr().err == f"wrote {tmp_path}/page.html\n"
    assert "default-src 'none'" in text and not re.search(r"<script|<link|<img|http://|src=", text)
    assert "<b>" not in text and "&lt;b&gt;&amp;" in text and "ended by Boom: &lt;i&gt;" in text
    assert "style=" not in text and 'http-equiv="refresh"' not in text
    for words in ("Loss", "Tokens per second", "MFU", "Memory", "Goodput", "gone without a word"):
        assert words in text
    assert text.count('class="curve"') == 4 * 2  # the run was away once
    assert "nan" not in text and "inf" not in text.split("<main")[1]


def test_what_cannot_be_shown_is_one_clear_error(tmp_path):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run-1")
    for words, says in (
        ([tmp_path / "run-2"], f"no run {tmp_path}/run-2; did you mean `run-1`?"),
        ([tmp_path / "empty"], f"{tmp_path}/empty: is no run, it has no metrics.jsonl"),
        ([tmp_path], f"{tmp_path}: is no run, it has no metrics.jsonl; its folders have: run-1"),
        ([tmp_path / "run-1", "--every", "2"], "--every: says how often a page is written; say -"),
        (
            [tmp_path / "run-1", "--page", tmp_path / "no/page.html"],
            f"--page {tmp_path}/no/page.html: No such file or directory",
        ),
    ):
        with pytest.raises(MeshDSLError) as error:
            top(*words)
        assert str(error.value).startswith(says)


def test_a_file_that_grows_is_read_on_and_one_that_was_cut_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    read = MetricsReader(path, lambda name: name != "b")
    seen = lambda: [line["step"] for line in read.lines()]
    assert seen() == []
    write(path, [{"step": 1, "b": 2}], torn='{"step": 2, ')
    assert read.lines() == [{"step": 1}]
    with path.open("a") as file:
        file.write('"c": 1}\n{"step": 3, "c": 1}\n')
    assert seen() == [1, 2, 3]
    write(tmp_path / "part", [{"step": 1, "c": 5}, {"step": 2, "c": 5}])
    (tmp_path / "part").replace(path)
    assert seen() == [1, 2]


def test_a_chart_goes_down_as_its_values_do():
    lines = chart([10.0 - i for i in range(10)], 20)
    assert len(lines) == 8 and lines[0].strip().startswith("10 ") and lines[-1].strip()[0] == "1"
    first = [len(line) for line in lines]
    assert first == sorted(first)
    assert chart([float("nan")], 20) == [] and chart([], 20) == []
    assert chart([2.0, float("nan"), 2.0], 4)[4].strip()


def test_events_and_times_in_words():
    assert (
        event_words({"time": 0, "event": "relayout", "layout": "fsdp"}) == "relayout, layout fsdp"
    )
    assert (
        event_words({"time": 0, "event": "slow", "processes": []}) == "no process is slow any more"
    )
    back = {"time": 0, "event": "rollback", "step": 4, "last": 5, "seconds": 1.5}
    assert event_words(back) == "rolled back to step 4; step 5 is trained again (1.5 s)"
    assert [clock_words(s) for s in (5, 754, 3723)] == ["0:05", "12:34", "1:02:03"]
    assert [long_words(s) for s in (-1, 12, 300, 7200, 200_000)] == [
        "0 s",
        "12 s",
        "5.0 min",
        "2.0 h",
        "2.3 days",
    ]


@pytest.mark.slow
def test_in_a_terminal_it_is_drawn_again_until_ctrl_c(tmp_path):
    write_run(tmp_path / "a", began=time.time() - 70)
    mine, its = pty.openpty()
    command = [sys.executable, "-m", "meshdsl_cli", "top", str(tmp_path / "a")]
    process = subprocess.Popen(command, stdout=its, env={**os.environ, "TERM": "xterm"})
    os.close(its)
    shown = b""
    try:
        while shown.count(b"goodput") < 2:
            shown += os.read(mine, 1024)
        process.send_signal(2)
        while process.poll() is None:
            os.read(mine, 1024)
    except OSError:  # it has closed the terminal
        pass
    finally:
        process.kill()
    assert process.wait() == 0
