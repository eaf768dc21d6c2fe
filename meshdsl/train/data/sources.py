"""The sources of a run's data: which settings of them a task can use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from meshdsl.errors import MeshDSLError, either
from meshdsl.train.config import Config, Source
from meshdsl.train.data.files import File, find_files, nothing_in


def checked_sources(
    task: str, config: Config, *, formats: Sequence[str], functions: bool
) -> list[tuple[str, Source]]:
    """The sources of a task by name, of which there is at least one.

    Args:
      formats: those that the task reads; none where it reads no files.
      functions: whether it takes a function that gives a dataset.

    Raises:
      MeshDSLError: there is no source, or one has settings that the task cannot use.
    """
    if not config.data.sources:
        wanted = "paths" if formats else "dataset"
        raise MeshDSLError(f"data: nothing to read; set data.sources.NAME.{wanted}")
    for name, source in config.data.sources.items():
        with errors_say(f"data.sources.{name}"):
            check_source(task, name, source, formats=formats, functions=functions)
    return list(config.data.sources.items())


def check_source(
    task: str, name: str, source: Source, *, formats: Sequence[str], functions: bool
) -> None:
    """Raise a MeshDSLError if a source has no data, or settings that the task cannot use."""
    where = f"data.sources.{name}"
    if source.dataset and not functions:
        raise MeshDSLError(
            f"the task `{task}` reads files, not the function {source.dataset}; with "
            "data.task=examples a function gives what the model's batch has"
        )
    if source.dataset and (source.paths or source.validation):
        raise MeshDSLError(f"either {where}.dataset or {where}.paths is set, not both")
    if source.paths and not formats:
        raise MeshDSLError(
            f"the task `{task}` reads no files; set {where}.dataset to a function that gives a "
            "dataset"
        )
    if not (source.paths or source.dataset):
        if formats:
            raise MeshDSLError(f"no files; set {where}.paths")
        raise MeshDSLError(f"no dataset; set {where}.dataset")
    if source.paths and source.format not in ("auto", *formats):
        raise MeshDSLError(
            f"the task `{task}` does not read the format {source.format}; it reads "
            f"{either(list(formats)).replace(' or ', ' and ')}"
        )


def files_of(source: Source) -> tuple[list[File], list[File]]:
    """The files of a source: those that are trained on, and those that it brings for validation.

    Raises:
      MeshDSLError: there is nothing to read at the paths of one of them.
    """
    both = find_files(source.paths, source.format), find_files(source.validation, source.format)
    for files, paths in zip(both, (source.paths, source.validation), strict=True):
        if paths and not any(file.size for file in files):
            raise nothing_in(paths)
    return both


@contextmanager
def errors_say(where: str) -> Iterator[None]:
    """Begin errors of the block with the setting at fault, unless they do so already."""
    try:
        yield
    except MeshDSLError as error:
        text = str(error)
        if text.startswith("data."):
            raise
        raise MeshDSLError(f"{where}: {text}") from error.__cause__
