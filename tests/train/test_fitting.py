"""`fit`: the run of the command line, from Python."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.train import Config, fit, override
from meshdsl.train.folder import RunFolder
from meshdsl_cli import main
from tests.train.common import SHORT, losses

pytestmark = pytest.mark.usefixtures("compiled_once")
SETTINGS = [*SHORT, "steps=3"]


def fitted(folder, text, layout="data", **how):
    config = override(Config(), [*SETTINGS, f"data.sources.text.paths={text}"])
    return fit(config.model, config, layout, folder=folder, **how)


def test_a_fit_is_the_run_of_the_command_and_goes_on_or_gives_what_it_made(tmp_path, text):
    words = [
        "train",
        "--layout",
        "fsdp",
        "--out",
        str(tmp_path / "b"),
        *SETTINGS,
        f"data.sources.text.paths={text}",
    ]
    assert main(words) == 0
    found = fitted(tmp_path / "a", text, "fsdp", resume=True)  # there is none: it begins
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert found.ending is None and int(found.state.step) == 3 and found.folder == tmp_path / "a"
    assert found.model.embedding.table.split and found.job.layout.name.endswith("fsdp.toml")
    stored = RunFolder(tmp_path / "a").stored_config().model
    assert stored == override(Config(), SETTINGS).model
    assert replace(stored, remat="full", loss_chunk=0) == found.job.config.model

    again = fitted(tmp_path / "a", text, "fsdp", resume=True)
    jax.tree.map(np.testing.assert_array_equal, found.model, again.model)
    assert len(losses(tmp_path / "a")) == 3

    with pytest.raises(md.MeshDSLError, match="holds a run"):
        fitted(tmp_path / "a", text)


@pytest.mark.slow
def test_a_fit_goes_on_with_more_steps_under_another_layout(tmp_path, text):
    fitted(tmp_path / "a", text, "fsdp")
    more = override(RunFolder(tmp_path / "a").stored_config(), ["steps=5"])
    found = fit(more.model, more, "data", folder=tmp_path / "a", resume=True)
    assert len(losses(tmp_path / "a")) == 5 and int(found.state.step) == 5


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
