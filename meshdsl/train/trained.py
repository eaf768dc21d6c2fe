"""Which parameters of a model are trained, by patterns of their names.

A pattern is a name in which `*` stands for any characters, dots too, and `?` for one, as
`blocks.*.weight`. Of several patterns the last one that matches a name counts, and one that begins
with `!` takes names out again: `frozen = ["*", "!head.*"]` trains the head alone.

A tree of some of the parameters is the model with None in the place of the others. So JAX and optax
see only what is there, under the names that it has in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.tensor import Tensor, is_tensor

_SHOWN = 4  # names in an error


def parameters_by_name(model: Any) -> dict[str, Tensor]:
    """The parameters of a model by their names, such as `blocks.layer.mlp.up.weight`."""
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_tensor)
    return {name_at(path): leaf for path, leaf in leaves}


def name_at(path: tuple) -> str:
    """The name of the parameter at a path of a tree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def matched(patterns: Sequence[str], names: Iterable[str], setting: str) -> frozenset[str]:
    """The names that the patterns match.

    Args:
      setting: what holds the patterns, for the error.

    Raises:
      MeshDSLError: a pattern matches no name.
    """
    names = list(names)
    found: dict[str, bool] = {}
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        matching = [name for name in names if fnmatchcase(name, wanted)]
        if not matching:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
            hint = nearest(wanted, names, f"; the model has {shown}{more}")
            raise MeshDSLError(f"{setting}: no parameter is called `{wanted}`{hint}")
        found |= dict.fromkeys(matching, not pattern.startswith("!"))
    return frozenset(name for name, is_in in found.items() if is_in)


def without(model: Any, names: Collection[str]) -> Any:
    """`model` with None in the place of the parameters that are called so."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if name_at(path) in names else leaf, model, is_leaf=is_tensor
    )


def only(model: Any, names: Collection[str]) -> Any:
    """`model` with None in the place of all parameters but those that are called so."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if name_at(path) in names else None, model, is_leaf=is_tensor
    )


def together(first: Any, second: Any) -> Any:
    """The model of two trees, of which each has the parameters that the other lacks."""
    return jax.tree.map(
        lambda a, b: b if a is None else a,
        first,
        second,
        is_leaf=lambda x: x is None or is_tensor(x),
    )
