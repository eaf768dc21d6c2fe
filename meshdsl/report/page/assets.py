"""The style sheets and the script of the page, as they stand in their files."""

from functools import cache
from importlib.resources import files


@cache
def asset(name: str) -> str:
    """The text of the file `name` in this folder."""
    return (files("meshdsl.report.page") / name).read_text("utf-8")
