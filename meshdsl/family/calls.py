"""What the tools ask a family for, with one clear error where it answers something else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.family.base import Average, Family
from meshdsl.tensor import Tensor, is_tensor

# Names that a run's own measures have in `metrics.jsonl`.
RESERVED = frozenset(
    "step time loss loss_scale skipped gradient_norm parameter_norm learning_rate bits_per_byte "
    "seconds tokens images pairs examples".split()
)


class _Batch(dict):
    """A batch that says what it has when it is asked for something else."""

    def __missing__(self, name: str):
        raise MeshDSLError(f"the batch has no field `{name}`{nearest(str(name), map(str, self))}")


def batch_fields(family: Family, rows: Dim) -> dict[str, Tensor]:
    """A batch of `family` in the abstract.

    Raises:
      MeshDSLError: it is not a dict of Tensors by name, each with `rows` as its first dim.
    """
    name, fields = type(family).__name__, family.batch(rows)
    if not isinstance(fields, Mapping) or not fields:
        raise MeshDSLError(f"{name}.batch: gives Tensors by name, not {quote(fields)}")
    for key, field in fields.items():
        if not is_tensor(field):
            raise MeshDSLError(
                f"{name}.batch: `{key}` is a Tensor made by md.abstract(dims, dtype), not "
                f"{quote(field)}"
            )
        if field.dims[:1] != (rows,):
            raise MeshDSLError(
                f"{name}.batch: the first dim of `{key}` is that of the rows, {rows}, and its dims "
                f"are {show_dims(field.dims)}"
            )
    return dict(fields)


def first_model(family: Family, key: Any) -> Any:
    """The model before training.

    Raises:
      MeshDSLError: something in it is no parameter.
    """
    model, what = family.init(key), f"{type(family).__name__}.init"
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_tensor)
    for path, leaf in leaves:
        if not (is_tensor(leaf) and leaf.role is not None):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "the model"
            is_array = isinstance(leaf, (jax.Array, np.ndarray))
            found = "a Tensor that is none" if is_tensor(leaf) else quote(leaf)
            raise MeshDSLError(
                f"{what}: a model is made of parameters, and `{name}` is "
                f"{f'an array of shape {leaf.shape}' if is_array else found}; md.parameter makes "
                "one of an array and its dims, and md.normal draws one"
            )
    if not leaves:
        raise MeshDSLError(f"{what}: the model has no parameters")
    return model


def loss_and_report(
    family: Family, model: Any, batch: Mapping[str, Tensor], key: Any, how: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch in training, and the report, with the value of each Average.

    Raises:
      MeshDSLError: the loss function returns something else than a family's does.
    """
    what = f"{type(family).__name__}.loss"
    loss, report = _parts(what, family.loss(model, _Batch(batch), key, **how))
    values = {name: _value(each) for name, each in report.items()}
    return _value(loss), values


def measured(
    family: Family, model: Any, batch: Mapping[str, Tensor], how: Mapping[str, Any]
) -> dict[str, Average]:
    """What is measured on a batch of held-out rows: `loss`, and what is reported beside it."""
    what, fields = f"{type(family).__name__}.evaluate", _Batch(batch)
    if type(family).evaluate is Family.evaluate:
        result = family.loss(model, fields, None, **how)
    else:
        result = family.evaluate(model, fields, **keywords(family.evaluate, how))
    loss, report = _parts(what, result)
    return {name: _average(each) for name, each in {"loss": loss, **report}.items()}


def accepted(family: Family, options: Mapping[str, Any], usual: Mapping[str, Any]) -> dict:
    """Those of the `options` that the loss of `family` takes as keywords.

    Args:
      usual: the values that need no keyword.

    Raises:
      MeshDSLError: an option has another value, and the loss does not take it.
    """
    taken = keywords(family.loss, options)
    for name, value in options.items():
        if value != usual[name] and name not in taken:
            raise MeshDSLError(
                f"{type(family).__name__}: its loss does not take `{name}`, so it cannot be "
                f"{', '.join(value) if isinstance(value, tuple) else value}; see md.Family.loss"
            )
    return taken


def keywords(function: Callable, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the `options` that `function` takes as keywords."""
    takes = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in takes}


def _parts(what: str, result: Any) -> tuple[Tensor | Average, Mapping[str, Any]]:
    """The loss and the report in what a loss function returned."""
    loss: Any = result
    report: Any = {}
    if isinstance(result, tuple) and len(result) == 2:
        loss, report = result
    if not isinstance(report, Mapping) or not all(isinstance(name, str) for name in report):
        raise MeshDSLError(f"{what}: the report is a dict of Tensors by name, not {quote(report)}")
    for name, value in {"the loss": loss, **report}.items():
        said = name if name == "the loss" else f"`{name}` of the report"
        parts = (value.total, value.count) if isinstance(value, Average) else (value,)
        for part in parts:
            if not is_tensor(part):
                raise MeshDSLError(f"{what}: {said} is a Tensor or an Average, not {quote(part)}")
            if part.dims:
                raise MeshDSLError(
                    f"{what}: {said} has the dims {show_dims(part.dims)}, and is to have none; "
                    "take md.mean or md.sum of it"
                )
    if taken := sorted(RESERVED.intersection(report)):
        raise MeshDSLError(f"{what}: the report cannot use the name `{taken[0]}`, which a run uses")
    return loss, report


def _value(measure: Tensor | Average) -> Tensor:
    return measure.value if isinstance(measure, Average) else measure


def _average(measure: Tensor | Average) -> Average:
    """`measure` with a count: a Tensor counts once for each batch."""
    if isinstance(measure, Average):
        return measure
    return Average(measure, Tensor(jnp.ones((), jnp.int32), ()))


def names_in(dims: Iterable[Dim | str]) -> list[Dim | str]:
    """Dims as a list; of a mapping from names to dims, the dims."""
    return list(dims.values()) if isinstance(dims, Mapping) else list(dims)
