"""`meshdsl verify`."""

import json

import pytest

from meshdsl.proof import verified
from meshdsl_cli import main

TINY = (
    *("model.layers=2", "model.d_model=32", "model.d_ff=64", "model.vocab=64", "batch=16"),
    *("model.remat=full", "model.loss_chunk=0"),  # `auto` traces a step for each choice
)


def test_a_step_is_proved(capsys):
    assert main(["verify", "--layout", "fsdp", "--mesh", "data=4", *TINY]) == 0
    text = capsys.readouterr().out
    assert "transformer, batch 16 of length 128" in text
    assert "proved: all 44 results equal those of one device, up to the order of sums" in text


def test_a_step_is_not_proved(capsys):
    words = ["--layout", "context-ring", "--mesh", "data=1,context=4", "--json", "model.length=16"]
    words += ["model.dropout=0.1"]  # numbers that are drawn for rows in zigzag order
    assert main(["verify", *words, *TINY]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["proved"]
    assert found["unproved"] == found["results"]
    assert found["why"] == "rows in one order meet rows in another one"


def test_a_certificate_is_written_and_checked(tmp_path, capsys, monkeypatch):
    words = ["verify", "--layout", "data", "--mesh", "data=4", *TINY]
    file = str(tmp_path / "proof.json")
    assert main([*words, "--write", file]) == 0
    proved = capsys.readouterr().out
    monkeypatch.setattr(verified, "prove", None)  # nothing is compared from here on
    assert main([*words, "--certificate", file]) == 0
    assert capsys.readouterr().out == f"{file} holds\n{proved}"
    assert main([*words, "--certificate", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proof"]["proved"] and found["changes"] == []
    assert main([*words, "batch=32", "model.d_ff=32", "--certificate", file]) == 3
    assert capsys.readouterr().out == (
        f"{file} does not hold, because this has changed: batch 16 -> 32, model.d_ff 64 -> 32\n"
    )


def test_kernels_of_a_machine_are_taken_for_what_they_stand_for(capsys):
    words = ["verify", "--layout", "tensor", "--target", "v5e:2x2", *TINY]
    assert main([*words, "model.length=1024", "model.head_dim=128"]) == 0
    text = capsys.readouterr().out
    assert "taken: the kernel `splash` computes what `attention` does without one" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--layout", "fdsp"], "did you mean `fsdp`?"),
        (["--mesh", "data=3"], "`batch`=16 does not divide over `data`=3"),
        (["--certificate", "none.json"], "none.json: No such file or directory"),
    ],
)
def test_errors(words, error, capsys):
    assert main(["verify", *words, *TINY]) == 2
    assert error in " ".join(capsys.readouterr().err.split())
