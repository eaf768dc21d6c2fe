"""Names that the user gives: patterns of dims by regular expressions over paths of arguments.

    names={"wte": "vocab d_model", ".*c_attn/kernel": "_ (qkv heads head_dim)", "tokens": "batch _"}

A pattern has a word for each position of the shape: a name, `_` for a dim that is to be inferred,
or names in parentheses for a dim that is made of factors, major first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from meshdsl.errors import MeshDSLError, nearest, quote

Pattern = tuple[str, ...] | None
Spec = tuple[Pattern, ...]


def parsed(text: Any, what: str) -> Spec:
    """`"_ (qkv heads head_dim)"` as `(None, ("qkv", "heads", "head_dim"))`.

    Raises:
      MeshDSLError: it is no such pattern.
    """
    wrong = MeshDSLError(
        f'from_jax: names of {what} are a pattern such as "vocab d_model" or '
        f'"_ (heads head_dim)", not {quote(text)}'
    )
    if not isinstance(text, str):
        raise wrong
    spec: list[Pattern] = []
    group: list[str] | None = None
    for word in re.findall(r"[()]|[^\s()]+", text):
        if word == "(" and group is None:
            group = []
        elif word == ")" and group:
            spec.append(tuple(group))
            group = None
        elif word == "_" and group is None:
            spec.append(None)
        elif word.isidentifier() and word != "_":
            if group is None:
                spec.append((word,))
            else:
                group.append(word)
        else:
            raise wrong
    if group is not None:
        raise wrong
    return tuple(spec)


def paths_of(args: Sequence[Any], arguments: Sequence[str], is_leaf=None) -> list[tuple[str, Any]]:
    """The leaves of all arguments with their paths: `params/h/0/attn/c_attn/w`."""
    found = []
    for name, arg in zip(arguments, args, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg, is_leaf=is_leaf)[0]:
            inner = jax.tree_util.keystr(path, simple=True, separator="/")
            found.append((f"{name}/{inner}" if inner else name, leaf))
    return found


def boxed_names(args: Sequence[Any], arguments: Sequence[str]) -> dict[str, Spec]:
    """The names that a library keeps beside parameters, by their paths.

    These are `nn.with_partitioning` and `nn.with_logical_partitioning` of flax linen,
    `nnx.with_partitioning` of flax nnx, and the axes of haliax.
    """
    found: dict[str, Spec] = {}
    for path, box in paths_of(args, arguments, is_leaf=lambda x: _kept(x) is not None):
        kept = _kept(box)
        if kept is not None:
            spec = tuple((n,) if isinstance(n, str) and n.isidentifier() else None for n in kept)
            found.update({inner: spec for inner, _ in paths_of([box], [path])})
    return found


def _kept(x: Any) -> tuple | None:
    """The names that `x` keeps for the dims of the array in it."""
    if isinstance(x, jax.Array):
        return None
    if callable(getattr(x, "get_metadata", None)):  # of nnx
        metadata = x.get_metadata()
        kept = metadata.get("out_sharding", metadata.get("sharding_names"))
        return tuple(kept) if isinstance(kept, (tuple, list)) else None
    if hasattr(x, "value") and isinstance(getattr(x, "names", None), tuple):  # of linen
        return x.names
    axes = getattr(x, "axes", None)  # of haliax
    if hasattr(x, "array") and isinstance(axes, tuple):
        return tuple(getattr(axis, "name", None) for axis in axes)
    return None


def agreed(
    boxed: Mapping[str, Spec], paths: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Spec], list[str]]:
    """Those of the `boxed` names that have one size and stand once in a tensor; and remarks.

    The others name no dims but, say, axes of a mesh.
    """
    sizes: dict[str, set[int]] = {}
    for path, shape in zip(paths, shapes, strict=True):
        spec = boxed.get(path)
        if spec is not None and len(spec) == len(shape):
            for pattern, size in zip(spec, shape, strict=True):
                for name in pattern or ():
                    sizes.setdefault(name, set()).add(size)
    twice = {p for spec in boxed.values() for p in spec if p and spec.count(p) > 1}
    wrong = {n for n, found in sizes.items() if len(found) > 1 or (n,) in twice}
    kept = {
        path: tuple(p if p and p[0] not in wrong else None for p in spec)
        for path, spec in boxed.items()
    }
    remarks = [
        f"`{name}`, which is kept beside parameters, stands for several dims, and names none"
        for name in sorted(wrong)
    ]
    return kept, remarks


def specs_of(
    names: Mapping[str, Any],
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    first: str,
    boxed: Mapping[str, Spec],
) -> list[Spec | None]:
    """For each path the names of its dims; None where no pattern is for it.

    Args:
      names: patterns by regular expressions, of which the first that matches holds.
      first: the name of the first argument, which paths in `names` may leave out.
      boxed: what `boxed_names` has found, for paths that no expression matches.

    Raises:
      MeshDSLError: an expression matches nothing, or a pattern has more or fewer dims.
    """
    used, found = set(), []
    for path, shape in zip(paths, shapes, strict=True):
        short = path.removeprefix(f"{first}/")
        expression = next((n for n in names if _matches(n, path) or _matches(n, short)), None)
        if expression is None:
            spec = boxed.get(path)
            if spec is None:
                found.append(None)
                continue
        else:
            used.update(n for n in names if _matches(n, path) or _matches(n, short))
            spec = parsed(names[expression], f"`{expression}`")
        if len(spec) != len(shape):
            given = spec if expression is None else names[expression]
            raise MeshDSLError(
                f"from_jax: `{path}` has the shape {shape}, and its names `{given}` "
                f"are of {len(spec)} dims"
            )
        found.append(spec)
    for expression in names:
        if expression not in used:
            known = {p.removeprefix(f"{first}/") for p in paths}
            raise MeshDSLError(
                f"from_jax: no argument matches `{expression}`{nearest(expression, known)}"
            )
    return found


def _matches(expression: str, path: str) -> bool:
    try:
        return re.fullmatch(expression, path) is not None
    except re.error as error:
        raise MeshDSLError(f"from_jax: `{expression}` is no regular expression: {error}") from None
