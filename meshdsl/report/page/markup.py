"""HTML and SVG from Python; text is escaped, unless it already is markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

_VOID = {"meta", "input", "br", "wbr", "hr"}
_EMPTY_SVG = {"rect", "path", "circle", "line", "use"}


class Markup(str):
    """Text that is markup: `tag` takes it as it is and escapes everything else."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element: `tag("p", "a < b", class_="quiet")` is `<p class="quiet">a &lt; b</p>`.

    Args:
      children: Markup, text (which is escaped), whole numbers, or iterables of them; None is left
        out.
      attributes: `class_` is written `class`, and `aria_label` as `aria-label`. None and False
        leave an attribute out, True writes it without a value.
    """
    text = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{text}>")
    if name in _EMPTY_SVG and not children:
        return Markup(f"<{name}{text}/>")
    return Markup(f"<{name}{text}>{join(children)}</{name}>")


def join(children: Iterable[Any], between: str = "") -> Markup:
    """Everything in `children`, one after the other, with `between` in between as it is."""
    return Markup(between.join(_each(child) for child in children))


def _each(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int)):
        return escape(str(child), quote=False)
    return join(child)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(number(value) if isinstance(value, float) else str(value))}"'


def number(value: float) -> str:
    """A coordinate: at most two digits after the point, and no more than it needs."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def svg(title: str, width: float, height: float, /, *children: Any, **attributes: Any) -> Markup:
    """A picture with its `title` for those who cannot see it."""
    box = f"0 0 {number(width)} {number(height)}"
    return tag(
        "svg",
        tag("title", title),
        *children,
        viewBox=box,
        width=number(width),
        height=number(height),
        role="img",
        **attributes,
    )
