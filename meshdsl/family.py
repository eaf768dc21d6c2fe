"""`Family`: what the tools need to know of a model.

A family is a frozen dataclass of settings, with functions that say what a batch is, how the model
begins, and what training makes smaller. With these `meshdsl train`, `explain`, `compile`,
`compare`, `layouts check` and checkpoints do for any model what they do for the shipped ones:

    @dataclass(frozen=True)
    class Classifier(md.Family):
        \"""A linear classifier of vectors.

        Attributes:
          features: numbers in a vector.
          classes: how many there are.
        \"""

        task = "examples"
        features: int = bounded(64, least=1)
        classes: int = bounded(10, least=2)

        def batch(self, rows):
            features = md.Dim("features", self.features)
            return {
                "vector": md.abstract((rows, features), jnp.float32),
                "label": md.abstract((rows,), jnp.int32),
            }

        def init(self, key):
            features, classes = md.Dim("features", self.features), md.Dim("classes", self.classes)
            return {"weight": md.normal(key, (features, classes), ins=features)}

        def loss(self, model, batch, key):
            logits = md.dot(batch["vector"], model["weight"])
            return classification_loss(logits, batch["label"], "classes")

    meshdsl train model.family=classifier.py:Classifier model.features=32
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from meshdsl import user_code
from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.fields import crossed, legal
from meshdsl.ops import component
from meshdsl.tensor import Tensor, is_tensor

SHIPPED = {
    "transformer": "meshdsl.models.transformer:Config",
    "unet": "meshdsl.models.unet:Config",
}
DEFAULT = "transformer"
_TYPES = (str, int, float, bool)  # of settings; and a tuple of texts


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Average:
    """A mean in two parts, `total / count`.

    Over several batches and hosts the parts are summed before they are divided. So the mean is
    exact, however the rows are divided among batches and however the last batch is filled up.

    Attributes:
      total: the sum of what counts, a Tensor without dims.
      count: how much counts, a Tensor without dims.
    """

    total: Tensor
    count: Tensor

    @property
    def value(self) -> Tensor:
        """The mean, a Tensor without dims; 0 where nothing counts."""
        divide = lambda total, count: total / jnp.where(count == 0, 1, count)
        return component.map(divide, self.total, self.count, name="average")


Report = Mapping[str, "Tensor | Average"]
"""What a loss function reports beside the loss, by name."""


class Family:
    """The base of every family of models. A family is a frozen dataclass that inherits from it.

    Each field is a setting with a default, and has an entry under `Attributes:` in the docstring.
    `meshdsl.fields` has `bounded`, `chosen` and `listed`, which say what values a field may have.

    Attributes:
      task: what the model is trained on, unless `data.task` says otherwise: `text`, `images`,
        `pairs` or `examples`.
      sizes: settings by the name of a size, for `--model`.
      dims: dims, or their names, that a layout may speak of although no step meets them.
    """

    task: ClassVar[str] = "text"
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    dims: Any = ()  # an iterable of dims and names; a property where it follows from settings

    def batch(self, rows: Dim) -> dict[str, Tensor]:
        """A batch of so many `rows` in the abstract: its Tensors by name, made by `md.abstract`.

        Each has `rows`, which is called `batch`, as its first dim.
        """
        raise NotImplementedError

    def init(self, key: jax.Array) -> Any:
        """The model before training: a pytree of parameters, drawn with `key`."""
        raise NotImplementedError

    def loss(self, model: Any, batch: dict[str, Tensor], key: Any) -> Any:
        """What training makes smaller.

        Args:
          model: as `init` makes it, in the dtype that the run computes in.
          batch: by name, like `batch(rows)`.
          key: a JAX PRNG key for dropout or noise; None where there is to be none.

        A loss that also takes the keyword `output` gets the setting `precision.output`, and one
        that takes `offload` whether activations wait in the memory of the host. Where a loss takes
        neither, these settings are refused.

        Returns:
          The loss, a Tensor without dims or an `Average`; or a pair of it and a report, a dict of
          such Tensors and Averages.
        """
        raise NotImplementedError

    def evaluate(self, model: Any, batch: dict[str, Tensor]) -> Any:
        """What is measured on held-out rows: by default the loss without dropout and noise.

        It returns what `loss` returns, and may take the same keywords.
        """
        return self.loss(model, batch, None)

    def step_flops(self, rows: int) -> tuple[float, float] | None:
        """FLOPs of the model in a training step of so many rows, forward and backward.

        Returns:
          Two counts: with causal attention counted half, and in full. None: they are counted from
          the recorded step.
        """
        return None

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, each.name)
            if known := each.metadata.get("known"):
                if value not in known:
                    close = nearest(str(value), known)
                    raise MeshDSLError(f"model: no {each.name} {value!r}{close}")
            elif crossed(value, each.metadata):
                raise MeshDSLError(f"model: {each.name} is {legal(each.metadata)}, not {value}")


# -- by name ---------------------------------------------------------------------------------------


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
    kinds = typing.get_type_hints(found)
    for field in dataclasses.fields(found):  # pyright: ignore[reportArgumentType]
        if field.name == "family":
            raise refuse("a setting cannot be called `family`, which names the class")
        kind, wanted = kinds[field.name], "text, a number, true or false, or a tuple of texts"
        if kind not in _TYPES and kind != tuple[str, ...]:
            raise refuse(f"the setting `{field.name}` is to be {wanted}, not {kind}")
        if field.default is field.default_factory is dataclasses.MISSING:
            raise refuse(f"the setting `{field.name}` needs a default")


# -- what the tools ask a family -------------------------------------------------------------------


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
                f"{value}; see md.Family.loss"
            )
    return taken


def keywords(function: Callable, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the `options` that `function` takes as keywords."""
    takes = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in takes}


RESERVED = frozenset({"step", "loss", "learning_rate", "gradient_norm", "parameter_norm"})


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
