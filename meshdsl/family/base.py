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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.fields import crossed, legal
from meshdsl.ops import component
from meshdsl.tensor import Tensor


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
        that takes `offload` the names of the save points that wait in the memory of the host, as
        `md.checkpoint` takes them. Where a loss takes neither, these settings are refused.

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
