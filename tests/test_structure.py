"""What no file of the package does."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("meshdsl", "meshdsl_cli", "layers", "models", "examples", "benchmarks")
FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
LIBRARIES = "pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve"
UNPICKLES = re.compile(
    rf"^ *(?:import|from) (?:{LIBRARIES})\b"  # a library that unpickles
    r"|serialize_executable import|import serialize_executable"
    r"|np\.load\((?!.*allow_pickle=False)",
    re.MULTILINE,
)


def test_nothing_but_a_saved_executable_is_unpickled():
    """NumPy is told `allow_pickle=False` wherever it loads a file, and pickle is not imported."""
    found = [name for name, text in FILES.items() if UNPICKLES.search(text)]
    assert found == ["meshdsl/predict/compiler/executables.py"]


@pytest.mark.parametrize(
    "line, found",
    [
        ("import pickle", True),
        ("    from joblib.x import load", True),
        ("np.load(path)", True),
        ("np.load(path, mmap_mode=None, allow_pickle=False)", False),
        ("from jax.experimental import serialize_executable", True),
        ("import pickles", False),
    ],
)
def test_what_unpickles_is_seen(line, found):
    assert bool(UNPICKLES.search(line)) == found
