"""Curves of runs that can be compared."""

import json
import math
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from meshdsl import MeshDSLError
from meshdsl.commands.plot import plot_runs
from meshdsl.train.watch.curves import panels, read_runs, smoothed
from meshdsl.train.watch.curves_picture import COLOURS, _draw
from meshdsl.train.watch.units import unit
from meshdsl_cli.parser import parse


def write_run(folder, steps=20, seconds=0.5, validation="validation_loss"):
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            record = {
                "step": step,
                "loss": math.nan if step == 7 else 5.0 / step,
                "tokens": 100 * step,
                "seconds": seconds,
            }
            file.write(json.dumps(record | ({validation: 0.5} if step % 10 == 0 else {})) + "\n")
    return folder


def run(words):
    """`meshdsl plot` with these words."""
    return plot_runs(parse(["plot", *map(str, words)]).arguments)


@pytest.mark.parametrize(
    ("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_ending_says_what_kind_of_picture_is_drawn(tmp_path, capsys, ending, begins):
    runs = [
        write_run(tmp_path / name, validation=key)
        for name, key in (("a", "validation/web/loss"), ("b", "validation_loss"))
    ]
    out = tmp_path / f"curves.{ending}"
    assert run([*runs, "--out", out, "--smooth", "3", "--x", "time"]) == 0
    assert capsys.readouterr().err == f"wrote {out}\n"
    assert out.read_bytes().startswith(begins)


def test_the_legend_has_every_run_and_dataset_with_its_last_value_whatever_it_is_called(tmp_path):
    folders = [
        write_run(tmp_path / name, validation=key)
        for name, key in (("_$a$", "validation/web/loss"), ("<b>&", "validation_loss"))
    ]
    axes = Figure().subplots()
    (panel,) = panels(read_runs(folders), ["loss"], "step", 1)
    _draw(axes, panel, ["_$a$", "<b>&"])
    assert axes.get_ylabel() == "loss, nats per token" and axes.get_xlabel() == "step"
    texts = axes.get_legend().get_texts()
    assert [text.get_text() for text in texts] == [
        " _$a$: 0.25 at the end",
        " <b>&: 0.25 at the end",
        " _$a$, validation web: 0.5 at the end",
        " <b>&, validation: 0.5 at the end",
    ]
    assert not any(text.get_parse_math() for text in texts)


@pytest.mark.parametrize(
    ("x", "seconds", "last", "words"),
    [
        ("step", 0.5, 20.0, "step"),
        ("tokens", 0.5, 2000.0, "tokens"),
        ("time", 0.5, 10.0, "time, seconds"),
        ("time", 3600.0, 20.0, "time, hours"),
    ],
)
def test_curves_run_over_steps_tokens_or_time(tmp_path, x, seconds, last, words):
    (panel,) = panels(read_runs([write_run(tmp_path / "a", seconds=seconds)]), ["loss"], x, 1)
    (curve,) = panel.curves
    assert curve.line.x[-1] == last and panel.x_words == words
    assert len(curve.line.x) == 19  # without the step whose loss is not finite
    assert [*curve.validation] == [""] and curve.validation[""].x.tolist() == [last / 2, last]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [write_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert [*read_runs(runs)] == ["a/run", "b/run"]


def test_a_run_without_a_metric_is_not_drawn_and_a_metric_that_none_has_is_an_error(tmp_path):
    runs = read_runs([write_run(tmp_path / "a", validation="only_here"), write_run(tmp_path / "b")])
    assert [curve.run for curve in panels(runs, ["only_here"], "step", 1)[0].curves] == ["a"]


def test_smoothing_is_a_mean_of_so_many_steps():
    y = np.asarray([1.0, 2.0, 6.0, 4.0])
    assert smoothed(y, 3).tolist() == [1.5, 3.0, 4.0, 5.0]
    assert smoothed(y, 1).tolist() == y.tolist()


def test_metrics_have_units():
    losses = [unit(name) for name in ("loss", "validation/web/loss", "validation_loss")]
    assert losses == ["nats per token"] * 3
    assert unit("gradient_norm") == unit("what a loss reports") == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fsdq"], "no run {0}/fsdq; did you mean `fsdp`?"),
        (["."], "{0}: is no run, it has no metrics.jsonl; its folders have: empty, fsdp"),
        (["empty"], "{0}/empty: no step of the run is in its metrics.jsonl yet"),
        (["fsdp", "--metric", "los"], "no metric `los` in fsdp; did you mean `loss`?"),
        (
            ["fsdp", "--out", "a.gif"],
            "--out a.gif: expected a name that ends in .png, .svg or .pdf",
        ),
        (
            ["fsdp", "--out", "a.html"],
            "--out a.html: expected a name that ends in .png, .svg or .pdf; in a browser, "
            "TensorBoard and Weights & Biases show the curves of runs with log.tensorboard=true "
            "and log.wandb=PROJECT",
        ),
        (["fsdp", "--out", "/proc/a/b.png"], "/proc/a/b.png: No such file or directory"),
    ],
)
def test_what_cannot_be_drawn_is_one_error(tmp_path, words, says):
    write_run(tmp_path / "fsdp")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").write_text('{"step": 1, "lo')
    with pytest.raises(MeshDSLError) as error:
        run([tmp_path / words[0], *words[1:]])
    assert str(error.value) == says.format(tmp_path)


def test_without_matplotlib_a_picture_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MeshDSLError,
        match=r'needs matplotlib, which is not installed; pip install "meshdsl\[plot\]" brings it',
    ):
        run([write_run(tmp_path / "a"), "--out", tmp_path / "a.png"])


def colours(path, *shown):
    """How many pixels of a PNG have each of the colours, given as `#rrggbb`."""
    image = imread(path)
    image = (255 * image[..., :3]).round().astype(int)
    each = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in shown]
    return [int((abs(image - colour).max(-1) <= 3).sum()) for colour in each]


def test_identical_runs_are_both_seen(tmp_path):
    runs = [write_run(tmp_path / name, steps=200) for name in ("a", "b", "c")]
    run([*runs, "--out", tmp_path / "same.png"])
    run([runs[0], "--out", tmp_path / "alone.png"])
    seen = colours(tmp_path / "same.png", *COLOURS[:3])
    (alone,) = colours(tmp_path / "alone.png", COLOURS[0])
    assert min(seen) > 0.2 * alone  # each a third of the curve, but for its marks and edges
