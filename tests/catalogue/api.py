"""The page of every public name, docs/api.md: signatures and what each does, from the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from meshdsl.ops.functions import FUNCTIONS, KIND, LAX, NN, NUMPY
from meshdsl.ops.methods import METHODS
from meshdsl.record.program import Program
from meshdsl.report.show import Shown
from tests.catalogue.read import families

PAGE = Path(__file__).parents[2] / "docs/api.md"
HEAD = """# Every public name

Generated from the code by `python -m tests.catalogue`; a test keeps it current. Each name is an
attribute of `md` (`import meshdsl as md`); `help(md.einsum)` shows the arguments and errors of a
function. What each op moves between devices is in [ops](ops.md).

In signatures, a dim of a tensor is given as a `Dim` or by its name. `Which` is one of these, a
tuple of them, or `None` for all dims; `Over` is a mapping from dims of the input to dims of the
kernel, or to names; `Dims` is a tuple of `Dim`s; `...` stands for what JAX's function of that
name takes beside. Python's operators (`+ - * / // % ** & | ^ ~`, comparisons, `abs`) do what the
functions do.
"""
TYPES = {
    "Dim": md.Dim,
    "Tensor": md.Tensor,
    "Layout": md.Layout,
    "Family": md.Family,
    "JaxFamily": md.JaxFamily,
    "Average": md.Average,
    "Stages": md.Stages,
    "Transfers": md.Transfers,
}
GIVEN = {
    "Lowered": (Lowered, "What `lower` returns."),
    "Program": (Program, "What `Lowered.program` returns."),
    "Shown": (Shown, "What `show` returns."),
}
OPERANDS = {
    "Unary": "x",
    "Tuned": "x, ...",
    "Binary": "x, y",
    "Ternary": "condition, x, y",
}
PROTOCOLS = {"tree_flatten", "tree_flatten_with_keys", "tree_unflatten"}  # which JAX asks for


def page() -> str:
    """The text of docs/api.md."""
    named = {title: [d.name for d in found] for title, found in families().items()}
    ops = {op for names in named.values() for op in names}
    rest = [n for n in md.__all__ if inspect.isfunction(getattr(md, n)) and n not in ops]
    parts = [HEAD, "\n## Tensors, layouts and programs\n", *map(_function, sorted(rest))]
    parts.append(f"- `MeshDSLError`: {_summary(md.MeshDSLError)}")
    for name, cls in TYPES.items():
        parts += [f"\n### {name}\n", *_class(name, cls)]
    for name, (cls, how) in GIVEN.items():
        parts += [f"\n### {name}\n\n{how} {_summary(cls)}\n", *_class(name, cls, made=False)]
    for title, names in named.items():
        parts += [f"\n## {title}\n"]
        parts += _component_wise() if title == "Component-wise" else []
        parts += [_function(name) for name in sorted(set(names)) if name not in FUNCTIONS]
    return "\n".join(line for part in parts for line in _wrapped(part)) + "\n"


def _wrapped(part: str) -> list[str]:
    """A part of the page, its list items and long lines broken into lines of an editor's width."""
    item = part.startswith("- ")
    how: Any = {"break_long_words": False, "break_on_hyphens": False}
    lines = [part] if item else part.split("\n")
    wrapped = (textwrap.wrap(x, 98, subsequent_indent="  " if item else "", **how) for x in lines)
    return [broken for line in wrapped for broken in line or [""]]


def _function(name: str) -> str:
    found: Any = md
    for part in name.split("."):
        found = getattr(found, part)
    return f"- `{name}{signature(found)}`: {_summary(found)}"


def _component_wise() -> Iterator[str]:
    """The functions that follow JAX's, a line for those of one module with operands alike."""
    for module, names in ((jnp, NUMPY), (jax.nn, NN), (jax.lax, LAX)):
        for kind, operands in OPERANDS.items():
            found = [
                f"`{name}({operands})`" for name in sorted(names) if KIND.get(name, "Unary") == kind
            ]
            if found:
                yield f"- {', '.join(found)}: component-wise, as in `{module.__name__}`; see `map`."


def _class(name: str, cls: type, *, made: bool = True) -> Iterator[str]:
    """A class with its fields, properties and methods."""
    if made:
        yield f"- `{name}{signature(cls)}`: {_summary(cls)}"
    said = _attributes(cls)
    for fields, text in said.items():
        yield f"- {', '.join(f'`{name}.{field}`' for field in fields.split(', '))}: {text}"
    known = {field for fields in said for field in fields.split(", ")}
    for member in sorted(vars(cls)):
        value = inspect.getattr_static(cls, member)
        if member.startswith("_") or member in PROTOCOLS or member in known:
            continue
        if cls is md.Tensor and member in METHODS:
            continue
        if isinstance(value, (property, cached_property)):
            function = value.fget if isinstance(value, property) else value.func
            yield f"- `{name}.{member}`: {_summary(function)}"
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            bound = getattr(cls, member)
            text = signature(bound, method=inspect.isfunction(value))
            yield f"- `{name}.{member}{text}`: {_summary(bound)}"
    if cls is md.Tensor:
        listed = ", ".join(f"`Tensor.{method}`" for method in sorted(METHODS))
        yield f"- {listed}: the ops of these names: `x.sum(d)` is `md.sum(x, d)`."
        yield '- `Tensor["dim", index, ...]`: ' + _summary(md.Tensor.__getitem__)


def _attributes(cls: type) -> dict[str, str]:
    """What the docstring of a class says of its attributes, or of what it is made from."""
    text = inspect.getdoc(cls) or ""
    section = re.search(r"^(?:Attributes|Args):\n((?:  .*\n?)*)", text, re.MULTILINE)
    entry = re.compile(r"^  (\w[\w, ]*): ((?:.|\n(?=    ))*)", re.MULTILINE)
    entries = entry.findall(section[1]) if section else []
    return {names: " ".join(said.split()) for names, said in entries}


def signature(function: Callable, *, method: bool = False) -> str:
    """`(x: Tensor, dim: Dim | str, *, descending: bool = False) -> Tensor`."""
    found = inspect.signature(function)
    words: list[str] = []
    for p in list(found.parameters.values())[1 if method else 0 :]:
        if p.kind is p.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(_parameter(p))
    result = "" if found.return_annotation in _NOTHING else f" -> {_type(found.return_annotation)}"
    return f"({', '.join(words)}){result}"


def _parameter(p: inspect.Parameter) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    said = "" if p.annotation is p.empty else f": {_type(p.annotation)}"
    default = "" if p.default is p.empty else _default(p.default)
    return f"{stars}{p.name}{said}{(' = ' if said else '=') if default else ''}{default}"


_NOTHING = (inspect.Signature.empty, None, "None")


def _type(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    if isinstance(value, Mapping) or repr(value) == "<factory>":
        return repr(dict(value)) if isinstance(value, Mapping) else "{}"
    return getattr(value, "__name__", repr(value))


def _summary(value: Any) -> str:
    """The first paragraph of a docstring."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(text.split())
