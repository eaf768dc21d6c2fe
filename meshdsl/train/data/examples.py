"""The task `examples`: dicts of arrays, of any fields, from a function of the user's."""

from __future__ import annotations

import numpy as np

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.family.calls import batch_fields
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.field_arrays import collate_fields, fitted
from meshdsl.train.data.held_out import hashes_of_numbers
from meshdsl.train.data.mixture import Data, Part, part_of
from meshdsl.train.data.python_dataset import PythonRows, open_function
from meshdsl.train.data.sources import checked_sources
from meshdsl.train.data.task import Fields, Report, Task


class ExamplesTask(Task):
    """Dicts of arrays with the fields of the model's batch, whatever these are."""

    name, unit = "examples", "example"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        return batch_fields(config.model, rows)

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        parts = [
            _part(name, source, config, fields)
            for name, source in checked_sources(self.name, config, formats=(), functions=True)
        ]
        names = ", ".join(f"`{name}`" for name in fields)
        title = f"data, examples of {names}"
        return Data(config, title, parts, collate_fields(fields, {}), fills=False)


class FittedRows:
    """The examples of a user's dataset, each with the fields of a batch and no others."""

    def __init__(self, examples: PythonRows, fields: Fields):
        self._examples, self._fields = examples, fields

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        example, what = self._examples[number], self._examples.what
        row = {}
        for name, field in self._fields.items():
            if name not in example:
                has = ", ".join(f"`{each}`" for each in example) or "nothing"
                close = nearest(name, map(str, example))
                raise MeshDSLError(
                    f"{what}: example {number:,} has {has} and no field `{name}`, which is in the "
                    f"model's batch{close if 'did you mean' in close else ''}"
                )
            row[name] = fitted(example[name], name, field, f"{what}: example {number:,}")
        return row


def _part(name: str, source: Source, config: Config, fields: Fields) -> Part:
    examples, own = open_function(source.dataset, f"data.sources.{name}.dataset")
    rows, held_out = FittedRows(examples, fields), None if own is None else FittedRows(own, fields)
    hashes = hashes_of_numbers(len(examples))
    part = part_of((name, source), config, rows, held_out, hashes, "examples", examples.digest())
    for some in (part.train, part.held_out):
        if some is not None and len(some):
            some[0]  # an example that does not fit comes up here
    return part
