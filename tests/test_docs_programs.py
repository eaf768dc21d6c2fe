"""The programs on pages of the documentation run as they stand."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
# Each page, and what its program prints.
PAGES = {
    "from-python.md": [
        "zero1, mesh data=8, 8 devices on v5e:2x4",
        "optimizer state",
        "layout  mesh",
        "compiles: needs",
        *("step 20: loss", "step 40: loss", "step 60: loss"),
    ],
    "explain.md": ["fsdp, mesh data=8, 8 devices on v5e:2x4", "layout  mesh"],
    "compile.md": ["compiled for cpu:8", "no surprises"],
    "checkpoints.md": [],
}


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # It asks for the devices that the tests have already.
    monkeypatch.setattr(jax.config, "update", lambda *asked: None)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names = {}
    exec(compile("\n".join(blocks), page, "exec"), names)
    printed = capsys.readouterr().out
    assert not [text for text in PAGES[page] if text not in printed]
    if page == "from-python.md":
        losses = [*names["first"], *names["more"]]
        assert len(losses) == 60 and losses[0] > 2 > 1 > losses[-1]
        (params, opt_state), expected = names["init"](jax.random.key(0)), []
        for number in range(1, 61):  # the same without a lowering, and without a stop
            params, opt_state, report = names["step"](params, opt_state, *names["rows"](number))
            expected.append(float(report["loss"].array))
        np.testing.assert_allclose(losses, expected, rtol=1e-3)
