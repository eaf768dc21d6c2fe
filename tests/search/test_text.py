"""What `meshdsl search` prints of what was found, and its JSON.

`python -m tests.search.test_text` writes the text that is expected again.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshdsl.layout import Layout
from meshdsl.layout_search.found import as_dict
from meshdsl.layout_search.text import describe, layout_words, line_words, verdict
from tests.search.sample import BEST, CONTEXT, FOUND, FSDP, SHIPPED, SMALL, TENSOR

EXPECTED = Path(__file__).with_name("found.txt")


def test_all_that_was_found_is_printed_as_promised():
    assert describe(FOUND) == EXPECTED.read_text().rstrip("\n")


COMPILED = replace(BEST, judge="compiler")
REFUSED = replace(COMPILED, fits=False, refused="out of memory")
VERDICTS = {
    "an estimate says what it leaves free": (BEST, "estimate: 59% free"),
    "too little of it": (replace(BEST, fits=False, peak=92 * 2**30), "estimate: only 4% free"),
    "too much": (replace(BEST, fits=False, peak=100 * 2**30), "estimate: does NOT fit, by 4.26"),
    "a compiler says that it fits": (COMPILED, "compiler: fits"),
    "or not": (replace(COMPILED, fits=False, peak=2**37), "compiler: does NOT fit, by 32.26 GiB"),
    "or refuses": (REFUSED, "compiler: refused, out of memory"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_only_a_compiler_says_that_it_fits(name):
    judged, said = VERDICTS[name]
    assert verdict(judged, FOUND).startswith(said)


def test_a_shipped_layout_that_is_best_has_nothing_beside_it():
    found = replace(
        FOUND, best=SHIPPED, second=None, frontier=(SHIPPED,), differences=(), rejected=()
    )
    text = describe(found)
    assert "it is the shipped layout fsdp" in text
    assert "near to the best" not in text


def test_of_what_was_compiled_it_says_how_many():
    text = describe(replace(FOUND, best=COMPILED, compiled=3, shipped=None))
    assert "3 compiled, in 4.2 s without the compiler" in text
    assert "judged by the compiler, of the likeliest 3 by the estimate" in text
    assert "no shipped layout obeys and fits" in text and "compiler: fits" in text
    other = describe(replace(FOUND, best=COMPILED, compiled=3))
    assert "10.0% faster than the best shipped layout, fsdp (data=64), by different judges" in other


def test_of_a_long_frontier_the_nearest_are_shown():
    smaller = (replace(SMALL, candidate=replace(TENSOR), peak=SMALL.peak + i) for i in range(12))
    text = describe(replace(FOUND, second=None, frontier=(*smaller, BEST)))
    assert "and 5 with less memory, which are slower" in text
    assert text.count("\n  *  2.026 s") == 7


def test_layouts_in_one_line():
    assert layout_words(FSDP) == "fsdp; model.remat=full"
    assert layout_words(TENSOR) == (
        "batch -> data; heads, d_ff, length -> model; parameters: d_model -> data; gather step; "
        "model.remat=full"
    )
    assert layout_words(replace(CONTEXT, layout=Layout(), settings=())) == "nothing is split"
    moved = Layout([{"rule": "experts -> expert", "move": "exchange"}, "batch -> expert"])
    words = layout_words(replace(CONTEXT, layout=moved, settings=()))
    assert words == "experts (move = exchange), batch -> expert"
    assert line_words(CONTEXT.layout.rules[1]) == "length -> context (order = zigzag)"


def test_json_has_layouts_as_the_tables_of_a_file():
    read = json.loads(json.dumps(as_dict(FOUND)))
    assert set(read) == set(FOUND.__dataclass_fields__) - {"fitting"}
    best = read["best"]
    assert best["mesh"] == {"data": 32, "context": 2} and best["settings"]["model.remat"] == "none"
    tables = {key: best[key] for key in ("mesh", "layout")}
    assert Layout.from_dict(tables, name="layout best") == replace(
        CONTEXT.layout, name="layout best"
    )
    assert read["rejected"][0]["fits"] is False


if __name__ == "__main__":
    EXPECTED.write_text(describe(FOUND) + "\n")
