"""What flags of several commands mean as settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.family.by_name import SHIPPED, find_family
from meshdsl.user_code import is_named


def model_values(name: str | None) -> dict[str, Any]:
    """The settings that `--model NAME` stands for; none without a name.

    Args:
      name: a size of a shipped family such as `llama3-8b`, the name of a shipped family, or a
        family of the user's, alone or with one of its sizes: `my_model.py:ViT/small`.

    Raises:
      MeshDSLError: there is no model of that name.
    """
    if name is None:
        return {}
    if name in SHIPPED:
        return {"model.family": name}
    place, slash, size = name.rpartition("/")
    for family, text in ((name, ""), (place, size if slash else "")):
        if is_named(family):
            return {"model.family": family} | _size_values(family, text)
    known = {size: family for family, size, _ in sizes()}
    if name.endswith(".py"):
        raise MeshDSLError(
            f"no model `{name}`; name the class in the file as well: {name}:MyFamily"
        )
    if name not in known:
        raise MeshDSLError(f"no model `{name}`{nearest(name, (*known, *SHIPPED))}")
    return {"model.family": known[name]} | _size_values(known[name], name)


def sizes() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Family, name and settings of each size of the shipped families."""
    for family in SHIPPED:
        for name, settings in find_family(family).sizes.items():
            yield family, name, settings


def _size_values(family: str, size: str) -> dict[str, Any]:
    """The settings of a size of `family` by dotted key; none where no size is named.

    A key with a dot is a setting of the run, any other one of the model.
    """
    known = find_family(family).sizes
    if not size:
        return {}
    if size not in known:
        raise MeshDSLError(f"no size `{size}` of {family}{nearest(size, known)}")
    return {key if "." in key else f"model.{key}": value for key, value in known[size].items()}
