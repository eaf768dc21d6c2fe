"""`meshdsl generate` of a model of pairs of texts: it answers."""

import json

import jax
import pytest

from meshdsl_cli import main

T5 = [
    *("model.layers=1", "model.decoder_layers=1", "model.d_model=16", "model.heads=4"),
    *("model.head_dim=4", "model.d_ff=32", "model.source=24", "model.length=8", "batch=8"),
    *("model.vocab=256", "steps=60", "optimizer.learning_rate=0.02", "schedule.warmup=5"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    assert len(jax.devices()) == 8  # or the run would make the one that it needs
    pairs = [{"source": f"say {x}", "target": x * 2} for x in "abcd"]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs * 4))
    words = ["train", "--model", "t5", "--data", str(folder / "pairs.jsonl"), "--layout", "single"]
    assert main([*words, "--out", str(folder / "run"), *T5, "validation.every=0"]) == 0
    return str(folder / "run")


def answers(run, capsys, *flags):
    words = ["--prompt", "say a", "--prompt", "say dd", "--temperature", "0", "--json"]
    assert main(["generate", run, *words, "--tokens", "4", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_prompts_are_answered(run, capsys):
    capsys.readouterr()
    found = answers(run, capsys)
    assert [each["prompt"] for each in found] == ["say a", "say dd"]
    assert found[0]["text"] == "aa" and found[0]["ended"]
    assert answers(run, capsys, "--layout", "fsdp", "--devices", "8") == found
    assert main(["generate", run, "--prompt", "say b", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "bb\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--prompt", "x" * 30], "prompt 1 has 30 tokens, and the model reads at most 24"),
        (["--prompt", "x", "--tokens", "9"], "--tokens 9: an answer of the model has at most 8"),
    ],
)
def test_what_is_too_long_is_refused(run, capsys, words, text):
    assert main(["generate", run, *words]) == 2
    assert text in capsys.readouterr().err
