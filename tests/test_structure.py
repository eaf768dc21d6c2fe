"""What layers and models may know: the language, and nothing of meshes or collectives."""

import ast
import inspect
from pathlib import Path

import pytest

from meshdsl import layers, models

FILES = [
    p
    for package in (layers, models)
    for p in sorted(Path(inspect.getfile(package)).parent.glob("*.py"))
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
