"""Names of the user's code: `module:Name` and `file.py:Name`."""

import re
import sys
import textwrap

import pytest

from meshdsl import user_code
from meshdsl.errors import MeshDSLError


def write(tmp_path, name: str, text: str):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return path


def test_a_file_is_run_once_and_may_import_its_neighbours(tmp_path, capsys):
    write(tmp_path, "neighbour_of_model.py", "SIZE = 3")
    model = write(
        tmp_path, "model.py", "from neighbour_of_model import SIZE\nprint('runs')\nclass A: pass\n"
    )
    found = [user_code.load(f"{model}:{name}", "model.family") for name in ("A", "SIZE", "A")]
    assert found[0] is found[2] and found[1] == 3
    assert capsys.readouterr().out == "runs\n"
    assert user_code.name_of(found[0]) == f"{model}:A"


def test_a_module_is_imported_and_known_by_its_name():
    found = user_code.load("collections.abc:Mapping", "model.family")
    assert found.__name__ == "Mapping" and user_code.name_of(found) == "collections.abc:Mapping"


def test_a_relative_path_can_be_made_right_for_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert user_code.absolute("model.py:A") == f"{tmp_path}/model.py:A"
    assert user_code.absolute("my.module:A") == "my.module:A"


@pytest.mark.parametrize(
    "name, text",
    [
        ("model", "what=model: expected `my_package.my_module:Name` or `my_file.py:Name`"),
        ("absent.py:A", "what=absent.py:A: there is no file absent.py"),
        ("no_such_module:A", "there is no module `no_such_module` on Python's path; a file is"),
        ("json:lodas", "what=json:lodas: json has no `lodas`; did you mean `loads`?"),
        ("broken.py:A", "cannot be imported: ZeroDivisionError in broken.py:2: division by zero"),
        ("unclosed.py:A", "cannot be imported: SyntaxError in unclosed.py:1: '(' was never closed"),
        ("fields.py:A", "cannot be imported: TypeError in fields.py:3: non-default argument 'b'"),
        ("needs.py:A", "cannot be imported: ModuleNotFoundError in needs.py:1: No module named"),
        ("reads.py:A", "cannot be imported: FileNotFoundError in reads.py:1"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_clear_error(tmp_path, monkeypatch, name, text):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "broken.py", "x = 1\ny = x / 0\n")
    write(tmp_path, "unclosed.py", "x = (\n")
    write(tmp_path, "needs.py", "import no_such_package\n")
    write(
        tmp_path,
        "fields.py",
        "from dataclasses import dataclass\n\n@dataclass\nclass A:\n  a: int = 1\n  b: int\n",
    )
    write(tmp_path, "reads.py", "text = open('no_such_file').read()\n")
    with pytest.raises(MeshDSLError, match=re.escape(text)):
        user_code.load(name, "what")


def test_an_error_is_traced_to_the_innermost_line_of_the_users_code(tmp_path):
    text = "import json\n\ndef read():\n    return json.loads('{')\n"
    read = user_code.load(f"{write(tmp_path, 'reads_json.py', text)}:read", "what")
    with pytest.raises(ValueError, match="Expecting") as caught:
        read()
    assert user_code.line_of(caught.value) == "reads_json.py:4"
    assert user_code.line_of(ValueError()) is None


def test_a_file_that_failed_is_run_again_once_it_is_mended(tmp_path):
    model = write(tmp_path, "mended.py", "A = 1 / 0\n")
    with pytest.raises(MeshDSLError, match="ZeroDivisionError"):
        user_code.load(f"{model}:A", "what")
    model.write_text("A = 1\n")
    assert user_code.load(f"{model}:A", "what") == 1
    assert not any(name.startswith("mended") for name in sys.modules)
