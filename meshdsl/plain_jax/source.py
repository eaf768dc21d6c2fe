"""Lines of the user's code that an equation of a jaxpr comes from."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from typing import Any

from meshdsl.program.recorder import Lines

_LIBRARIES = ("jax", "jaxlib", "flax", "haiku", "equinox", "optax", "einops", "numpy")
_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST = 2  # a line says little without the one that calls it


def lines_of(source_info: Any) -> Lines:
    """File and line of the innermost frames of the user's code, the innermost first.

    What calls `from_jax` is not part of the model, and is left out.
    """
    traceback = getattr(source_info, "traceback", None)
    found = []
    for frame in traceback.frames if traceback is not None else ():
        kind = _kind_of(frame.file_name)
        if kind == "here" or len(found) == _MOST:
            break
        if kind == "user":
            found.append((frame.file_name, frame.line_num))
    return tuple(found)


def is_library(closed: Any) -> bool:
    """Whether a call is of a function that a library has: `jnp.where`, `jax.nn.silu`.

    JAX traces such a function once, so that the lines of its equations are those of its first call.
    """
    debug = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    place = str(getattr(debug, "func_src_info", "")).rpartition(" at ")[2]
    return _kind_of(place.rpartition(":")[0]) != "user" if place else False


def shown(lines: Lines) -> str:
    """`model.py:31`, of the innermost line; a question mark if there is none."""
    return f"{os.path.basename(lines[0][0])}:{lines[0][1]}" if lines else "?"


@cache
def _kind_of(file: str) -> str:
    """Whose code a file is: the `user`'s, a `library`'s, or what stands `here`."""
    if file.startswith(_HERE):
        return "here"
    parts = file.replace(os.sep, "/").split("/")
    for packages in ("site-packages", "dist-packages"):
        if packages in parts:
            top = parts[parts.index(packages) + 1 :][:1]
            return "library" if top and top[0] in _LIBRARIES else "user"
    if file.startswith((sysconfig.get_paths()["stdlib"], "<")):
        return "library"
    return "user"
