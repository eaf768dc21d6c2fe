"""`fit`: the run of the command line, from Python."""

import json
import re

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.train import Config, fit, override
from meshdsl.train.folder import RunFolder
from meshdsl_cli import main
from tests.train.common import TINY, losses

SETTINGS = ["batch=8", "sample.tokens=0", "steps=3"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 200)
    return f"data.sources.text.paths={path}"


def fitted(folder, text, layout="data", **how):
    config = override(Config(), [*TINY, *SETTINGS, text])
    return fit(config.model, config, layout, folder=folder, **how)


def test_a_fit_is_the_run_of_the_command_and_returns_the_model(tmp_path, text):
    found = fitted(tmp_path / "a", text, "fsdp")
    words = ["train", "--layout", "fsdp", "--out", str(tmp_path / "b"), *TINY, *SETTINGS, text]
    assert main(words) == 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert found.ending is None and int(found.state.step) == 3 and found.folder == tmp_path / "a"
    assert found.model.embedding.table.split and found.job.layout.name.endswith("fsdp.toml")
    assert RunFolder(tmp_path / "a").stored_config().model == found.job.config.model


def test_a_fit_that_is_finished_gives_what_it_made(tmp_path, text):
    first = fitted(tmp_path / "a", text)
    again = fitted(tmp_path / "a", text, resume=True)
    jax.tree.map(np.testing.assert_array_equal, first.model, again.model)
    assert len((tmp_path / "a/metrics.jsonl").read_text().splitlines()) == 3


def test_a_fit_goes_on_with_a_run_and_never_begins_one_twice(tmp_path, text):
    config = override(Config(), [*TINY, *SETTINGS, text])
    fit(config.model, config, folder=tmp_path / "a", resume=True)  # there is none: it begins
    more = override(config, ["steps=5"])
    found = fit(more.model, more, "fsdp", folder=tmp_path / "a", resume=True)
    steps = [json.loads(x)["step"] for x in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5] and int(found.state.step) == 5
    with pytest.raises(md.MeshDSLError, match="holds a run"):
        fit(more.model, more, folder=tmp_path / "a")


@pytest.mark.parametrize(
    "args, said",
    [
        ((Config(),), "fit: a family is an instance of md.Family, not of type Config"),
        ((Config().model, {"steps": 3}), "fit: the settings are a Config, not of type dict"),
        (
            (Config().model, Config(), "fdsp"),
            "layout fdsp: no such file, and no shipped layout of that name; did you mean `fsdp`?",
        ),
    ],
)
def test_wrong_arguments_are_refused(args, said):
    with pytest.raises(md.MeshDSLError, match=re.escape(said)):
        fit(*args)
