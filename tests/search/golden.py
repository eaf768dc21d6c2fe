"""What searches find, for three models and machines, so that a change of the estimate is seen.

python -m tests.search.golden        writes the files anew
"""

from pathlib import Path

from meshdsl.commands.settings import model_values
from meshdsl.commands.training_workload import training_workload
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.text import candidate_lines
from meshdsl.machine import find_target
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.train.config import Config
from meshdsl.train.settings import override

FOLDER = Path(__file__).parent / "golden"
UNET = ["model.channels=128", "model.levels=3", "model.height=256", "model.width=256"]
# A model, a target, the rows of a step, settings, and how many estimates may be made.
CASES = {
    "llama3-8b-on-64-v5p": ("llama3-8b", "v5p:4x4x4", 32, ["model.length=8192"], 20),
    "gpt2-1.5b-on-32-h100": ("gpt2-1.5b", "h100:8x4", 64, [], 12),
    "unet-on-16-v5e": ("unet", "v5e:4x4", 64, UNET, 20),
}


def text_of(case: str) -> str:
    """What is found: the layout, the time of a step and the peak, to three digits."""
    model, target, rows, settings, count = CASES[case]
    config = override(Config(), settings, **model_values(model), batch=rows)
    workload = training_workload(config, find_target(target), case)
    found = find(workload, Constraints(), seconds=None, evaluations=count).best
    figures = f"step {found.step:.3g} s, peak {found.peak / 2**30:.3g} GiB"
    return "\n".join([*candidate_lines(found.candidate), figures, ""])


if __name__ == "__main__":
    compile_only()
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        (FOLDER / f"{name}.txt").write_text(text_of(name))
