"""What layers and models may know: the language, and nothing of meshes or collectives."""

import ast
import inspect
from pathlib import Path

import pytest

from meshdsl import layers, models

FILES = [
    p
    for package in (layers, models)
    for p in sorted(Path(inspect.getfile(package)).parent.rglob("*.py"))
]
FORBIDDEN = ("meshdsl.mesh", "meshdsl.lowering", "jax.sharding", "jax.lax")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_layers_and_models_import_no_mesh_and_no_lowering(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    assert not [name for name in imported if name.startswith(FORBIDDEN)]


ROOT = Path(__file__).parents[1]
UNPICKLING = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")


def test_nothing_but_a_saved_executable_is_unpickled():
    """NumPy is told `allow_pickle=False` wherever it loads a file, and pickle is not imported."""
    found = []
    for package in ("meshdsl", "meshdsl_cli", "layers", "models", "examples", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            text = path.read_text()
            if not any(word in text for word in (*UNPICKLING, "serialize_executable", "np.load")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Call) and ast.unparse(node.func) == "np.load":
                    said = {word.arg: ast.unparse(word.value) for word in node.keywords}
                    names = [] if said.get("allow_pickle") == "False" else ["np.load"]
                else:
                    continue
                found += [
                    (where, name)
                    for name in names
                    if name.split(".")[0] in UNPICKLING
                    or name.endswith("serialize_executable")
                    or name == "np.load"
                ]
    assert found == [
        ("meshdsl/predict/compiler/executables.py", "jax.experimental.serialize_executable")
    ]
