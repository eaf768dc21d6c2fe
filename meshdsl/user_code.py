"""Code of the user's that a setting names: `my_package.my_module:ViT` or `my_model.py:ViT`.

A family of models and a function that gives a dataset are named so. A module is imported as Python
imports it; a file is run once, with its folder on the path, so that it can import its neighbours.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from meshdsl.errors import MeshDSLError, nearest

EXAMPLES = "`my_package.my_module:Name` or `my_file.py:Name`"


def is_named(text: str) -> bool:
    """Whether `text` has the form of a name in a module or a file: `module:Name`."""
    place, colon, name = text.rpartition(":")
    return bool(place and colon) and name.isidentifier()


def load(name: str, where: str) -> Any:
    """What is called `Name` in the module or file of `module:Name`.

    Args:
      where: what asks for it, such as `model.family`, for errors.

    Raises:
      MeshDSLError: the text has another form, there is no such file, module or name, or the code
        raises an error while it is imported.
    """
    if not is_named(name):
        raise MeshDSLError(f"{where}={name}: expected {EXAMPLES}")
    place, _, wanted = name.rpartition(":")
    try:
        module = _run_file(Path(place)) if place.endswith(".py") else import_module(place)
    except FileNotFoundError as error:
        if error.filename and Path(error.filename) != Path(place).absolute():
            raise _failed(where, name, error) from error
        raise MeshDSLError(f"{where}={name}: there is no file {place}") from None
    except ModuleNotFoundError as error:
        if not (place == error.name or place.startswith(f"{error.name}.")):
            raise _failed(where, name, error) from error
        raise MeshDSLError(
            f"{where}={name}: there is no module `{error.name}` on Python's path; a file is named "
            f"with its ending, such as my_file.py:{wanted}"
        ) from None
    except MeshDSLError:
        raise
    except Exception as error:
        raise _failed(where, name, error) from error
    try:
        return getattr(module, wanted)
    except AttributeError:
        known = [each for each in vars(module) if not each.startswith("_")]
        raise MeshDSLError(
            f"{where}={name}: {place} has no `{wanted}`{nearest(wanted, known, far='')}"
        ) from None


def absolute(name: str) -> str:
    """`name` with the path of its file from the root, so that it is right from any folder."""
    place, colon, wanted = name.rpartition(":")
    return f"{Path(place).absolute()}{colon}{wanted}" if place.endswith(".py") else name


def name_of(thing: type) -> str:
    """The name by which `load` finds a class of the user's."""
    module = sys.modules.get(thing.__module__)
    by_file = thing.__module__ == "__main__" or thing.__module__.startswith(_PREFIX)
    place = getattr(module, "__file__", None) if by_file else None
    return f"{Path(place).absolute() if place else thing.__module__}:{thing.__qualname__}"


def line_of(error: BaseException) -> str | None:
    """The innermost line of the user's code that an error came through, such as `model.py:12`.

    None where it came through none: code of meshdsl and of installed packages is not the user's.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if not (_is_installed(file) or module.partition(".")[0] in _OURS):
            found = f"{os.path.basename(file)}:{line}"
    return found


def _is_installed(file: str) -> bool:
    """Whether a file of code is Python's own, or one of an installed package."""
    return file.startswith(_PYTHON) or not _PACKAGES.isdisjoint(Path(file).parts)


_PREFIX = "user_file_"  # of the names under which files are known to Python
_OURS = ("meshdsl", "meshdsl_cli")
_PYTHON = ("<", f"{sysconfig.get_path('stdlib')}{os.sep}")
_PACKAGES = {"site-packages", "dist-packages"}


def _run_file(path: Path) -> ModuleType:
    """The module that a file makes; it is run only once in a process."""
    path = path.absolute()
    main = sys.modules.get("__main__")
    if main is not None and getattr(main, "__file__", None) == str(path):
        return main  # the running program names itself
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"{_PREFIX}{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(2, "No such file", str(path))
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _failed(where: str, name: str, error: Exception) -> MeshDSLError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    at = line_of(error) or f"{os.path.basename(last.filename)}:{last.lineno}"
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return MeshDSLError(
        f"{where}={name}: cannot be imported: {type(error).__name__} in {at}: {said}"
    )
