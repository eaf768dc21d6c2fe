"""What the page of results names is there, and all figures that are kept are on the page."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1] / "benchmarks"


def test_the_page_names_every_file_of_figures():
    named = set(re.findall(r"(\w+\.json) \|", (ROOT / "RESULTS.md").read_text(encoding="utf-8")))
    kept = {path.name: json.loads(path.read_text("utf-8")) for path in ROOT.glob("results/*.json")}
    assert named == set(kept)
    for found in kept.values():
        for table in found["tables"]:
            assert {len(row) for row in table["rows"]} == {len(table["columns"])}
