"""What the real TPU compiler says, from a process of its own: libtpu takes over signals."""

import importlib.util
import json
import subprocess
import sys

import pytest


def told_by_libtpu(module: str, asked=None):
    """The JSON that `python -m module` prints, given `asked` as JSON; skips without libtpu."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
