"""What a program does, as pictures: one HTML file that needs nothing else.

Python writes the JSON of an explanation into `page.html`, with the style sheet and the script of
this folder. The script, `page.js`, draws everything.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from meshdsl.predict.explanation import Explanation, TensorView
from meshdsl.predict.ledger.report import LedgerReport

__all__ = [
    "content_hash",
    "ledger_html",
    "ledger_page",
    "page",
    "program_html",
    "style_sheet",
    "tensor_html",
]


def page(explanation: Explanation) -> str:
    """One HTML file that shows mesh, flow, timeline, memory, parameters and collectives."""
    return _document("page", explanation.to_dict())


def program_html(explanation: Explanation) -> str:
    """A frame for a notebook: the verdict, the mesh, the flow and the memory."""
    return _frame(_document("program", explanation.to_dict()))


def tensor_html(
    view: TensorView, mesh: Mapping[str, int], parts: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """A frame for a notebook that shows how one array is split.

    Args:
      view: the array, its bytes on one device.
      mesh: `{axis: size}`; empty where the array lies on one device.
      parts: each different part in words, with the names of the devices that hold it; without any
        they are not listed.
    """
    shown = {"tensor": asdict(view), "mesh": list(mesh.items()), "parts": parts}
    return _frame(_document("tensor", shown))


def ledger_page(report: LedgerReport) -> str:
    """One HTML file that shows measured time beside the estimate, by op, rule and line."""
    # The script takes the mesh in the order of its axes, which an object does not keep.
    mesh = {"axes": None, "mesh": list(report.axes.items())}
    return _document("ledger", report.to_dict() | mesh)


def ledger_html(report: LedgerReport) -> str:
    """The same in a frame for a notebook."""
    return _frame(ledger_page(report))


def _document(view: str, data: Mapping[str, Any]) -> str:
    """The document in which the script draws `data`; the browser lets it load nothing."""
    style, script = _file("page.css"), _file("page.js")
    # Where no `<` is left, no name can end the element that the data stands in.
    text = json.dumps(data).replace("<", r"\u003c")
    hashes = {"style_hash": content_hash(style), "script_hash": content_hash(script)}
    return Template(_file("page.html")).substitute(
        view=view, style=style, script=script, data=text, **hashes
    )


def _frame(document: str) -> str:
    """A document inside of another one; neither's styles and names touch the other's."""
    style = "display:block;width:100%;max-width:1034px;height:600px;border:0;border-radius:8px"
    return f'<iframe style="{style}" srcdoc="{escape(document)}"></iframe>'


def style_sheet() -> str:
    """The style of these pages, for one that is drawn without the script."""
    return _file("page.css")


@cache
def _file(name: str) -> str:
    return (files("meshdsl.tools.page") / name).read_text("utf-8")


def content_hash(text: str) -> str:
    """The name by which a content security policy allows a style or a script."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
