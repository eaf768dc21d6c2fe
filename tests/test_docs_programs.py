"""The programs on pages of the documentation run as they stand."""

import re
from pathlib import Path

import jax
import pytest

from meshdsl_cli import main
from tests.helpers import only

DOCS = Path(__file__).parents[1] / "docs"
# Each page, and what its program prints.
PAGES = {
    "from-python.md": [
        "zero1, mesh data=8, 8 devices on v5e:2x4",
        "optimizer state",
        "layout  mesh",
        "compiles: needs",
        *("step 20: loss", "step 40: loss", "step 60: loss"),
    ],
    "from-jax.md": ["[d_model=32, (qkv=3 heads=4 head_dim=8)]", "renamed: `length`", "loss"],
    "explain.md": ["fsdp, mesh data=8, 8 devices on v5e:2x4", "layout  mesh"],
    "search.md": ["value_and_gradients, on v5e:2x2", "the best layout", "batch -> data"],
    "compile.md": ["compiled for cpu:8", "no surprises"],
    "verify.md": ["proved: all 2 results equal those of one device"],
    "checkpoints.md": [],
    "ledger.md": ["of device time is attributed", "by line of the model"],
    "experts.md": ["all_to_all"],
    "layouts.md": ["ppermute", "2 rounds; a stage waits for 1 of 33 ticks"],
}


# What the other pages are about has quick tests: of `md.ledger`, `md.from_jax` and experts.
QUICK = PAGES.keys() - {"ledger.md", "from-jax.md", "experts.md"}


@pytest.mark.parametrize("page", only(QUICK, PAGES))
def test_the_program_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # It asks for the devices that the tests have already.
    monkeypatch.setattr(jax.config, "update", lambda *asked: None)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names = {}
    exec(compile("\n".join(blocks), page, "exec"), names)
    printed = capsys.readouterr().out
    assert not [text for text in PAGES[page] if text not in printed]
    if page == "from-python.md":
        losses = [*names["first"], *names["more"]]
        assert len(losses) == 60 and losses[0] > 2 > 1 > losses[-1]


@pytest.mark.slow
def test_the_model_of_a_page_trains_by_the_commands_and_from_python(tmp_path, monkeypatch, capsys):
    """docs/families.md has a file with a model and a layout; docs/fit.md imports that file."""
    page = (DOCS / "families.md").read_text()
    (tmp_path / "vectors.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    (tmp_path / "my.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = re.findall(r"^meshdsl (.*vectors.py:Classifier.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert main(command.split()) == 0, command
    said = capsys.readouterr().out
    assert "step 100: validation loss" in said and "accuracy" in said and "MFU" in said
    monkeypatch.setattr(jax.config, "update", lambda *asked: None)
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "fit.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "fit.md", "exec"), {})
    said = capsys.readouterr().out
    assert float(re.search(r"([\d.]+)% are right", said)[1]) > 90
    assert re.findall(r"^step (\d+): loss", said, re.MULTILINE) == ["5", "10", "15", "20"]
