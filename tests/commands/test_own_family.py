"""A family in a file of the user's: its mistakes have a line, and the file may be moved."""

import sys
import textwrap

import pytest

from meshdsl_cli import main

FAMILY = """
    from dataclasses import dataclass

    import jax.numpy as jnp
    import numpy as np

    import meshdsl as md
    from meshdsl.fields import bounded


    @dataclass(frozen=True)
    class Line(md.Family):
        \"""A line through points.

        Attributes:
          size: numbers in a point.
        \"""

        task = "examples"
        size: int = bounded(4, least=1)

        def batch(self, rows):
            return {"x": md.abstract((rows, md.Dim("size", self.size)), jnp.float32)}

        def init(self, key):
            return md.normal(key, md.Dim("size", self.size), ins="size")

        def loss(self, model, batch, key):
            return (md.dot(batch["x"], model) - 1).square().mean()


    def points(subset):
        return [{"x": np.ones(2) * i} for i in range(32)]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "line.py"
    path.write_text(textwrap.dedent(FAMILY))
    return path


def train(*words):
    return main(["train", "--layout", "data", "--out", "run", "batch=8", *words])


def test_a_mistake_in_a_model_of_the_users_names_its_line(file, capsys):
    file.write_text(file.read_text().replace("mean()", 'mean("rows")'))
    line = 1 + file.read_text()[: file.read_text().index('rows")')].count("\n")
    assert main(["explain", "--layout", "data", "--model", "line.py:Line"]) == 2
    said = capsys.readouterr().err
    assert f"mean: no dim `rows` in [batch=32]; known: `batch` (line.py:{line})\n" in said
    assert said.count("\n") == 1


def test_a_title_has_the_dims_of_all_fields_of_a_batch(file, capsys):
    other = 'return {"y": md.abstract((rows, md.Dim("other", 3)), jnp.int32), "x"'
    file.write_text(file.read_text().replace('return {"x"', other, 1))
    assert main(["explain", "--layout", "data", "--model", "line.py:Line"]) == 0
    assert "line.py:Line, batch 32 of other 3, size 4\n" in capsys.readouterr().out


def test_a_run_goes_on_with_a_family_whose_file_was_moved(file, tmp_path, monkeypatch, capsys):
    data = ["--data", "line.py:points", "model.size=2"]
    assert train("--model", "line.py:Line", "--steps", "2", *data) == 0
    for name in ("points.py", "model.py"):
        (tmp_path / name).write_text(file.read_text())
    file.unlink()
    for name in [name for name in sys.modules if name.startswith("user_file_line")]:
        monkeypatch.delitem(sys.modules, name)  # as in another process
    on = ("--resume", "--data", "points.py:points", "--steps", "4")
    capsys.readouterr()
    assert train(*on) == 2
    assert f"run/config.toml: model.family={file}:Line: there is no file" in capsys.readouterr().err
    assert train(*on, "--model", "model.py:Line") == 0
    assert "resumed after step 2" in capsys.readouterr().out
    assert train("--resume", "--steps", "5") == 0
