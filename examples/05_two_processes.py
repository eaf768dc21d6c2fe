"""A family of your own, by the commands alone: explained, trained by two processes, and resumed.

    pip install "meshdsl[train]" scikit-learn
    python examples/05_two_processes.py            # in a folder that is removed at the end
    python examples/05_two_processes.py runs/vit   # in a folder that is kept

The family is the vision transformer in vit.py, and digits.py has a function that gives its data.
Two processes of two devices train it, fully sharded, as two machines would. Then one process of
eight devices goes on from the checkpoint, with heads and feed-forward layers split as well. To run
a command yourself, type `meshdsl` before what is printed behind the `$`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STEPS = 40  # after which the first run ends; the second has half as many


def meshdsl(words):
    """Run a command line, and end this program if the command fails."""
    print(f"\n$ meshdsl {words}\n", flush=True)
    subprocess.run([sys.executable, "-m", "meshdsl_cli", *words.split()], check=True)


def main(folder, steps=STEPS):
    model = f"--model {HERE}/vit.py:ViT model.layers=2"
    data = f"data.sources.digits.dataset={HERE}/digits.py:digits"

    meshdsl(f"compare data fsdp fsdp-sequence {model} --target v5e:2x4 --batch 4096")
    meshdsl(
        "launch --processes 2 --devices-per-process 2 -- "
        f"train {model} {data} --layout fsdp --steps {steps} batch=64 --out {folder}"
    )
    meshdsl(
        f"train {folder}/config.toml --resume --layout fsdp-tensor --devices 8 "
        f"--steps {steps + steps // 2}"
    )
    meshdsl(f"checkpoint ls {folder}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(*(sys.argv[1:] or [f"{temporary}/vit"]))
