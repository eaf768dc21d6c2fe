"""The certificate of a proof: a small file that says what was proved, and of which program.

`meshdsl train` keeps one beside the checkpoints of a run, and `meshdsl verify --write FILE` writes
one. It holds as long as nothing has changed that the program is made from. That is found by
comparing texts and digests, without tracing the program again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.parsing import parse_json
from meshdsl.proof.verified import Verified
from meshdsl.versions import changes, versions

_FORMAT = "meshdsl certificate 1"
_OWN = ("meshdsl", "meshdsl.layers", "meshdsl.models")


@dataclass(frozen=True)
class Certificate:
    """What is known of one program.

    Attributes:
      made_from: all that it is made from, as texts by name: the settings, the rules of the layout,
        the sizes of the mesh, and the platform, which decides what runs as a kernel.
      versions: of Python and of the packages that compute.
      code: a digest of meshdsl, and one of each other file that calls an op.
      proof: what is proved.
    """

    made_from: Mapping[str, str]
    versions: Mapping[str, str]
    code: Mapping[str, str]
    proof: Verified

    @classmethod
    def of(cls, made_from: Mapping[str, str], proof: Verified) -> Certificate:
        """That of a proof that has just been found."""
        return cls(dict(made_from), versions(), _code(proof), proof)

    def changes(self, made_from: Mapping[str, str]) -> list[str]:
        """What has changed since, such as `batch 32 -> 64`; empty if it holds.

        Args:
          made_from: all that the program is made from now.
        """
        code = _code(self.proof)
        return [
            *changes(dict(self.made_from), dict(made_from)),
            *changes(dict(self.versions), versions()),
            *(f"the code of {name}" for name in code if code[name] != self.code.get(name)),
        ]

    @property
    def text(self) -> str:
        """What a file of it has."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write it to a file.

        Raises:
          MeshDSLError: the file cannot be written.
        """
        with system_errors_say(path):
            path.write_text(self.text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """The certificate in a file.

        Raises:
          MeshDSLError: there is none.
        """
        with system_errors_say(path):
            text = path.read_bytes()
        try:
            found = parse_json(text)
            if found.pop("format") == _FORMAT:
                return cls(**found | {"proof": Verified.from_dict(found["proof"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        raise MeshDSLError(f"{path}: is no certificate that this version of meshdsl wrote")


def _code(proof: Verified) -> dict[str, str]:
    """The digests of meshdsl, and of all other files that the proof names."""
    files = [file for file in map(Path, proof.files) if not _own_folders() & {*file.parents}]
    return {"meshdsl": _own_code(), **{str(file): _digest(file) for file in files}}


@cache
def _own_folders() -> set[Path]:
    specs = [spec for name in _OWN if (spec := find_spec(name))]
    return {Path(folder) for s in specs for folder in s.submodule_search_locations or ()}


@cache
def _own_code() -> str:
    found = hashlib.sha256()
    for file in sorted(file for folder in _own_folders() for file in folder.rglob("*.py")):
        found.update(_digest(file).encode())
    return found.hexdigest()


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
