"""`Task`: what a batch is, how it is read, and what is said of a model that was validated on it."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.family.calls import batch_fields
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config
from meshdsl.train.data.cache_entry import Report
from meshdsl.train.data.mixture import Data

Fields = Mapping[str, Tensor]
"""A batch in the abstract: its Tensors by name, the first dim of each that of the rows."""
_DIMS = {0: "the dim of the rows", 1: "the dims of rows and of a sequence"}


class Task:
    """What a batch is, and everything in a run that depends on it; each task is a subclass.

    Attributes:
      name: as in `data.task`.
      unit: what speed is counted in: `token`, `image`, `pair` or `example`.
    """

    name: str
    unit: str

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        """A batch of so many rows in the abstract.

        Raises:
          MeshDSLError: the model's batch has a field that this task does not give, or one of
            another kind.
        """
        raise NotImplementedError

    def units_per_row(self, fields: Fields) -> int:
        """How many units a row has: the tokens of a sequence; 1 where a row is one."""
        return 1

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        """Open what a run reads. What takes long, as to tokenize, is done here.

        Args:
          fields: the batch, as `fields` gives it.

        Raises:
          MeshDSLError: something cannot be read, or does not fit the batch.
        """
        raise NotImplementedError

    def derived(self, measured: Mapping[str, float], data: Data, name: str) -> dict[str, float]:
        """Metrics that follow from those `measured` on the held-out rows of the dataset `name`."""
        return {}

    def words(self, measured: Mapping[str, float], which: str = "") -> str:
        """What is said after a validation, for example `validation loss 0.1234, accuracy 97.1%`.

        Args:
          measured: all metrics, the derived ones too.
          which: what follows `loss`, as ` on web` where there are several datasets.
        """
        return say_validation(measured, which)


# -- what tasks share ------------------------------------------------------------------------------


def known_fields(
    task: str, config: Config, rows: Dim, known: Mapping[str, int | None], needed: str
) -> dict[str, Tensor]:
    """The model's batch in the abstract, of fields that a task gives.

    Args:
      known: the fields that the task gives, each with the number of its dims besides the rows, if
        it has signed whole numbers; None for any dims and numbers.
      needed: the one of them without which it makes no sense.

    Raises:
      MeshDSLError: the batch has another field or one of another kind, or not the one that is
        needed.
    """
    fields = batch_fields(config.model, rows)
    family, gives = type(config.model).__name__, ", ".join(f"`{name}`" for name in known)
    for name in fields:
        if name not in known:
            hint = nearest(name, known, far="")
            raise MeshDSLError(
                f"data.task={task}: the batch of the model {family} has a field `{name}`, and the "
                f"task `{task}` gives {gives}{hint}; the task `examples` gives any field"
            )
    if needed not in fields:
        has = ", ".join(f"`{name}`" for name in fields)
        raise MeshDSLError(
            f"data.task={task}: the batch of the model {family} has {has} and no `{needed}`, which "
            f"is what the task `{task}` gives; another task is chosen by data.task"
        )
    for name, field in fields.items():
        count = known[name]
        if count is not None and (
            len(field.dims) != count + 1 or not jnp.issubdtype(field.dtype, jnp.signedinteger)
        ):
            raise MeshDSLError(
                f"data.task={task}: `{name}` has {_DIMS[count]} and signed whole numbers, as "
                f"int32, and the model's batch has {show_dims(field.dims)} and {field.dtype}"
            )
    return fields


def say_validation(measured: Mapping[str, float], which: str, loss: str = "") -> str:
    """The loss, and every other metric by its name: `validation loss 0.1234, accuracy 97.1%`.

    Args:
      loss: the unit of the loss, with a space before it.
    """
    parts = [f"validation loss{which} {measured['loss']:.4f}{loss}"]
    for name, value in measured.items():
        if name != "loss":
            is_share = name.rpartition("_")[-1] in ("accuracy", "error") and 0 <= value <= 1
            said = f"{value:.1%}" if is_share else f"{value:.4g}"
            parts.append(f"{name.replace('_', ' ')} {said}")
    return ", ".join(parts)
