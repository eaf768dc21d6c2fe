"""The style and the script, as they stand in their files."""

from functools import cache
from importlib.resources import files


@cache
def asset(name: str) -> str:
    """The text of a file of this package."""
    return (files("meshdsl.report.page") / name).read_text("utf-8")
