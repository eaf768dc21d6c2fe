"""One run of pyright for all tests here."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from stubs import make
from tests.types import drawn

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CODE = ("meshdsl/layers", "meshdsl/models", "examples")


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """`{file: {line: [(severity, message, rule)]}}`.

    This repository's own code is seen twice: under `stubs/`, where meshdsl has its types, and under
    `blank/`, where it may be anything. What is reported there is no fault of the stubs.
    """
    pytest.importorskip("pyright", reason="pyright is not installed; the `test` extra has it")
    root = tmp_path_factory.mktemp("types")
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return _by_line(_pyright(root))
    with open(
        tmp_path_factory.getbasetemp().parent / "pyright.json", "a+"
    ) as shared:  # by all workers
        fcntl.flock(shared, fcntl.LOCK_EX)
        shared.seek(0)
        text = shared.read()
        if not text:
            text = json.dumps(_pyright(root))
            shared.write(text)
    return _by_line(json.loads(text))


def _pyright(root: Path) -> list:
    copy = lambda source, target: shutil.copytree(
        ROOT / source,
        root / target,
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    for tree in ("stubs", "blank"):
        for source, target in zip(("layers", "models", "examples"), CODE, strict=True):
            copy(source, f"{tree}/{target}")
    copy("meshdsl", "stubs/meshdsl")
    make.write(root / "stubs/meshdsl")
    for module, known in (("__init__", ""), ("dims", "def size(dims: Any) -> int: ...\n")):
        text = f"from typing import Any\n{known}def __getattr__(name: str) -> Any: ...\n"
        (root / f"blank/meshdsl/{module}.pyi").write_text(text)
    for name in ("right.py", "wrong.py"):
        shutil.copy(HERE / name, root / "stubs")
    (root / "stubs/drawn.py").write_text(drawn.SOURCE)
    config = {
        "include": [
            "stubs/*.py",
            "stubs/meshdsl/**/*.pyi",
            *(f"{tree}/{code}" for tree in ("stubs", "blank") for code in CODE),
        ],
        "executionEnvironments": [{"root": "stubs"}, {"root": "blank"}],
        "pythonVersion": "3.11",
        "reportUnusedExpression": False,
    }
    (root / "pyrightconfig.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(root),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    said = json.loads(run.stdout)["generalDiagnostics"]
    for d in said:
        d["file"] = str(Path(d["file"]).resolve().relative_to(root.resolve()))
    return said


def _by_line(said: list) -> dict:
    found = defaultdict(lambda: defaultdict(list))
    for d in said:
        found[d["file"]][d["range"]["start"]["line"] + 1].append(
            (d["severity"], d["message"], d.get("rule", ""))
        )
    return found
