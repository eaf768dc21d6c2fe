"""Prose is read in a terminal too: lines of at most 100 columns, as in the code."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_have_at_most_100_columns(page):
    prose, code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code and not line.lstrip().startswith(("|", "#", "[")):
            prose.append((number, line))
    assert [f"{page.name}:{n}" for n, line in prose if len(line) > 100] == []
