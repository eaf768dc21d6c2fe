"""What imports what: downwards through the rooms of the package, and nothing while it runs.

A program that trains does not import the report, so it starts without it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import meshdsl as md
from meshdsl import train
from meshdsl.extras import EXTRAS
from meshdsl.tools.show import show
from tests.helpers import dims

ROOT = Path(__file__).parents[1]

# The rooms, from the bottom. A module may import from its own room and from those before it. A room
# is a folder of meshdsl/ or one of its modules; `meshdsl` itself is the language, with every op.
ROOMS = (
    *("errors", "parsing", "versions", "links", "extras", "fields", "figures", "schema", "dims"),
    *("layouts", "rules", "layout", "mesh", "values", "tensor", "stand_in"),
    *("user_code", "parameters", "checked", "hosts", "splits", "program"),
    *("lowering", "ops", "stages", "family", "meshdsl", "layers", "models"),
    *("machine", "calibration", "predict", "proof", "plain_jax", "layout_search"),
    *("tools", "train", "rehearsal", "submit"),
    *("commands", "cli", "testing"),
)
# What a room may not import although it is below. Estimates and reports are made from a record,
# layers and models know nothing of meshes or collectives, and a proof that a program was lowered
# rightly knows nothing of how that is done.
APART = {
    "layers": {"mesh", "lowering", "jax.sharding", "jax.lax"},
    "models": {"mesh", "lowering", "jax.sharding", "jax.lax"},
    "train": {"tools"},
    "machine": {"lowering", "ops", "meshdsl", "layers", "models"},
    "predict": {"lowering", "ops", "meshdsl", "layers", "models"},
    "proof": {"lowering", "ops", "meshdsl", "layers", "models", "machine", "predict"},
}

OPTIONAL = {package for packages in EXTRAS.values() for package in packages}  # may be missing
# Modules with Pallas, which takes as long to import as the language: `gmm`, `grouped_kernels`, and
# two of attention.
SLOW = {
    "jax.experimental.pallas.ops.tpu.megablox.gmm",
    "meshdsl.ops.grouped_kernels",
    "meshdsl.ops.attention",
}
# Who imports by name: a package what it exports late, `user_code` what a setting names.
BY_NAME = {"__init__.py", "train/__init__.py", "user_code.py"}
ROOMS_OF_MESHDSL = {f"meshdsl.{room}" for room in ROOMS}


@dataclass(frozen=True)
class Import:
    """One import: of which module, from which file and line, and whether it runs in a function."""

    file: str
    line: int
    module: str
    inside: bool

    def __str__(self):
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def files() -> dict[str, Path]:
    """The files of the package, by their path in it once it is installed."""
    found = {}
    for folder in ("meshdsl", "layers", "models"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT / folder).as_posix()
            found[name if folder == "meshdsl" else f"{folder}/{name}"] = path
    return found


@cache
def imports() -> list[Import]:
    """Every import of the package, but for those that only a type checker sees."""
    return [
        Import(file, line, module, inside)
        for file, path in files().items()
        for line, module, inside in _imports(ast.parse(path.read_text()), False)
    ]


def _imports(node: ast.AST, inside: bool) -> Iterator[tuple[int, str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module and not child.level, f"line {child.lineno} is relative"
            yield from ((child.lineno, _module(child.module, a), inside) for a in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (found for one in child.orelse for found in _imports(one, inside))
        else:
            scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
            yield from _imports(child, inside or isinstance(child, scopes))


def _module(package: str, alias: ast.alias) -> str:
    """`meshdsl.layouts` for `from meshdsl import layouts`, and `meshdsl` for a name of an op."""
    inner = f"{package}.{alias.name}"
    return inner if package == "jax" or inner in ROOMS_OF_MESHDSL else package


def room_of_file(file: str) -> str:
    first = file.split("/")[0].removesuffix(".py")
    return "meshdsl" if first == "__init__" else first


def room_of_module(module: str) -> str:
    return (*module.split("."), "meshdsl")[1]


@cache
def imported_by(*modules: str) -> list[str]:
    """The modules of meshdsl that a program has which imports these.

    They leave signals alone.
    """
    program = f"""
import signal, sys
heard = lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
before = heard()
import {", ".join(modules)}
assert heard() == before and signal.set_wakeup_fd(-1) == -1
print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return [name for name in run.stdout.split() if name.split(".")[0] == "meshdsl"]


def below(folder: str, modules: list[str]) -> list[str]:
    """Those of the modules that are in `folder`."""
    return [name for name in modules if f"{name}.".startswith(f"{folder}.")]


@pytest.mark.parametrize("room", ["tools", "commands", "predict", "train", "testing", "rehearsal"])
def test_the_language_starts_without(room):
    assert not below(f"meshdsl.{room}", imported_by("meshdsl"))


def test_training_starts_without_the_tools():
    modules = [p.stem for p in (ROOT / "meshdsl/train").glob("*.py") if p.stem != "__init__"]
    assert not below("meshdsl.tools", imported_by(*(f"meshdsl.train.{m}" for m in modules)))


def test_imports_run_down_through_the_rooms():
    ours = [one for one in imports() if one.module.split(".")[0] == "meshdsl"]
    pairs = {one: (room_of_file(one.file), room_of_module(one.module)) for one in ours}
    assert not {room for pair in pairs.values() for room in pair} - set(ROOMS)
    up = [str(one) for one, (a, b) in pairs.items() if ROOMS.index(b) > ROOMS.index(a)]
    apart = [str(one) for one, (a, b) in pairs.items() if b in APART.get(a, ())]
    apart += [str(x) for x in imports() if x.module in APART.get(room_of_file(x.file), ())]
    assert not up and not apart


def test_only_what_may_be_missing_or_takes_long_is_imported_inside_of_a_function():
    inside = [one for one in imports() if one.inside and one.module not in SLOW]
    assert not [str(one) for one in inside if one.module.split(".")[0] not in OPTIONAL]


def test_optional_packages_are_imported_nowhere_else():
    outside = [one for one in imports() if not one.inside]
    assert not [str(one) for one in outside if one.module.split(".")[0] in OPTIONAL]


def test_modules_are_imported_by_name_only_where_packages_export_them():
    names = ("import_module", "__import__")
    found = {file for file, path in files().items() if any(n in path.read_text() for n in names)}
    assert found <= BY_NAME


def test_what_is_imported_later_is_there():
    for name in train.__all__:
        assert callable(getattr(train, name)), name
    for name in md.__all__:
        assert getattr(md, name) is not None, name


def test_what_is_imported_later_is_held_to_its_annotations():
    x = md.tensor(np.zeros((2, 3)), dims(batch=2, length=3))
    assert repr(md.show(x, "x")) == repr(show(x, "x"))
    with pytest.raises(md.MeshDSLError, match="show: `tensor` is a Tensor, not 3"):
        md.show(3)
