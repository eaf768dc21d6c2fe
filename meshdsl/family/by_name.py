"""Families by their names: the shipped ones, and those in modules and files of the user's."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any

from meshdsl import user_code
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.family.base import Family
from meshdsl.fields import tried

SHIPPED = {
    "transformer": "meshdsl.models.transformer:Config",
    "bert": "meshdsl.models.bert:Config",
    "vit": "meshdsl.models.vit:Config",
    "t5": "meshdsl.models.t5:Config",
    "unet": "meshdsl.models.unet:Config",
}
DEFAULT = "transformer"
_TYPES = (str, int, float, bool, tuple[str, ...], tuple[float, ...])  # of settings


def find_family(name: str) -> type[Family]:
    """The family of a name: a shipped one, or `my_package.my_module:ViT` or `my_model.py:ViT`.

    Raises:
      MeshDSLError: there is no such family, or it is not a frozen dataclass of settings that
        inherits from `md.Family` and says what its batch, its model and its loss are.
    """
    if not user_code.is_named(name) and name not in SHIPPED:
        raise MeshDSLError(
            f"model.family={name}: no such family{nearest(name, SHIPPED)} (one of your own is "
            f"named {user_code.EXAMPLES})"
        )
    found = user_code.load(SHIPPED.get(name, name), "model.family")
    _check_family(name, found)
    return found


def family_name(family: Family) -> str:
    """The name by which `find_family` finds the family of these settings."""
    place = f"{type(family).__module__}:{type(family).__qualname__}"
    shipped = {found: name for name, found in SHIPPED.items()}
    return shipped.get(place) or user_code.name_of(type(family))


def _check_family(name: str, found: Any) -> None:
    """Raise a MeshDSLError unless `found` is a family."""

    def refuse(why: str) -> MeshDSLError:
        return MeshDSLError(f"model.family={name}: {why}")

    if not (isinstance(found, type) and issubclass(found, Family)):
        raise refuse("a family is a class that inherits from md.Family")
    params = getattr(found, "__dataclass_params__", None)
    if params is None or "__dataclass_params__" not in vars(found) or not params.frozen:
        raise refuse("a family is a frozen dataclass; write @dataclass(frozen=True) above it")
    for method in ("batch", "init", "loss"):
        if getattr(found, method) is getattr(Family, method):
            raise refuse(f"it has no `{method}`; see md.Family")
    for method in ("batch", "init", "loss", "evaluate", "step_flops"):
        _check_arguments(name, method, inspect.getattr_static(found, method))
    kinds = typing.get_type_hints(found)
    for field in dataclasses.fields(found):  # pyright: ignore[reportArgumentType]
        if field.name == "family":
            raise refuse("a setting cannot be called `family`, which names the class")
        kind = kinds[field.name]
        wanted = "text, a number, true or false, or a tuple of texts or numbers"
        if kind not in _TYPES and not (kind == int | str and tried(field.metadata)):
            raise refuse(f"the setting `{field.name}` is to be {wanted}, not {kind}")
        if field.default is field.default_factory is dataclasses.MISSING:
            raise refuse(f"the setting `{field.name}` needs a default")


def _check_arguments(name: str, method: str, function: Any) -> None:
    """Raise a MeshDSLError unless the method of a family can be called as the tools call it."""
    if not inspect.isfunction(function):  # something else that can be called
        return
    called = tuple(inspect.signature(getattr(Family, method)).parameters)
    try:
        inspect.signature(function).bind(*called)
    except TypeError as error:
        raise MeshDSLError(
            f"model.family={name}: {method}({', '.join(called[1:])}) is how `{method}` is called, "
            f"and yours cannot be: {error}"
        ) from None
