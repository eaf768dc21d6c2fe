"""An import has less than twice the largest tensor in memory, and never the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from meshdsl.commands.checkpoint import described_parameters
from meshdsl.models.places import places
from meshdsl.models.published import config_of
from meshdsl.train.config import Config
from meshdsl.train.settings import override

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SMALL = {"layers": 2, "d_model": 16, "heads": 2, "d_ff": 32, "vocab": 64, "length": 16}
LARGE = {**SMALL, "layers": 3, "d_model": 1024, "heads": 8, "d_ff": 3072, "vocab": 49152}
# What the libraries take is taken by a first import of a small model.
IMPORT = """
import re, sys
from pathlib import Path
from meshdsl_cli import main

small, large, out = sys.argv[1:]

def megabytes(name):
    said = Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+)", said)[1]) / 1024

assert main(["import", "hf", small, "--out", out + "/a"]) == 0
Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
before = megabytes("VmRSS")
assert main(["import", "hf", large, "--out", out + "/b"]) == 0
print("rise", megabytes("VmHWM") - before)
"""


def published(folder, sizes):
    """A folder with a file for each tensor, and the bytes of the largest tensor and of all."""
    model = {f"model.{name}": value for name, value in {"style": "llama", **sizes}.items()}
    config = override(Config(), (), **model)
    like = described_parameters(config)
    found = places("llama", {name: tuple(leaf["shape"]) for name, leaf in like.items()})
    folder.mkdir()
    where, largest, total = {}, 0, 0
    for place in found.values():
        for layer in range(sizes["layers"] if "{}" in place.name else 1):
            name = place.name.format(layer)
            tensor = np.ones(place.shape, ml_dtypes.bfloat16)
            where[name] = f"model-{len(where):05}.safetensors"
            save_file({name: tensor}, folder / where[name])
            largest, total = max(largest, tensor.nbytes), total + tensor.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    said = {**config_of(config.model), "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(said))
    return largest, total


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc")
def test_an_import_stays_under_twice_the_largest_tensor(tmp_path):
    published(tmp_path / "small", SMALL)
    largest, total = published(tmp_path / "large", LARGE)
    assert total > 2.5 * largest
    words = [str(tmp_path / name) for name in ("small", "large", "")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *words],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rise = float(done.stdout.rpartition("rise ")[2]) * 2**20
    assert rise < 2 * largest, rise / largest
