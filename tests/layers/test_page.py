"""docs/layers.md: its examples run, and what they say of dims is so."""

import ast
import re
import textwrap
from pathlib import Path

import jax
import pytest

from meshdsl import layers
from meshdsl.tensor import is_tensor

TEXT = (Path(__file__).parents[2] / "docs/layers.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
DIMS = re.compile(r"  # \[([\w, ]*)\]$")


def test_examples_run_and_their_comments_are_the_dims_of_results():
    """They are traced in one program, which is faster than op by op and has the same dims."""
    jax.eval_shape(run_examples)


def run_examples():
    names: dict = {}
    seen = 0
    for _, block in BLOCK.findall(TEXT):
        source = textwrap.dedent(block)
        lines = source.splitlines()
        for statement in ast.parse(source).body:
            exec(compile(ast.Module([statement], []), "docs/layers.md", "exec"), names)
            said = DIMS.search(lines[(statement.end_lineno or 0) - 1])
            if said is None:
                continue
            assert isinstance(statement, (ast.Expr, ast.Assign)), lines[statement.lineno - 1]
            is_new = isinstance(statement, ast.Assign)
            shown = statement.targets[0] if is_new else statement.value
            value = eval(ast.unparse(shown), names)
            assert is_tensor(value)
            assert ", ".join(d.name for d in value.dims) == said[1], ast.unparse(statement)
            seen += 1
    assert seen >= 30


@pytest.mark.parametrize("name", layers.__all__)
def test_every_layer_is_on_the_page(name):
    assert re.search(rf"`[^`\n]*\b{name}\b", TEXT)


def test_every_line_of_the_overview_leads_to_a_section():
    sections = {
        re.sub(r"[^\w-]", "", s.lower().replace(" ", "-"))
        for s in re.findall(r"^#+ (.*)", TEXT, re.M)
    }
    links = re.findall(r"\]\(#([\w-]+)\)", TEXT)
    assert len(links) >= 10 and set(links) <= sections
