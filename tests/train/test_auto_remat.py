"""`model.remat=auto`: the fastest that fits, said in one line, and what a run keeps of it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import meshdsl as md
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.predict.explanation import MemoryView
from meshdsl.train import auto_remat
from meshdsl.train.auto_remat import choose_remat
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.folder import RunFolder
from meshdsl.train.settings import override
from meshdsl_cli import main

GIB = 2**30
LAYOUT = Layout(["batch -> data"], mesh={"data": 8}, name="layout data")
# Peak in GiB and seconds of each; `none` writes so much that it is slower than `dots`.
ESTIMATES = {
    "full": (10, 2.7),
    "attention": (14, 2.6),
    "qkv": (26, 2.5),
    "hidden": (47, 2.3),
    "dots": (51, 2.2),
    "gathers": (149, 2.8),
    "none": (157, 2.4),
}


@pytest.fixture
def estimates(monkeypatch):
    def candidates(*_):
        for place, (remat, (peak, seconds)) in enumerate(ESTIMATES.items()):
            memory = MemoryView((), 0, peak * GIB, (), capacity=96 * GIB)
            explanation = SimpleNamespace(memory=memory, ops=())
            yield auto_remat._Candidate(remat, place, explanation, seconds, True)

    monkeypatch.setattr(auto_remat, "_candidates", candidates)


def chosen(*settings: str, target: str | None = "v5p:4x4x4"):
    config = override(Config(), ["model.remat=auto", "batch=8", *settings])
    machine = find_target(target) if target else None
    return choose_remat(config, LAYOUT, {"data": 8}, machine)


@pytest.mark.parametrize(
    "memory, remat",
    [("10GiB", "full"), ("25.9GiB", "attention"), ("50%", "hidden"), ("80%", "dots")],
)
def test_the_fastest_that_fits_is_taken(estimates, memory, remat):
    choice = chosen(f"memory={memory}")
    assert choice.remat == choice.config.model.remat == remat


def test_one_line_says_what_was_chosen_and_why_nothing_faster_was(estimates):
    assert chosen("memory=32GiB").line == (
        "model.remat=auto: qkv, estimated peak 26.00 GiB of 32.00 GiB (memory=32GiB), step 2.5 s; "
        "hidden would be faster, step 2.3 s, but does not fit: 47.00 GiB"
    )
    assert chosen().line == (
        "model.remat=auto: dots, estimated peak 51.00 GiB of 76.59 GiB (memory=80%), step 2.2 s; "
        "nothing is faster"
    )


def test_what_is_named_is_taken_as_it_is(estimates):
    config = override(Config(), ["model.remat=qkv"])
    assert choose_remat(config, LAYOUT, {}, None) == (config, "", "")


def test_what_fits_nowhere_is_one_error_with_what_would_help(estimates):
    with pytest.raises(md.MeshDSLError) as error:
        chosen("memory=8GiB")
    assert str(error.value).startswith(
        "model.remat=auto: nothing fits 8.00 GiB (memory=8GiB), and the least has an estimated "
        "peak of 10.00 GiB; what would help: more `memory` of the 96.00 GiB that a device has; "
    )
    assert "a layout that splits `length`" in str(error.value)


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_a_share_of_an_unknown_memory_is_an_error(estimates, target):
    with pytest.raises(md.MeshDSLError, match="memory=80% is a share .* such as memory=16GiB"):
        chosen(target=target)
    assert chosen("memory=32GiB", target=target).remat == "qkv"


@pytest.mark.parametrize("text", ["lots", "0GiB", "120%", "60", "60GB", "-1GiB"])
def test_a_memory_that_is_none_is_an_error(text):
    said = f"memory={text}: expected a share of up to 100%, as 80%, or bytes, as 60GiB"
    with pytest.raises(md.MeshDSLError, match=re.escape(said)):
        override(Config(), [f"memory={text}"])


def test_memory_is_a_share_or_bytes():
    assert memory_bytes("50%", 10 * GIB) == 5 * GIB
    assert memory_bytes("1.5GiB", None) == memory_bytes("1536 MiB", GIB) == 3 * GIB // 2
    assert memory_bytes("50%", None) is None


@pytest.mark.slow  # test_a_run_chooses_again, and what explain prints elsewhere
def test_explain_says_what_was_chosen(capsys):
    small = ["--model", "llama", "model.layers=2", "model.d_model=64", "model.length=32"]
    words = [*small, "--target", "v5e:2x2", "model.remat=auto", "--layout", "fsdp"]
    assert main(["explain", *words, "memory=1GiB"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nmodel.remat=auto: \w+, estimated peak [\d.]+ MiB of 1.00 GiB \(", out)


def test_the_folder_of_a_run_keeps_what_was_written_and_says_what_was_chosen(tmp_path):
    config = override(Config(), ["model.remat=auto", "memory=2GiB"])
    folder = RunFolder(tmp_path)
    folder.write_config(config, "model.remat=auto: qkv, because")
    assert folder.config.read_text().startswith("# model.remat=auto: qkv, because\n")
    stored = folder.stored_config()
    assert (stored.model.remat, stored.memory) == ("auto", "2GiB")
    assert replace(stored, data=config.data) == config


@pytest.mark.slow
def test_a_run_chooses_again_where_it_goes_on(capsys, tmp_path, text):
    words = ["--out", str(tmp_path / "run")]
    tiny = ["model.d_model=16", "model.layers=1", "model.heads=8", "model.length=16", "batch=8"]
    start = ["--data", text, *tiny, "sample.tokens=0", "validation.batches=1", "model.remat=auto"]
    assert main(["train", *words, *start, "--layout", "fsdp", "--steps", "2"]) == 2
    assert "set bytes, such as memory=16GiB" in capsys.readouterr().err.replace("\n", " ")
    more = ["memory=1GiB", "--layout", "fsdp", "--steps", "2"]
    assert main(["train", *words, *start, *more]) == 0
    assert "model.remat=auto: " in capsys.readouterr().out
    assert main(["train", *words, "--resume", "--layout", "single", "--steps", "3"]) == 0
    assert "model.remat=auto: " in capsys.readouterr().out
