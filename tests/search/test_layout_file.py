"""A layout that was found, written to a file: it reads back, and says what each rule costs."""

import tomllib
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.layout import LEVELS, shipped
from meshdsl.layout_search.layout_file import layout_file
from tests.tools.sample import MESH, piped, sample

AXES = ("data", "model", "context", "replica")
DIMS = st.lists(st.sampled_from(["batch", "length", "d_ff?", "vocab"]), min_size=1, unique=True)
OVER = st.lists(st.sampled_from(AXES), min_size=1, max_size=2, unique=True)


@st.composite
def lines(draw, level):
    """A line of a list: a text, or a table with attributes."""
    text = f"{', '.join(draw(DIMS))} -> {', '.join(draw(OVER))}"
    how = draw(st.sampled_from(["", "pad", "move"]))
    if how == "pad":
        return {"rule": text, "uneven": "pad"}
    if how == "move" and level == "rules":
        return {"rule": text, "move": "ring", "uneven": draw(st.sampled_from(["error", "pad"]))}
    return text


@st.composite
def layouts(draw):
    lists = {level: draw(st.lists(lines(level), max_size=3)) for level in LEVELS}
    across = ("replica",) if draw(st.booleans()) else ()
    axes = [*across, *(axis for axis in AXES if axis not in across)]
    return md.Layout(
        **lists,
        mesh={axis: draw(st.sampled_from([1, 2, 16])) for axis in axes},
        dcn=across,
        gather=draw(st.sampled_from(["layer", "step"])),
        sum=draw(st.sampled_from(["layer", "step"])),
        uneven=draw(st.sampled_from(["error", "pad"])),
        strict=draw(st.booleans()),
    )


def same(a, b):
    """Whether two layouts are equal but for their names, and for lists that may be tuples."""
    plain = lambda v: list(v) if isinstance(v, (list, tuple)) else v
    return all(
        plain(getattr(a, f.name)) == plain(getattr(b, f.name))
        for f in fields(md.Layout)
        if f.name != "name"
    ) and list(a.mesh) == list(b.mesh)


@settings(max_examples=60, deadline=None)
@given(layout=layouts())
def test_a_file_reads_back_as_the_layout(layout):
    text = layout_file(layout, "a heading\n\nof some lines")
    assert same(md.Layout.from_dict(tomllib.loads(text)), layout)
    assert text.startswith("# a heading\n#\n# of some lines\n\n[mesh")


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_layout_reads_back_from_a_file(name, tmp_path):
    layout = md.Layout.load(name)
    path = tmp_path / "again.toml"
    path.write_text(layout_file(layout, ""))
    assert same(md.Layout.load(path), layout)


SHIPPED = md.Layout.load("fsdp-sequence")
LAST = [{"rule": "length -> model", "order": "zigzag"}, "channels? -> model"]
FSDP_SEQUENCE = replace(SHIPPED, rules=[*SHIPPED.rules[:-1], *LAST], mesh=MESH)


def test_each_rule_says_what_it_splits_and_which_collectives_it_causes():
    text = layout_file(FSDP_SEQUENCE, "found", sample())
    assert same(md.Layout.from_dict(tomllib.loads(text)), FSDP_SEQUENCE)
    assert max(map(len, text.splitlines())) <= 100
    said = text.replace("\n  #   ", " ")
    assert "  # Splits `batch` (64) over `data`=16.\n  # It causes, in a step: " in said
    for operation in ("all_gather", "psum_scatter"):
        moves = [move for op in sample().ops for move in op.moves if move.operation == operation]
        count = sum(move.count for move in moves if "rule 1: batch -> data" in move.why)
        assert f" {count} {operation}s over `data` (" in said
    assert "# Splits `kv_heads` (8) and `d_ff` (14336) over `model`=4.\n" in said
    assert "# Splits `length` (8192) over `model`=4, in zigzag order.\n" in said
    assert '  # By itself it splits no op.\n  # It causes no collective.\n  "channels? -> m' in said
    assert "# Splits `d_model` (4096) over `data`=16, of parameters: " in said
    assert "# What gathers and sums them is counted at the rules of the ops that ask for" in said


def test_a_pipeline_is_one_in_words():
    explanation = piped()
    axis = explanation.axes[0].name
    line = {"rule": f"layers -> {axis}", "microbatches": {"batch": 16}}
    layout = md.Layout([line], mesh={a.name: a.size for a in explanation.axes})
    text = layout_file(layout, "found", explanation)
    stages = explanation.axes[0].size
    assert f"`layers` in {stages} stages over `{axis}`, `batch` in 16 microbatches" in text


def test_a_rule_of_an_axis_of_one_device_splits_nothing():
    explanation = sample()
    axes = tuple(replace(a, size=1) if a.name == "model" else a for a in explanation.axes)
    text = layout_file(FSDP_SEQUENCE, "found", replace(explanation, axes=axes))
    assert '# Splits nothing here: `model` has one device.\n  "heads?, kv_heads?' in text
