"""Layout: reading rules, and the law of DESIGN's second section as a table."""

from pathlib import Path

import pytest

import meshdsl as md
from meshdsl.layout import LEVELS
from tests.helpers import dims

BATCH, LENGTH, HEADS, D, FF = dims(batch=16, length=32, heads=8, d_model=64, d_ff=128)
MEGATRON = md.Layout(
    ["batch -> data", "heads, d_ff -> model", "length -> model"],
    ["d_model -> data"],
    ["length -> data", "d_model -> model"],
    mesh={"data": 4, "model": 2},
)
SPLITS = {
    "residual stream": ("rules", (BATCH, LENGTH, D), {BATCH: ("data",), LENGTH: ("model",)}),
    "an upper rule takes the axis": (
        "rules",
        (BATCH, LENGTH, HEADS),
        {BATCH: ("data",), HEADS: ("model",)},
    ),
    "the upper of one line comes first": ("rules", (HEADS, FF), {HEADS: ("model",)}),
    "order of dims means nothing": ("rules", (FF, HEADS), {HEADS: ("model",)}),
    "nothing": ("rules", (D,), {}),
    "no dims": ("rules", (), {}),
    "a weight as a value": ("rules", (D, FF), {FF: ("model",)}),
    "a weight at rest": ("parameters", (D, FF), {D: ("data",), FF: ("model",)}),
    "a norm at rest": ("parameters", (D,), {D: ("data",)}),
    "its optimizer state": ("optimizer", (D,), {D: ("data", "model")}),
    "lower rules take what is left": ("optimizer", (D, FF), {D: ("data",), FF: ("model",)}),
}


@pytest.mark.parametrize("level, dims, expected", SPLITS.values(), ids=SPLITS)
def test_rules_split_from_the_top_each_axis_once(level, dims, expected):
    assert MEGATRON.split(dims, level) == expected


def test_a_dim_takes_several_axes_major_first_and_skips_those_taken():
    layout = md.Layout(["length -> data", "batch -> replica, data, model"])
    assert layout.split((BATCH,)) == {BATCH: ("replica", "data", "model")}
    assert layout.split((BATCH, LENGTH)) == {LENGTH: ("data",), BATCH: ("replica", "model")}


def test_each_axis_knows_the_rule_that_took_it():
    taken = MEGATRON.taken((BATCH, LENGTH, D), "optimizer")
    assert {axis: str(rule) for axis, rule in taken.items()} == {
        "data": "layout, rule 1: batch -> data",
        "model": "layout, rule 3: length -> model",
    }
    assert (
        str(MEGATRON.taken((D,), "parameters")["data"])
        == "layout, parameters rule 1: d_model -> data"
    )


PARSED = {
    "batch->data": [("batch", "data", False)],
    "  a , b  ->  x ": [("a", "x", False), ("b", "x", False)],
    "a?, b -> x, y": [("a", "x", True), ("a", "y", True), ("b", "x", False), ("b", "y", False)],
}


@pytest.mark.parametrize("line", PARSED)
def test_lines_are_read(line):
    assert [(r.dim, r.axis, r.optional) for r in md.Layout([line]).parsed] == PARSED[line]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "->",
        "a",
        "a ->",
        "-> x",
        "a b -> x",
        "a -> x y",
        "a -> x -> y",
        "a, -> x",
        "a -> x,",
        "a => x",
        "a! -> x",
        "a -> x?",
    ],
)
def test_malformed_lines_are_errors(line):
    with pytest.raises(md.MeshDSLError, match="rule 1: .* is not of the form"):
        md.Layout([line])


def test_strict_makes_a_conflict_an_error_and_nothing_else():
    strict = md.Layout(MEGATRON.rules, mesh=MEGATRON.mesh, strict=True)
    assert strict.split((BATCH, LENGTH, D)) == MEGATRON.split((BATCH, LENGTH, D))
    with pytest.raises(md.MeshDSLError, match="both want axis `model`"):
        strict.split((LENGTH, HEADS))


def test_a_file_is_what_its_lines_say(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[mesh]\ndata = "rest"\nmodel = 2\n[layout]\nrules = ["batch -> data"]\n'
        'parameters = ["d_model -> data"]\n'
        'optimizer = ["d_ff -> data"]\nstrict = true\n'
    )
    layout = md.Layout.load(path)
    assert (layout.mesh, layout.strict, layout.name) == (
        {"data": "rest", "model": 2},
        True,
        "layout mine.toml",
    )
    assert [len(layout.at(level)) for level in LEVELS] == [1, 2, 2, 3]


def test_a_shipped_layout_is_loaded_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(md.__file__).parents[1] / "layouts" / "fsdp.toml"
    assert md.Layout.load("fsdp") == md.Layout.load(str(path)) == md.Layout.load(path)
    Path("fsdp").write_text('[mesh]\ndata = 2\n[layout]\nrules = ["mine -> data"]')
    assert md.Layout.load("fsdp").rules == ["mine -> data"]  # what is there goes first


def test_gradients_stand_between_parameters_and_optimizer():
    def at(**how):
        return md.Layout(
            ["batch -> data"],
            ["d_model -> data"],
            ["d_ff -> model"],
            gradients=["d_model -> model"],
            **how,
        ).split((D, FF), "gradients")

    assert at() == {D: ("data", "model")}
    assert at(gather="step") == {D: ("model",)}  # what only `parameters` splits is whole meanwhile


@pytest.mark.parametrize(
    "path", sorted((Path(md.__file__).parents[1] / "layouts").glob("*.toml")), ids=lambda p: p.stem
)
def test_shipped_layouts_are_legal_and_say_when_to_use_them(path):
    layout = md.Layout.load(path)
    layout.check_axes(layout.mesh)
    comment = path.read_text()
    assert "# When:" in comment and "# Collectives" in comment


UNEVEN = md.Layout(
    ["batch -> data", {"rule": "vocab, heads -> model", "uneven": "pad"}],
    ["d_model -> data"],
    mesh={"data": 2, "model": 8},
    name="uneven",
)


def test_what_is_at_rest_is_never_padded():
    """An axis that would cut its dim unevenly goes to the largest other dim that it divides."""
    vocab, odd, batch = dims(vocab=50257, heads=25, batch=6)
    rest = lambda dims, level="rules": UNEVEN.at_rest(dims, UNEVEN.mesh, level)
    assert rest((vocab, D), "parameters") == {D: ("data", "model")}
    assert rest((batch, LENGTH, vocab)) == {batch: ("data",), LENGTH: ("model",)}
    assert rest((vocab,)) == {} and rest((odd, vocab)) == {}
    assert rest((HEADS, D), "parameters") == {HEADS: ("model",), D: ("data",)}


def test_uneven_is_of_the_layout_or_of_one_rule():
    assert UNEVEN.padded == {"vocab", "heads"}
    assert md.Layout(["batch -> data", "vocab -> data"], uneven="pad").padded == {"batch", "vocab"}
    assert md.Layout(
        [{"rule": "batch -> data", "uneven": "error"}, "vocab -> data"], uneven="pad"
    ).padded == {"vocab"}
    assert not MEGATRON.padded
