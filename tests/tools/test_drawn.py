"""What the page says once its script has drawn it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshdsl.figures import byte_words
from meshdsl.predict.explanation import AxisView, DimView, MoveView, Span, TensorView
from meshdsl.tools.page import page, tensor_html
from tests.tools.sample import sample, too_large, without_target
from tests.tools.test_page import EVIL

PAGES = ("sample", "large", "untargeted", "pipelines", "hostile")
# Ids that are there twice, links and patterns that lead nowhere, and pictures without a title.
WRONG = """
const all = (selector) => [...document.querySelectorAll(selector)];
const ids = all("[id]").map((e) => e.id), there = new Set(ids);
const to = [...all("a[href]").map((e) => e.getAttribute("href").slice(1)),
  ...all("[fill^=url]").map((e) => e.getAttribute("fill").slice(5, -1))];
return [ids.length - there.size, to.filter((id) => !there.has(id)),
  all("svg").filter((e) => e.firstChild.tagName !== "title").length, all("svg").length > 9];
"""


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_titles_links_lead_somewhere_and_nothing_is_loaded(visit, name):
    browser = visit(name)
    assert browser.execute_script(WRONG) == [0, [], 0, True]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_names_are_text(visit, said):
    browser = visit("hostile")
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    assert browser.find_elements("tag name", "img") == []
    assert said("hostile").count(EVIL[:-1]) > 20


def test_verdict_comes_first(said):
    peaks = [byte_words(made().memory.peak) for made in (sample, without_target)]
    assert f"Fits. {peaks[0]} of 95.74 GiB on each of 64 devices" in said("sample")
    large, over = said("large"), byte_words(too_large().memory.peak - 6_000_000_000)
    assert f"Does not fit. {peaks[0]} of 5.59 GiB, {over} too much, on each of 64" in large
    assert "split `length` over `model`: softmax is 4.00 GiB" in large
    text = said("untargeted")
    assert f"{peaks[1]} at the peak on each of 64 devices" in text
    assert "name a target to learn it" in text
    assert "MFU" not in text and "Timeline" not in text


@pytest.mark.parametrize("name", PAGES)
def test_sizes_have_one_kind_of_units(said, name):
    text = said(name).replace("1 GiB is 1.074 GB", "")
    assert re.findall(r"\d\s?[KMG]iB", text) and not re.findall(r"\d\s?[kKMGT]B\b(?!/s)", text)


def test_figures_are_written_as_in_the_text(visit):
    browser = visit("sample")
    words = lambda function, *given: [
        browser.execute_script(f"return {function}({value})").replace("\u00a0", " ")
        for value in given
    ]
    sizes = ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "15.75 GiB", "2.00 TiB", "1024.00 PiB"]
    assert words("size", 0, 1023, 1024, 2**20 - 1, 15.75 * 2**30, 2**41, 2**60) == sizes
    assert words("time", 0, 1e-10, 3.5e-4, 0.0012, 3.4, 1234.5) == [
        *("0", "<1 ns", "350 µs", "1.2 ms", "3.4 s", "1,235 s")
    ]
    assert words("work", 750, 1.5e9, 2e21) == ["750 FLOP", "1.5 GFLOP", "2000.0 EFLOP"]
    assert words("many", 205534, 8.03e6, 1.2e9) == ["205,534", "8.03 million", "1.2 billion"]


def test_everything_of_a_step_is_on_the_page(said):
    explanation, text = sample(), said("sample")
    time = explanation.time
    figures = [
        *(f"{time.mfu:.1%}", f"{time.mfu_full:.1%} with causal"),
        *(f"{time.exposed / time.step:.1%}", f"{explanation.units / time.step:,.0f}"),
    ]
    for op in explanation.ops:
        figures += [op.source, op.notation.removeprefix(op.name)]
        figures += [move.why.replace("layout fsdp-sequence.toml, ", "") for move in op.moves]
    arrays = explanation.memory.at_rest + explanation.memory.largest
    figures += [array.notation for array in arrays] + [axis.lies for axis in explanation.axes]
    assert [one for one in (*figures, *explanation.notes) if one not in text] == []
    assert text.count("32 × layers") >= 3


def test_passes_are_panels(visit):
    radios = visit("sample").find_elements("css selector", ".phases input")
    passes = ("forward", "recompute", "backward", "gradient", "optimizer")
    assert [radio.get_attribute("id") for radio in radios] == [f"phase-{name}" for name in passes]
    assert [radio.is_selected() for radio in radios] == [True, *4 * [False]]


def test_repeated_work_is_a_table_of_lines(visit):
    rows = visit("sample").find_elements("css selector", "#repeated tbody tr")
    assert [row.text.split() for row in rows] == [
        "embedding.py:23 4 times over M model 3.3 TFLOP 2.0% 256.0 MiB 1.0% take, cast "
        "d_model -> model".split(),
        "optimizer 64 times over D data M model 2.0 MFLOP <0.1% 1.0 MiB 0.2% optimizer".split(),
    ]


def test_step_without_collectives_times_or_axes(draw):
    whole = without_target()
    ops = tuple(replace(op, moves=(), dims=(), idle=()) for op in whole.ops)
    text = draw(page(replace(whole, axes=(), ops=ops, repeated=())))
    assert "This step has no collectives" in text and "a mesh of one device" in text
    assert "on each of" not in text and "Repeated work" not in text
    assert "No op does any work" in draw(page(replace(whole, ops=())))


def test_an_axis_that_the_mesh_does_not_have_is_still_shown(draw):
    whole = sample()
    move = MoveView("psum", ("ghost",), "forward", 1, 8, "float32", "")
    op = replace(next(op for op in whole.ops if op.moves), moves=(move,))
    assert "ghost" in draw(page(replace(whole, ops=(op,))))


def test_mesh_of_thousands_is_a_small_picture(browser, draw):
    sizes = {"pod": 4, "stage": 8, "data": 64, "model": 8}
    axes = tuple(AxisView(name, size, 0, 0) for name, size in sizes.items())
    text = draw(page(replace(sample(), axes=axes)))
    assert (
        "a mesh of 16,384 devices; each exchanges data with groups of 64 over data and 8 over stage"
    ) in text
    assert len(browser.find_elements("css selector", "svg.mesh rect")) < 300
    letters = "return [...mesh.keys()].map((name) => [letters(name), fill(name)])"
    found = browser.execute_script(letters)
    assert [one[0] for one in found] == ["P", "S", "D", "M"]
    assert len({one[1] for one in found}) == 4


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("ring of 16 along x of the torus, 2 links, 180 GB/s both ways", "ring"),
        ("line of 4 along x (no ring, half the bandwidth) of the torus", "line"),
        ("4 by 4, rings along y and z of the torus, 4 links, 360 GB/s both ways", "block"),
        ("8 GPUs of a node on NVLink, 450 GB/s one way", "switch"),
        ("2 slices over the data-centre network, 6 GB/s one way", "switch"),
        ("virtual devices of one machine", None),
    ],
)
def test_axis_is_drawn_as_it_lies(visit, words, kind):
    drawn = visit("sample").execute_script(
        "return linkPicture(arguments[0], 16)?.textContent", words
    )
    assert drawn == (kind and f"16 devices on a {kind}")


def test_a_dim_split_by_two_axes_is_cut_twice(browser, draw):
    dims = (DimView("batch", 64, 8, ("pod", "data")),)
    view = TensorView("x", "other", dims, (8,), "float32", 32)
    text = draw(tensor_html(view, {"pod": 2, "data": 4}, [("batch 0:8", ["cpu 0"])]))
    assert "x[batch_pod_data]" in text and "batch 64 / 8 pod data" in text
    assert "32 B of 256 B on a device" in text and "batch 0:8cpu 0" in text
    cuts = browser.find_elements("css selector", ".cut")
    assert [cut.get_attribute("d").count("M") for cut in cuts] == [1, 6]
    whole = TensorView("x", "other", (), (), "float32", 4)
    assert "4 B on one device" in draw(tensor_html(whole, {}))


def drawn_loops(browser, spans: list[Span], loops: list) -> list[dict]:
    """The loops of a timeline whose ops, tagged `f`, are in `loops`."""
    given = [vars(span) for span in spans]
    return browser.execute_script(
        "const [spans, loops] = arguments, ops = new Map([['f', {loops}]]);"
        "return spans.filter((s) => s.stream === 'loops').map((s) => loopOf(s, spans, ops))",
        given,
        loops,
    )


def test_clock_draws_the_first_turn_of_a_loop_and_squeezes_the_others(visit):
    browser = visit("sample")
    spans = [
        Span("loops", "scan", 1.0, 101.0, "forward"),
        Span("compute", "dot_general", 1.0, 2.0, "forward", "f", 100),
        Span("compute", "head", 101.0, 102.0, "forward"),
    ]
    (loop,) = drawn_loops(browser, spans, [["layers", 100]])
    told = [loop[key] for key in ("name", "start", "first", "end", "turns", "depth")]
    assert told == ["layers", 1, 2, 101, 100, 0]
    at = browser.execute_script(
        "return [0, 1, 2, 101, 102].map(clockOf([arguments[0]], 102).at)", loop
    )
    assert at[0] == 0 and at[4] == pytest.approx(100)
    assert at[1] == pytest.approx(at[2] - at[1]) == pytest.approx(at[4] - at[3])
    assert at[3] - at[2] < 5


def test_loops_in_loops_have_lanes_of_their_own(visit):
    spans = [
        Span("loops", "scan", 0.0, 80.0, "forward"),
        Span("loops", "scan", 0.0, 8.0, "forward", "", 10),
        Span("compute", "add", 0.0, 1.0, "forward", "f", 80),
    ]
    found = drawn_loops(visit("sample"), spans, [["ticks", 10], ["layers", 8]])
    told = [(loop["name"], loop["turns"], loop["depth"]) for loop in found]
    assert told == [("ticks", 10, 0), ("layers", 8, 1)]


def test_a_pipeline_is_drawn_with_each_microbatch_on_each_stage(visit, said):
    browser = visit("pipelines")
    # A path for each microbatch, round and pass, and one for what waits; the times of the first.
    paths = browser.find_elements("css selector", ".schedule path.work")
    assert len(paths) == 2 * 8 * (2 + 1)
    assert {path.get_attribute("d").count("M") for path in paths} == {4}
    text = said("pipelines")
    assert "schedule of 4 stages and 8 microbatches" in text
    assert len(re.findall("waits, (forward|backward)", text)) == 4
    assert "forward, 400 ms" in text and "paler in later rounds" in text
    assert "a stage waits for 3 of 19 ticks (15.8%), 300 ms" in text
    assert "30 layers, 8 on each stage in 2 chunks of 4, with padding of 2" in text
    assert "drawn twice as wide" in text and "runs 3 times a step" in text
    assert "stage 0" not in said("sample")
