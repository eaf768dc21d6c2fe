"""The task `images`: images, each with the number of its class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config, Source
from meshdsl.train.data.batches import Numbered
from meshdsl.train.data.cache_entry import Report
from meshdsl.train.data.examples import open_function
from meshdsl.train.data.fields import ARRAY, collate_fields, field_dims, fitted_image
from meshdsl.train.data.files import checked_sources, errors_say, find_files
from meshdsl.train.data.image_sets import (
    Images,
    array_images,
    folder_images,
    function_images,
    parquet_images,
)
from meshdsl.train.data.mixture import Data, Part, part_of
from meshdsl.train.data.task import Fields, Task, known_fields

FORMATS = ("folders", "arrays", "parquet")
NO_LABEL = -1  # in rows that fill up a batch


class ImagesTask(Task):
    """Images with labels: `image` (batch, and the dims of an image), `label` (batch).

    A model may ask for `image` alone.
    """

    name, unit = "images", "image"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        return known_fields(self.name, config, rows, {"image": None, "label": 0}, "image")

    def open(self, config: Config, fields: Fields, report: Report) -> Data:
        labeled = "label" in fields
        opened = [
            _opened(name, source, config, labeled, report)
            for name, source in checked_sources(self.name, config, formats=FORMATS, functions=True)
        ]
        names = _class_names(opened)
        classes = getattr(config.model, "classes", None) if labeled else None
        if classes is not None and len(names) > classes:
            raise MeshDSLError(
                f"data: the images are of {len(names):,} classes, more than model.classes={classes}"
                f"; set model.classes={len(names)}"
            )
        parts = [_part(each, config, fields, names, classes) for each in opened]
        sizes = " x ".join(str(dim.size) for dim in field_dims(fields["image"]))
        of = f" in {len(names):,} classes" if names else ""
        digest = hashlib.sha256(repr(names).encode()).hexdigest()[:12]
        # Code of the user's may not be made for several threads.
        functions = any(each.source.dataset for each in opened)
        return Data(
            config,
            f"data, images of {sizes}{of}",
            parts,
            collate_fields(fields, {"label": NO_LABEL}),
            fills=labeled,
            threads=1 if functions else min(16, os.cpu_count() or 1),
            classes=f"{len(names):,} ({digest})" if names else "",
        )


def _image_rows(
    images: Images, fields: Fields, numbers: Mapping[str, int], classes: int | None
) -> Numbered:
    """The rows of a batch: images in the size and dtype of the batch, and numbers of classes.

    Args:
      numbers: of the classes by their names; empty where labels are numbers.
      classes: every label is less than this; None where it is not known.

    Raises:
      MeshDSLError: the first image does not fit, or any label that is known.
    """

    def number_of(label: object, where: str) -> int:
        """The number of the class that a label names, or is."""
        if isinstance(label, str):
            if label not in numbers:
                raise MeshDSLError(f"{where}: no images of the class `{label}` are trained on")
            return numbers[label]
        array = np.asarray(label)
        if array.shape != () or array.dtype.kind not in "iu":
            found = f"{list(array.shape)} {array.dtype}"
            raise MeshDSLError(f"{where}: a label is the number of a class, not {found}")
        if array < 0:
            raise MeshDSLError(f"{where}: its label is less than 0")
        if classes is not None and array >= classes:
            raise MeshDSLError(f"{where}: its label is not less than model.classes={classes}")
        return int(array)

    def read(number: int) -> dict[str, np.ndarray]:
        where = images.place(number)
        image, label = images.read(number)
        row = {"image": fitted_image(image, fields["image"], where)}
        if "label" in fields:
            label = label if labels is None else labels[number]
            row["label"] = np.asarray(number_of(label, where))
        return row

    labels = images.labels
    for label in () if labels is None else np.unique(labels):
        number_of(label, images.place(int(np.argmax(labels == label))))
    read(0)
    return Numbered(len(images.hashes), read)


class _Opened(NamedTuple):
    """A source whose images can be read; `held_out` are those that it brings for validation."""

    name: str
    source: Source
    train: Images
    held_out: Images | None


def _opened(name: str, source: Source, config: Config, labeled: bool, report: Report) -> _Opened:
    field, label = source.field or "image", (source.label or "label") if labeled else None
    with errors_say(f"data.sources.{name}"):
        if source.dataset:
            train, own = open_function(source.dataset, f"data.sources.{name}.dataset")
            held_out = None if own is None else function_images(own, field, label)
            return _Opened(name, source, function_images(train, field, label), held_out)

        def read(paths: Sequence[str]) -> Images:
            kind = _format_of(paths, field) if source.format == "auto" else source.format
            if kind == "folders":
                return folder_images(paths, labeled)
            if kind == "arrays":
                return array_images(paths, field, label)
            return parquet_images(paths, field, label, config, report)

        train = read(source.paths)
        return _Opened(name, source, train, read(source.validation) if source.validation else None)


def _format_of(paths: Sequence[str], field: str) -> str:
    """The format of the files at some paths, which goes by what is there."""
    found = {_format_at(Path(path), field) for path in paths}
    if len(found) > 1:
        raise MeshDSLError(f"{' and '.join(sorted(found))} in one dataset; make it two")
    return found.pop()


def _format_at(path: Path, field: str) -> str:
    if not path.exists():
        raise MeshDSLError(f"no file or folder `{path}`")
    if path.is_file():
        known = {".parquet": "parquet", ".npz": "arrays"}
        if path.suffix not in known:
            raise MeshDSLError(
                f"`{path}`: images are read from a folder with a folder for each class, from "
                ".npz and from .parquet; or say by `format` which of these it is"
            )
        return known[path.suffix]
    if (path / f"{field}{ARRAY}").is_file() or find_files([str(path)], "arrays", suffix=".npz"):
        return "arrays"
    return "parquet" if find_files([str(path)], "parquet", suffix=".parquet") else "folders"


def _class_names(opened: Sequence[_Opened]) -> list[str]:
    """The names of all classes that are trained on, in their order; none where labels are numbers.

    Names that are whole numbers come in the order of the numbers.
    """
    named, numbered = [], []
    for each in opened:
        has_names = each.train.labels is not None and each.train.labels.dtype.kind == "U"
        (named if has_names else numbered).append(each)
    if named and numbered:
        raise MeshDSLError(
            f"data: the labels of `{named[0].name}` are names, and those of `{numbered[0].name}` "
            "are numbers; give both in one of these ways"
        )
    names = {str(label) for each in named for label in np.unique(each.train.labels)}
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _part(
    opened: _Opened, config: Config, fields: Fields, names: Sequence[str], classes: int | None
) -> Part:
    numbers = {name: i for i, name in enumerate(names)}
    with errors_say(f"data.sources.{opened.name}"):
        make = lambda images: _image_rows(images, fields, numbers, classes)
        rows = make(opened.train)
        own = None if opened.held_out is None else make(opened.held_out)
    named, images = (opened.name, opened.source), opened.train
    return part_of(named, config, rows, own, images.hashes, "images", images.digest())
