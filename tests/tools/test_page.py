"""The page: one file that loads nothing, with the JSON of an explanation that no name can leave."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.predict.explanation import Explanation
from meshdsl.tools.page import page, program_html
from meshdsl_cli import main
from tests.tools.sample import piped, sample, too_large, without_target

MADE = {
    "fits": sample,
    "too large": too_large,
    "no target": without_target,
    "pipelines": piped,
}
# It would end a script or an attribute, begin an element, or be no text that can be encoded.
EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(2)>&amp;\'\udcff'


class Elements(HTMLParser):
    """The elements of a document, each with its attributes and the text that begins it."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes), ""))
        self.begun = True

    def handle_endtag(self, tag):
        self.begun = False

    def handle_data(self, data):
        if self.found and self.begun:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def all(self, name: str) -> list[tuple[dict, str]]:
        return [(attributes, text) for tag, attributes, text in self.found if tag == name]


def document_of(html: str) -> dict:
    """The JSON document of a page, or of the page in a frame for a notebook."""
    for attributes, _ in Elements(html).all("iframe"):
        html = attributes["srcdoc"]
    ((_, text),) = [one for one in Elements(html).all("script") if one[0].get("id") == "data"]
    return json.loads(text)


def hostile() -> Explanation:
    """An explanation all of whose names are `EVIL`."""
    whole = sample()
    op = next(op for op in whole.ops if op.moves)
    move = replace(op.moves[0], why=EVIL, operation=EVIL)
    op = replace(op, name=EVIL, source=EVIL, advice=EVIL, moves=(move,), kernel=EVIL)
    array = replace(whole.memory.at_rest[0], name=EVIL)
    memory = replace(whole.memory, at_rest=(array,), largest=(array,), at_peak=EVIL)
    axes = (replace(whole.axes[0], lies=EVIL), whole.axes[1])
    names = {"title": EVIL, "layout": EVIL, "target": EVIL, "notes": (EVIL,), "choice": EVIL}
    repeated = (replace(whole.repeated[0], source=EVIL, advice=EVIL),)
    ops = (op, *whole.ops[4:])
    return replace(whole, **names, axes=axes, ops=ops, memory=memory, repeated=repeated)


@pytest.mark.parametrize("name", MADE)
def test_the_page_has_what_json_prints(name):
    explanation = MADE[name]()
    expected = json.loads(json.dumps(explanation.to_dict()))
    assert document_of(page(explanation)) == document_of(program_html(explanation)) == expected
    assert expected["tokens"] == 64 * 8192 and expected["unit"] == "token"


def test_a_browser_may_run_the_script_of_the_page_and_load_nothing():
    text = page(sample())
    found = Elements(text)
    policy = next(a["content"] for a, _ in found.all("meta") if "http-equiv" in a)
    allowed = [found.all("style")[0][1], found.all("script")[-1][1]]
    hashes = [b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in allowed]
    style, script = (f"'sha256-{one}'" for one in hashes)
    assert policy == f"default-src 'none'; style-src {style}; script-src {script}"
    assert set(re.findall(r"https?://[^\"']*|@import|src=|<link", text)) == {
        "http://www.w3.org/2000/svg"
    }


def test_names_cannot_leave_the_document():
    plain, text = page(sample()), page(hostile())
    assert [len(Elements(t).found) for t in (plain, text)] == [len(Elements(plain).found)] * 2
    assert document_of(text)["title"] == EVIL and text.encode("utf-8")
    frame = program_html(hostile())
    assert len(Elements(frame).found) == 1 and document_of(frame)["layout"] == EVIL


def test_without_scripts_a_sentence_says_what_to_do():
    text = page(sample())
    assert "Here no scripts run" in text.partition("<noscript>")[2].partition("</noscript>")[0]


def test_command_writes_the_page_of_the_largest_model(tmp_path, capsys):
    file = tmp_path / "plan.html"
    settings = "--model llama3-405b --batch 512 --length 8192 --target v5p:16x16x16"
    kept = ["model.remat=full", "model.loss_chunk=512"]
    given = ["--layout", "fsdp-sequence", *settings.split(), *kept, "--mesh", "data=512,model=8"]
    assert main(["explain", *given, "--json", "--html", str(file)]) == 0
    text = file.read_text("utf-8")
    assert document_of(text) == json.loads(capsys.readouterr().out) and len(text) < 1_000_000


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
    drawn = program._repr_html_()
    assert [op["tag"] for op in document_of(drawn)["ops"]] == [op.tag for op in program.ops]
    assert drawn.startswith("<iframe") and escape("rule 2: d_ff -> model") in drawn
