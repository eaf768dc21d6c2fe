"""`meshdsl generate`: what a user types, and the text that comes back."""

import dataclasses
import io
import json
from pathlib import Path

import jax
import pytest

from meshdsl.commands.printed_texts import print_as_it_comes
from meshdsl.mesh import make_mesh
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import Bytes
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout
from meshdsl_cli import main
from tests.train.common import TINY
from tests.train.data.common import save_tokenizer

SMALL = [*TINY, "model.length=24", "model.vocab=300"]


def make_run(path, *settings) -> RunFolder:
    """A run with checkpoints of steps 0 and 5, both with parameters that nothing has trained."""
    config, folder = override(Config(layout="fsdp"), [*SMALL, *settings]), RunFolder(path)
    layout = find_layout("fsdp")
    job = Job(config, layout, make_mesh(layout, jax.devices()))
    folder.write_config(config)
    checkpoints = Checkpoints(folder.checkpoints, keep=2)
    for step in (0, 5):
        checkpoints.save(step, job.step.init(jax.random.key(step)), {})
    checkpoints.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return str(make_run(tmp_path_factory.mktemp("runs") / "a").path)


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    """A run whose tokens are those of a `tokenizer.json`."""
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path / "tokenizer.json", 280, "</s>", "the cat sat on the mat " * 20)
    return str(make_run(path / "run", f"data.tokenizer={path / 'tokenizer.json'}").path)


def said(capsys, *words: str) -> str:
    assert main(["generate", *words]) == 0
    return capsys.readouterr().out


def test_prompts_are_continued_in_turn_alike_under_every_layout_but_not_by_every_checkpoint(
    run, capsys, tmp_path
):
    (tmp_path / "prompts").write_text("def f\na\n")
    both = ("--prompts", str(tmp_path / "prompts"), "--tokens", "6", "--json")
    found = [json.loads(line) for line in said(capsys, run, *both).splitlines()]
    assert [(each["prompt"], each["step"], each["seed"], each["ended"]) for each in found] == [
        ("def f", 5, 0, False),
        ("a", 5, 0, False),
    ]
    assert [len(each["tokens"]) for each in found] == [6, 6]
    both_again = ("--prompt", "def f", "--prompt", "a", "--tokens", "6")
    text = said(capsys, run, *both_again, "--layout", "tensor", "--devices", "4")
    first, second = text.removeprefix("--- 1 of 2 ---\n").split("\n--- 2 of 2 ---\n")
    assert (first[:5], second[:1]) == ("def f", "a")
    printable = [
        "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in each["text"])
        for each in found
    ]
    assert [first[5:], second[1:].removesuffix("\n")] == printable
    older = [json.loads(line) for line in said(capsys, run, *both, "--step", "0").splitlines()]
    assert [each["tokens"] for each in older] != [each["tokens"] for each in found]
    assert older[0]["step"] == 0


def test_the_standard_input_is_a_prompt_and_a_tokenizer_file_is_the_runs_own(
    tokenized, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    found = json.loads(
        said(capsys, tokenized, "--json", "--top-k", "40", "--top-p", "0.95", "--temperature", "1")
    )
    assert found["prompt"] == "the cat"
    assert (
        found["ended"] or len(found["tokens"]) == 24 - 2
    )  # `the` and ` cat` are tokens of the file
    assert isinstance(found["text"], str)


def test_text_is_printed_as_it_comes_whole_characters_only_and_others_wait_for_their_turn(capsys):
    # The first text: an é in two bytes, then its end.
    rows = [[0xC3, *b"x"], [0xA9, *b"y"], [0, *b"z"], [*b"qw"]]
    seen = []

    def coming():
        for row in rows:
            seen.append(capsys.readouterr().out)
            yield row

    print_as_it_comes(coming(), ["one ", "two "], Bytes(), [Bytes().separator])
    assert [*seen, capsys.readouterr().out] == [
        "--- 1 of 2 ---\none ",
        "",
        "é",
        "\n--- 2 of 2 ---\ntwo xyz",
        "w\n",
    ]


@pytest.mark.parametrize(
    "words, text",
    [
        ("{run}", "no prompt: give --prompt TEXT, --prompts FILE, or a text on the standard input"),
        ("absent --prompt a", "there is no run in absent"),
        ("{run} --prompt a --top-p 0", "--top-p 0: must be above 0 and at most 1"),
        ("{run} --prompt a --top-k -1", "--top-k -1: must be at least 0"),
        ("{run} --prompt a --temperature nan", "--temperature nan: must be at least 0"),
        (
            "{run} --prompt a --step 7",
            "there is no checkpoint of step 7; there are those of steps 0, 5",
        ),
        (
            "{run} --prompt a --tokens 24",
            "--tokens 24: the prompt has 1 token, and the model's length is 24; at most 23 more "
            "fit",
        ),
        (
            "{run} --prompt a --prompt " + 30 * "b",
            "prompt 2 has 30 tokens, and the model's length is 24; a prompt has at most 23",
        ),
        ("{run} --prompt a model.length=8", "model.length=8: a run keeps its settings"),
        ("{run} --prompts absent.txt", "--prompts absent.txt: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(run, capsys, monkeypatch, words, text):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["generate", *words.format(run=run).split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and text in err


def test_a_run_without_a_checkpoint_and_one_with_another_tokenizer_are_refused(
    run, tokenized, capsys, tmp_path
):
    begun = RunFolder(tmp_path / "begun")
    begun.write_config(RunFolder(Path(run)).stored_config())
    assert main(["generate", str(begun.path), "--prompt", "a"]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err
    config = RunFolder(Path(tokenized)).stored_config()
    small = RunFolder(tmp_path / "small")
    small.write_config(
        dataclasses.replace(config, model=dataclasses.replace(config.model, vocab=256))
    )
    assert main(["generate", str(small.path), "--prompt", "a"]) == 2
    assert "has 269 tokens, and the model has 256" in capsys.readouterr().err
