"""`meshdsl search` as a user types it."""

import json
import shlex
from math import prod
from pathlib import Path

import pytest

from meshdsl.commands.search import command_line, constraints_of, train_command
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.train.config import Config
from meshdsl_cli import main
from meshdsl_cli.parser import parse
from tests.commands.test_command_line import refused
from tests.search.sample import FOUND

WORDS = [
    *("search", "--model", "llama3-8b", "--target", "v5p:4x4x4", "--batch", "64"),
    *("--keep", "batch -> data", "--keep", "parameters: d_model -> data", "--never", "vocab -> *"),
    *("--mesh", "model=4,data=rest", "--within-host", "model", "--dcn", "replica=2"),
    *("--max-memory", "50%", "--remat", "full,none", "--microbatches", "1,2", "--seconds", "2.5"),
    *("--out", "best.toml", "--json", "model.length=8192"),
]


def arguments(*words):
    return parse(words).arguments


def constraints(*words):
    given = arguments("search", "--target", "v5p:4x4x4", *words)
    return constraints_of(given, find_target("v5p:4x4x4"))


def test_flags_are_constraints():
    found = constraints_of(arguments(*WORDS), find_target("v5p:4x4x4"))
    assert found.keep is not None and found.keep.rules == ["batch -> data"]
    assert found.keep.parameters == ["d_model -> data"] and found.never == ("vocab -> *",)
    assert found.mesh == {"model": 4} and found.dcn == {"replica": 2} and found.axes == 3
    assert found.within_host == ("model",) and found.remat == ("full", "none")
    assert found.microbatches == (1, 2)
    assert found.memory == int(0.5 * (find_target("v5p:4x4x4").chip.hbm or 0))


def test_a_layout_is_kept_with_its_sizes_unless_the_command_has_others():
    assert constraints("--keep", "fsdp-sequence").mesh == {"model": 2}
    assert constraints("--keep", "fsdp-sequence", "--mesh", "model=8").mesh == {"model": 8}


def test_settings_of_the_user_are_the_only_ones_to_choose():
    found = constraints("model.remat=full", "microbatches=2")
    assert found.remat == ("full",) and found.microbatches == (2,)
    assert constraints("model.remat=full", "--remat", "none").remat == ("none",)
    assert constraints("model.remat=auto").remat is None


def test_the_commands_that_a_file_quotes():
    given = arguments(*WORDS)
    assert command_line(given) == (
        "meshdsl search --model llama3-8b --target v5p:4x4x4 --batch 64 --keep 'batch -> data' "
        "--keep 'parameters: d_model -> data' --never 'vocab -> *' --mesh model=4,data=rest "
        "--within-host model --dcn replica=2 --max-memory 50% --remat full,none "
        "--microbatches 1,2 --seconds 2.5 model.length=8192"
    )
    assert train_command(given, Config(batch=64), FOUND) == (
        "meshdsl train --layout best.toml --model llama3-8b model.length=8192 batch=64 "
        "model.remat=none"
    )
    assert given.out == Path("best.toml")


SMALL = ["--model", "llama", "model.layers=2", "model.d_model=64", "model.length=32"]


def test_a_layout_is_found_for_a_small_model_and_its_file_says_how(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["search", *SMALL, "--target", "v5e:2x4", "--seconds", "2", "--never", "vocab -> *"]
    words += ["--keep", "batch -> data", "--mesh", "data=4", "--remat", "full", "--axes", "2"]
    assert main([*words, "--out", "best.toml", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    layout, text = Layout.load("best.toml"), Path("best.toml").read_text()
    assert layout.mesh == best["mesh"] and prod(layout.mesh.values()) == 8
    assert layout.rules == best["layout"]["rules"] and best["judge"] == "estimate"
    assert not [rule for rule in layout.parsed if rule.dim == "vocab"]
    assert (
        "# Found by:\n#   meshdsl search --model llama --target v5e:2x4 --keep 'batch -> data'"
        in text
    )
    assert "# It goes with model.remat=full.\n# Train with it:\n#   meshdsl train --layout" in text
    assert "  # It causes, in a step: " in text and max(map(len, text.splitlines())) <= 100
    train = text.partition("# Train with it:\n")[2].partition("\n\n")[0]
    train = train.replace("#", "").replace("\\\n", "")
    assert main([*shlex.split(train)[1:], "--print-config"]) == 0
    config = capsys.readouterr().out
    assert 'remat = "full"' in config and "[layout.mesh]\ndata = 4\n" in config


@pytest.mark.slow
def test_the_layout_that_was_found_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["search", *SMALL, "--target", "v5e:2x2", "--seconds", "0.5", "--out", "a.toml"]) == 0
    )
    train = capsys.readouterr().out.rpartition("train with it\n  meshdsl ")[2].split()
    assert main([*train, "steps=2", "sample.tokens=0", "--out", "run"]) == 0
    assert "step 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["--max-memory", "80"], "--max-memory 80: expected a share of up to 100%, as 80%, or"),
        (["--target", "cpu:8", "--max-memory", "80%"], "a device of cpu:8 has is not known; give"),
        (["--microbatches", "1,x"], "--microbatches 1,x: expected whole numbers such as 1,2,4"),
        (["--dcn", "replica"], "--dcn replica: expected sizes of axes such as data=16,model=4"),
        (
            ["--keep", "btch -> data"],
            'meshdsl search: keep "btch -> data": no dim `btch` in this model; did you',
        ),
        (["--mesh", "model=3"], "no layout obeys mesh model=3 on v5e:2x2, 4 devices: 3 does not"),
        (["--seconds", "0"], "expected seconds, more than 0, not '0'"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, words, said):
    assert said in refused(capsys, "search", "--target", "v5e:2x2", *SMALL, *words)
