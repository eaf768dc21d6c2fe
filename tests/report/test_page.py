"""The page: well-formed, complete, escaped, and in need of nothing but itself."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.estimate.explanation import AxisView, DimView, MoveView, Span, TensorView
from meshdsl.report.page import page, program_html, tensor_html
from meshdsl.report.page.axis_styles import COLOURS, AxisStyles
from meshdsl.report.page.links import link_picture
from meshdsl.report.page.mesh import mesh_picture
from meshdsl.report.page.timeline import Clock, Loop
from meshdsl_cli import main
from tests.report.sample import piped, sample, too_large, without_target

VOID = {"meta", "input", "br", "wbr", "hr"}


class Tree(HTMLParser):
    """Checks that elements close in order, and keeps what was read."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.words, self.untitled = [], [], [], 0
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        if (
            self.open
            and self.open[-1] == "svg"
            and self.elements[-1][0] == "svg"
            and tag != "title"
        ):
            self.untitled += 1
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).replace("\u00a0", " ").split())

    def all(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag == name]


MADE = {
    "fits": sample(),
    "too large": too_large(),
    "no target": without_target(),
    "pipelines": piped(),
}
PAGES = {name: page(explanation) for name, explanation in MADE.items()}


@pytest.mark.parametrize(
    "text", [*PAGES.values(), program_html(sample())], ids=[*PAGES, "fragment"]
)
def test_html_is_balanced_titled_and_has_no_double_ids(text):
    tree = Tree(text)
    ids = [attributes["id"] for _, attributes in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not tree.untitled and tree.all("svg")
    pointed = {
        href[1:] for href in (a.get("href", "") for a in tree.all("a")) if href.startswith("#")
    }
    assert pointed <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_page_loads_nothing_and_is_small(text):
    assert not re.search(r"https?://|@import|src=|<link", text)
    assert len(text.encode()) < 1_000_000


def test_command_writes_the_page_of_the_largest_model(tmp_path, capsys):
    file = tmp_path / "plan.html"
    settings = [
        "--model",
        "llama3-405b",
        "--batch",
        "512",
        "--length",
        "8192",
        "--target",
        "v5p:16x16x16",
        "--mesh",
        "data=512,model=8",
    ]
    assert main(["explain", "--layout", "fsdp-sequence", *settings, "--html", str(file)]) == 0
    assert capsys.readouterr().out
    text = file.read_text("utf-8")
    tree = Tree(text)
    assert len(text.encode()) < 1_000_000
    assert (
        "on each of 4,096 devices" in tree.text
        and "126 × layers" in tree.text
        and "Timeline" in tree.text
    )
    assert not tree.untitled


def test_verdict_comes_first():
    assert "Fits. 19.01 GiB of 95.00 GiB on each of 64 devices" in Tree(PAGES["fits"]).text
    assert (
        "Does not fit. 19.01 GiB of 14.90 GiB, 4.11 GiB too much, on each of 64 devices"
        in Tree(PAGES["too large"]).text
    )
    assert "split `length` over `model`: softmax is 4.00 GiB" in Tree(PAGES["too large"]).text
    text = Tree(PAGES["no target"]).text
    assert "19.01 GiB at the peak on each of 64 devices" in text
    assert "name a target to learn it" in text
    assert "MFU" not in text and "Timeline" not in text


@pytest.mark.parametrize("name", PAGES)
def test_sizes_have_one_kind_of_units(name):
    text = Tree(PAGES[name]).text.replace("1 GiB is 1.074 GB", "")
    assert re.findall(r"\d\s?[KMG]iB", text) and not re.findall(r"\d\s?[kKMGT]B\b(?!/s)", text)


def test_figures_of_the_step_are_there():
    explanation = MADE["fits"]
    text = Tree(PAGES["fits"]).text
    time = explanation.time
    for figure in (
        f"{time.mfu:.1%}",
        f"{time.mfu_full:.1%} with causal",
        f"{time.exposed / time.step:.1%}",
        f"{explanation.units / time.step:,.0f}",
    ):
        assert figure in text


def test_every_op_move_array_axis_and_note_is_on_the_page():
    explanation = MADE["fits"]
    text = Tree(PAGES["fits"]).text
    for op in explanation.ops:
        assert op.source in text
        inside = op.notation.removeprefix(op.name)
        assert inside in text, op.notation
        for move in op.moves:
            assert move.why.removeprefix("layout fsdp-sequence.toml, ") in text
    for array in explanation.memory.at_rest + explanation.memory.largest:
        assert array.notation in text
    for axis in explanation.axes:
        assert axis.lies in text
    for note in explanation.notes:
        assert note in text
    assert len(Tree(PAGES["fits"]).all("tr")) > sum(len(op.moves) for op in explanation.ops)
    assert "The rule d_model -> model would share it." in text


def test_passes_are_panels_and_a_loop_is_folded():
    tree = Tree(PAGES["fits"])
    assert [radio["id"] for radio in tree.all("input")] == [
        f"p-phase-{name}" for name in ("forward", "recompute", "backward", "gradient", "optimizer")
    ]
    assert sum("checked" in radio for radio in tree.all("input")) == 1
    assert tree.text.count("32 × layers") >= 3


def test_names_are_escaped():
    evil = '<script>alert("1")</script>&amp;'
    whole = sample()
    op = replace(
        whole.ops[1],
        name=evil,
        source=evil,
        advice=evil,
        moves=(replace(whole.ops[1].moves[0], why=evil, operation=evil), *whole.ops[1].moves),
    )
    array = replace(whole.memory.at_rest[0], name=evil)
    axes = (replace(whole.axes[0], lies=evil), whole.axes[1])
    hostile = replace(
        whole,
        title=evil,
        layout=evil,
        target=evil,
        notes=(evil,),
        axes=axes,
        ops=(whole.ops[0], op, *whole.ops[2:]),
        memory=replace(
            whole.memory, at_rest=(array, *whole.memory.at_rest), largest=(array,), at_peak=evil
        ),
    )
    for text in (page(hostile), program_html(hostile)):
        tree = Tree(text)
        assert "alert(" not in "".join(text.split("<script>")[1:2])
        assert len(tree.all("script")) == text.count("<script>") <= 1
        assert evil in tree.text


def test_step_without_collectives_times_or_axes():
    whole = without_target()
    alone = replace(
        whole, axes=(), ops=tuple(replace(op, moves=(), dims=(), idle=()) for op in whole.ops)
    )
    text = Tree(page(alone)).text
    assert "This step has no collectives" in text
    assert "on each of" not in text
    assert "No op does any work" in Tree(page(replace(alone, ops=()))).text


def test_mesh_of_thousands_is_a_small_picture():
    for sizes in (
        {"data": 512, "model": 16},
        {"pod": 4, "stage": 8, "data": 64, "model": 8},
        {"data": 1},
        {},
    ):
        picture = mesh_picture(AxisStyles(sizes))
        assert picture.count("<rect") < 300
        Tree(picture)
    assert (
        "a mesh of 16,384 devices; each exchanges data with groups of 64 over data"
        in mesh_picture(AxisStyles({"pod": 4, "stage": 8, "data": 64, "model": 8}))
    )


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("ring of 16 along x of the torus, 2 links, 180 GB/s both ways", "ring"),
        ("line of 4 along x (no ring, half the bandwidth) of the torus", "line"),
        ("4 by 4, rings along y and z of the torus, 4 links, 360 GB/s both ways", "block"),
        ("8 GPUs of a node on NVLink, 450 GB/s one way", "switch"),
        ("2 slices over the data-centre network, 6 GB/s one way", "switch"),
    ],
)
def test_axis_is_drawn_as_it_lies(words, kind):
    assert f"devices on a {kind}" in link_picture(words, 16)
    assert link_picture("virtual devices of one machine", 16) is None


def test_axes_are_told_by_letters_and_patterns_too():
    axes = AxisStyles({"data": 2, "depth": 2, "model": 2})
    assert [axes.letters(name) for name in axes.sizes] == ["Da", "De", "M"]
    assert len({axes.fill(name) for name in axes.sizes}) == 3
    assert AxisStyles({str(i): 2 for i in range(9)}).index("8") == 8 % COLOURS


def test_a_dim_split_by_two_axes_is_cut_twice():
    view = TensorView(
        "x", "other", (DimView("batch", 64, 8, ("pod", "data")),), (8,), "float32", 32
    )
    text = Tree(tensor_html(view, {"pod": 2, "data": 4})).text
    assert (
        "batch_pod_data" in text
        and "batch 64 / 8 pod data" in text
        and "32 B of 256 B on a device" in text
    )


def test_clock_draws_the_first_turn_of_a_loop_and_squeezes_the_others():
    span, body = (
        Span("loops", "scan", 1.0, 101.0, "forward"),
        Span("compute", "dot_general", 1.0, 2.0, "forward", "md.f.7", 100),
    )
    op = replace(sample().ops[3], tag="md.f.7", loops=(("layers", 100),))
    loop = Loop.of(
        span, [span, body, Span("compute", "head", 101.0, 102.0, "forward")], {"md.f.7": op}
    )
    assert loop == Loop("layers", "forward", 1.0, 2.0, 101.0, 100)
    clock = Clock.of([loop], 102.0)
    assert clock.rests == ((2.0, 101.0, 99),)
    assert clock.at(0) == 0 and clock.at(102.0) == pytest.approx(100)
    assert (
        clock.at(1.0)
        == pytest.approx(clock.at(2.0) - clock.at(1.0))
        == pytest.approx(clock.at(102.0) - clock.at(101.0))
    )
    assert clock.at(101.0) - clock.at(2.0) < 5


def test_fragment_leaves_the_rest_of_a_notebook_alone():
    text = program_html(sample())
    style = text.partition("<style>")[2].partition("</style>")[0]
    depth, selectors, start = 0, [], 0
    for i, c in enumerate(style):
        if c == "{":
            if depth == 0:
                selectors.append(style[start:i].strip())
            depth += 1
        elif c == "}":
            depth -= 1
            start = i + 1 if depth == 0 else start
    assert depth == 0
    assert all(s.startswith((".mdsl", "@media")) for s in selectors), selectors
    assert (
        program_html(without_target()).partition("<pattern id=")[2][:9]
        != text.partition("<pattern id=")[2][:9]
    )


def test_program_shows_itself_in_a_notebook():
    layout = md.Layout(rules=("batch -> data", "d_ff -> model"), mesh={"data": 2, "model": 2})
    batch, d_model, d_ff = md.Dim("batch", 8), md.Dim("d_model", 16), md.Dim("d_ff", 32)
    up, down = (
        md.parameter(jnp.ones((a.size, b.size)), (a, b), ins=a)
        for a, b in ((d_model, d_ff), (d_ff, d_model))
    )

    def mlp(x, up, down):
        return md.einsum(md.relu(md.einsum(x, up, out=(batch, d_ff))), down, out=(batch, d_model))

    program = md.lower(mlp, layout).program(
        md.tensor(jnp.ones((8, 16)), (batch, d_model)), up, down
    )
    tree = Tree(program._repr_html_())
    for op in program.ops:
        assert str(op).removeprefix(op.name) in tree.text
    assert "psum" in tree.text and "rule 2: d_ff -> model" in tree.text and "data 2" in tree.text


def test_unknown_axis_of_a_move_is_still_shown():
    whole = sample()
    op = replace(
        whole.ops[0], moves=(MoveView("psum", ("ghost",), "forward", 1, 8, "float32", ""),)
    )
    assert (
        "ghost"
        in Tree(
            page(
                replace(
                    whole,
                    ops=(op, *whole.ops[1:]),
                    axes=(AxisView("data", 16, 0, 0), *whole.axes[1:]),
                )
            )
        ).text
    )


def test_a_pipeline_is_drawn_with_each_microbatch_on_each_stage():
    text = PAGES["pipelines"]
    assert "schedule of 4 stages and 8 microbatches" in text
    # A path for each microbatch, round and pass, and one for what waits; the times of the first.
    works = re.findall(r'<path d="([^"]+)" style="--h:\d+;--o:[\d.]+" class="work">', text)
    assert [len(works), {path.count("M") for path in works}] == [2 * 8 * (2 + 1), {4}]
    waits = re.findall(r"<title>waits, \w+</title></path>", text)
    assert len(waits) == 4 and "forward, 400\u00a0ms" in text and "paler in later rounds" in text
    said = Tree(text).text
    assert "a stage waits for 3 of 19 ticks (15.8%), 300 ms" in said
    assert "30 layers, 8 on each stage in 2 chunks of 4, with padding of 2" in said
    assert "drawn twice as wide" in said and "runs 3 times a step" in said
    assert PAGES["fits"].count('id="pipeline"') == 0


def test_loops_in_loops_have_lanes_of_their_own():
    spans = [
        Span("loops", "scan", 0.0, 80.0, "forward"),
        Span("loops", "scan", 0.0, 8.0, "forward", "", 10),
        Span("compute", "add", 0.0, 1.0, "forward", "md.f.7", 80),
    ]
    op = replace(sample().ops[3], tag="md.f.7", loops=(("ticks", 10), ("layers", 8)))
    outer, inner = (Loop.of(span, spans, {"md.f.7": op}) for span in spans[:2])
    assert (outer.name, outer.turns, outer.depth) == ("ticks", 10, 0)
    assert (inner.name, inner.turns, inner.depth) == ("layers", 8, 1)
