"""Losses of 100 steps and a checkpoint, as a version of JAX or of meshdsl gave them.

    python -m tests.train.over_time             # the losses, with the JAX that is installed
    python -m tests.train.over_time checkpoint  # and a checkpoint of this version of meshdsl

The losses lie in `tests/golden/losses/`, a file for each version of JAX; the checkpoints, runs of
two steps, in `tests/golden/earlier_runs/`, a folder for each version of meshdsl.
"""

import json
import random
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.train.common import TINY, losses

GOLDEN = Path(__file__).parents[1] / "golden"
RUNS = GOLDEN / "earlier_runs"  # not `runs`, which git is told to ignore
LAYOUTS = ("data", "fsdp", "fsdp-tensor")
SETTINGS = [*TINY, "model.dropout=0.1", "sample.tokens=0", "validation.batches=1", "proof=off"]


def file_of_losses() -> Path:
    return GOLDEN / f"losses/jax-{version('jax')}.json"


def write_text(path: Path) -> str:
    """A text that is the same everywhere."""
    draw = random.Random(0)
    words = ["".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, 9))) for _ in range(99)]
    path.write_text(" ".join(draw.choice(words) for _ in range(4000)))
    return str(path)


def losses_of(layout: str, folder: Path) -> list[float]:
    from meshdsl_cli import main

    text = write_text(folder / "text.txt")
    run = ["train", "--data", text, "--layout", layout, "--out", str(folder / layout)]
    assert main([*run, *SETTINGS, "steps=100", "checkpoint.every=0"]) == 0
    return losses(folder / layout)


def write_losses() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = {layout: losses_of(layout, Path(name)) for layout in LAYOUTS}
    file_of_losses().parent.mkdir(exist_ok=True)
    file_of_losses().write_text(json.dumps(found, indent=1) + "\n")


def write_run() -> None:
    from meshdsl_cli import main

    with tempfile.TemporaryDirectory() as name:
        text, out = write_text(Path(name) / "text.txt"), Path(name) / "run"
        run = ["train", "--data", text, "--layout", "fsdp", "--out", str(out), *SETTINGS]
        assert main([*run, "steps=6", "checkpoint.every=2", "checkpoint.keep=3"]) == 0
        to = RUNS / version("meshdsl")
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        shutil.copytree(out / "checkpoints/2", to / "checkpoints/2")
        (to / "checkpoints/2/commit_success.txt").write_text("")  # it names a folder of ours
        lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [
            json.dumps({"step": i, "loss": json.loads(x)["loss"]}) for i, x in enumerate(lines, 1)
        ]
        (to / "metrics.jsonl").write_text("\n".join(kept) + "\n")
        config = (out / "config.toml").read_text().replace(text, "text.txt")
        lines = [x for x in config.splitlines() if not x.startswith("cache =")]
        (to / "config.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_losses()
    if "checkpoint" in sys.argv[1:]:
        write_run()
