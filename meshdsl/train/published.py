"""A folder of Hugging Face as what a run begins with: its settings, and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.models.published import family_of
from meshdsl.schema import read_object
from meshdsl.train.checkpoints.hugging_face import own_names
from meshdsl.train.checkpoints.parameters import is_published
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.config import Config


def published_settings(folder: Path) -> dict[str, Any]:
    """The settings of a model in a folder of Hugging Face, by their keys.

    These are the settings of the model, and the tokenizer where the folder has one.

    Raises:
      MeshDSLError: `config.json` cannot be read, or is of a model that is not known here.
    """
    said = read_object(folder / "config.json")
    names = own_names(TensorFiles(folder))
    try:
        family, found = family_of(said, names)
    except MeshDSLError as error:
        raise MeshDSLError(f"{folder}: {error}") from None
    values: dict[str, Any] = {"model.family": family}
    values |= {f"model.{name}": value for name, value in found.items()}
    if (folder / "tokenizer.json").is_file():
        values["data.tokenizer"] = str(folder / "tokenizer.json")
    return values


def other_settings(config: Config) -> Iterator[str]:
    """A line for each setting of the model that differs from the folder that the run begins with.

    What sets only how long a text may be is passed over.
    """
    folder = Path(config.warm_start)
    if not (config.warm_start and is_published(folder)):
        return
    for key, there in published_settings(folder).items():
        name = key.removeprefix("model.")
        here = getattr(config.model, name, there)
        if name not in ("family", "length", key) and here != there:
            yield f"  config.json says {name}={there}, and the run has {here}"
