"""What is published: a source distribution with everything, and a wheel from it that works."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stubs import make

pytest.importorskip("setuptools", minversion="70.1")  # which builds wheels by itself

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "meshdsl"
HERE_ONLY = (".ci/", ".gitignore")  # of the repository itself


def tracked() -> list[str]:
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("there is no git repository to compare with")
    names = found.stdout.split("\0")
    return [name for name in names if (ROOT / name).is_file() and not name.startswith(HERE_ONLY)]


def built(what: str, source: Path, into: Path) -> Path:
    """The sdist or wheel of the project in `source`, built without a network."""
    code = f"from setuptools import build_meta; print(build_meta.build_{what}({str(into)!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert not run.returncode, run.stderr[-2000:]
    return into / run.stdout.split()[-1]


def installed(names: list[str]) -> list[str]:
    """Where a wheel has the Python files among `names`, which are paths in the repository."""
    found = []
    for name in names:
        top, _, _ = name.partition("/")
        if name.endswith(".py") and top in ("layers", "layouts", "models"):
            found.append(f"meshdsl/{name}")
        elif name.endswith(".py") and top.removesuffix(".py").startswith("meshdsl"):
            found.append(name)
    return found


def test_a_wheel_from_the_source_distribution_works_and_nothing_is_missing(tmp_path):
    names, clean, unpacked = tracked(), tmp_path / "clean", tmp_path / "unpacked"
    for name in names:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clean / name)
    with tarfile.open(built("sdist", clean, tmp_path)) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    assert not [name for name in names if not (source / name).is_file()]
    assert not [path for path in source.rglob("*") if path.suffix == ".pyc"]

    # What another build left behind, of a file that is gone since.
    stale = source / "build" / "lib" / "meshdsl" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("raise AssertionError\n")

    site = tmp_path / "site"
    with zipfile.ZipFile(built("wheel", source, tmp_path)) as wheel:
        wheel.extractall(site)
        modules = [name for name in wheel.namelist() if name.endswith(".py")]
    assert sorted(modules) == sorted(installed(names))
    stubs = {path.relative_to(ROOT).as_posix(): text for path, text in make.stubs(PACKAGE).items()}
    assert {name: (site / name).read_text() for name in stubs} == stubs
    assert (site / "meshdsl/py.typed").is_file()
    (information,) = site.glob("*.dist-info")
    metadata = message_from_string((information / "METADATA").read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Author"]
    assert (information / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not re.search(r"!\[.*?\]\((?!https:)", metadata.get_payload()), "relative image"
    environment = os.environ | {"PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    code = "import meshdsl, meshdsl_cli; print(meshdsl.__file__); meshdsl_cli.main(['layouts'])"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert not found.returncode, found.stderr
    assert found.stdout.startswith(str(site))
    assert all(path.stem in found.stdout for path in (ROOT / "layouts").glob("*.toml"))


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("requirements/*.txt")), ids=lambda path: path.stem
)
def test_locked_versions_are_of_all_that_is_required(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    locked = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"] + project["optional-dependencies"]["train"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), text
    assert "meshdsl" not in locked and len(locked) > 30


def test_what_stands_at_the_root_is_imported_by_one_name_only():
    program = """
for module in ("layers", "layers.mlp", "models.unet", "layouts"):
    try:
        __import__(module)
    except ImportError as error:
        print(error)
"""
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    for package in ("layers", "layers", "models", "layouts"):
        _, found, said = said.partition(f"import this package as `meshdsl.{package}`")
        assert found
