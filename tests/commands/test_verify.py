"""`meshdsl verify`."""

import json

import pytest

from meshdsl_cli import main

TINY = ("model.layers=2", "model.d_model=32", "model.d_ff=64", "model.vocab=64", "batch=16")


def test_a_step_is_proved(capsys):
    assert main(["verify", "--layout", "fsdp", "--mesh", "data=4", *TINY]) == 0
    text = capsys.readouterr().out
    assert "transformer, batch 16 of length 128" in text
    assert "proved: all 44 results equal those of one device, up to the order of sums" in text


def test_a_step_is_not_proved(capsys):
    assert main(["verify", "--layout", "pipeline", "--json", *TINY]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["proved"]
    assert found["unproved"] == found["results"]
    assert found["why"] == "there is no lemma for `ppermute`"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--layout", "fdsp"], "did you mean `fsdp`?"),
        (["--mesh", "data=3"], "`batch`=16 does not divide over `data`=3"),
    ],
)
def test_errors(words, error, capsys):
    assert main(["verify", *words, *TINY]) == 2
    assert error in " ".join(capsys.readouterr().err.split())
