"""The tutorial runs, and what it says about its layouts is so."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # test_docs_programs runs the programs of other pages by default
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each cell gives, by its source: a list of outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("tutorial"))}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


@pytest.fixture(scope="module")
def printed(outputs):
    """What each cell prints, by its source."""
    return {
        source: "".join(output.get("text", "") for output in given)
        for source, given in outputs.items()
    }


def test_the_tutorial_runs_and_its_layouts_differ_in_their_collectives_alone(printed):
    reports = [printed[f'report("{layout}.toml")'] for layout in ("tensor", "fsdp")]
    (data,) = (text for source, text in printed.items() if source.endswith('report("data.toml")'))
    losses = [re.findall(r"\d\.\d{4}", text.splitlines()[0]) for text in (data, *reports)]
    assert len(losses[0]) == 3 and all(
        [float(x) for x in row] == pytest.approx([float(x) for x in losses[0]], abs=2e-4)
        for row in losses
    )
    found = [set(re.findall(r"x (\w+)\(", text)) for text in (data, *reports)]
    assert found == [{"psum"}, {"psum"}, {"all_gather", "psum", "psum_scatter"}]
    assert [text.count(" bytes") for text in (data, *reports)] == [3, 1, 5]


def test_a_program_and_what_each_device_has_are_drawn(outputs):
    drawn = {
        source: output.data["text/html"]
        for source, given in outputs.items()
        for output in given
        if "text/html" in output.get("data", {})
    }
    (program,) = (html for source, html in drawn.items() if source.endswith("\nprogram"))
    assert "einsum" in program and "psum" in program
    shown = [html for source, html in drawn.items() if "md.show(" in source]
    parts = [set(re.findall(r"features \d+:\d+, d_ff \d+:\d+", html)) for html in shown]
    assert [len(each) for each in parts] == [0, 8, 8]  # all of it under data; else of each device


def test_the_notebook_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not [cell for cell in cells if cell.cell_type == "code" and cell.outputs]
