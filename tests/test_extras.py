"""What works without the packages of the extras, and what is said where one of them is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.extras import EXTRAS, check_extra, extra
from tests.test_imports import files

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Begins a program in which the packages of the extras cannot be imported. Flax imports rich itself.
HIDE = f"""
import sys

HIDDEN = {[package for packages in EXTRAS.values() for package in packages]}

class Hide:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in HIDDEN and not (package == "rich" and "flax" in importers()):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def importers():
    frame = sys._getframe()
    while frame := frame.f_back:
        yield frame.f_globals.get("__name__", "").partition(".")[0]

sys.meta_path.insert(0, Hide())
"""


MODULES = [
    "meshdsl." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for file in files()
    if file != "__init__.py"
]
NEEDS = {
    "train --steps 2 --out run": "grain",
    "train --print-config": "tomli_w",
    "tokenizer train a.txt --vocab 300 --out b.json": "tokenizers",
}
ONE = "model.remat=full model.loss_chunk=0"  # `auto` traces a step for each choice
WORKS = (
    "layouts",
    "models",
    f"explain --layout fsdp --target v5e:2x2 --html step.html {ONE}",
    f"compare data fsdp --target v5e:2x2 {ONE}",
    "layouts check data --model llama --devices 4",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder, and of commands that ran there the code, what it printed and what it reported."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "a.txt").write_text("some text")
    program = f"""
from meshdsl_cli import main
for words in {[command.split() for command in (*NEEDS, *WORKS)]}:
    code = main(words)
    print(f"\\n== {{code}}")
    print("==", file=sys.stderr)
import meshdsl, {", ".join(MODULES)}
"""
    command = [sys.executable, "-c", HIDE + program]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not found.returncode, found.stderr[-2000:]  # all modules are imported too
    said = re.findall(r"(.*?)\n== (\d)\n", found.stdout, re.DOTALL)
    each = zip((*NEEDS, *WORKS), said, found.stderr.split("==\n"), strict=False)
    return folder, {words: (int(code), out, err) for words, (out, code), err in each}


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[><=]", each)[0] for each in requirements}


def test_the_project_and_the_code_name_the_same_packages():
    distributions = {"PIL": "pillow", "orbax": "orbax-checkpoint", "tomli_w": "tomli-w"}
    distributions["mlflow"] = "mlflow-skinny"  # the part of it that sends
    for name, modules in EXTRAS.items():
        named = {distributions.get(module, module) for module in modules}
        assert named == packages(PROJECT["optional-dependencies"][name])
    assert packages(PROJECT["dependencies"]) == {"jax", "flax", "optax", "einops", "numpy"}


@pytest.mark.parametrize("command", WORKS)
def test_a_step_is_explained_and_compared_and_a_layout_is_checked_without_extras(ran, command):
    code, said, reported = ran[1][command]
    assert code == 0 and said.strip(), reported


@pytest.mark.parametrize("command", NEEDS)
def test_what_needs_an_extra_says_so_in_one_line_and_writes_nothing(ran, command):
    folder, found = ran
    brings = f'needs {NEEDS[command]}, which is not installed; pip install "meshdsl[train]" brings'
    says = f"meshdsl {command.split()[0]}: this {brings} it\n"
    code, said, reported = found[command]
    assert (code, said.strip(), reported) == (2, "", says)
    assert {path.name for path in folder.iterdir()} == {"a.txt", "step.html"}


@pytest.mark.parametrize("package", EXTRAS["train"])
def test_each_missing_package_of_training_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    says = f'this needs {package}, which is not installed; pip install "meshdsl[train]" brings it'
    with pytest.raises(MeshDSLError, match=re.escape(says)):
        check_extra("train")
    with pytest.raises(MeshDSLError, match=re.escape(says)), extra("train"):
        __import__(package)


def test_an_installed_package_that_fails_is_no_missing_one(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise ImportError('it needs another NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="another NumPy"), extra("train"):
        __import__("broken")
