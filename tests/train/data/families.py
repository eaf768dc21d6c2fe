"""Small families of models, for what their batches are; none of them is trained."""

from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp

import meshdsl as md
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.settings import override


@dataclass(frozen=True)
class Classifier(md.Family):
    """Images with labels.

    Attributes:
      height, width, colors: of an image; without colors it has two dims.
      classes: how many there are.
      dtype: of an image.
    """

    task = "images"
    height: int = 4
    width: int = 3
    colors: int = 1
    classes: int = 10
    dtype: str = "float32"

    def batch(self, rows):
        sizes = {"height": self.height, "width": self.width, "color": self.colors}
        dims = [md.Dim(name, size) for name, size in sizes.items() if size]
        image = md.abstract((rows, *dims), jnp.dtype(self.dtype))
        return {"image": image, "label": md.abstract((rows,), jnp.int32)}


@dataclass(frozen=True)
class Denoiser(Classifier):
    """Images alone."""

    def batch(self, rows):
        return {"image": super().batch(rows)["image"]}


@dataclass(frozen=True)
class Strange(md.Family):
    """A batch of one's choice.

    Attributes:
      names: of its fields; after a colon their dims, each a letter and a size.
    """

    names: tuple[str, ...] = ()
    dtype: str = "int32"

    def batch(self, rows):
        found = {}
        for each in self.names:
            name, _, dims = each.partition(":")
            dims = [md.Dim(*each) for each in zip(dims[::2], map(int, dims[1::2]), strict=True)]
            found[name] = md.abstract((rows, *dims), jnp.dtype(self.dtype))
        return found


@dataclass(frozen=True)
class Translator(Strange):
    """Pairs, of which a decoder predicts the second text.

    Attributes:
      vocab: how many tokens there are.
    """

    task = "pairs"
    names: tuple[str, ...] = ("source:s6", "tokens:l5", "targets:l5", "source_length")
    vocab: int = 256


@dataclass(frozen=True)
class Towers(Strange):
    """Pairs that are compared."""

    task = "pairs"
    names: tuple[str, ...] = ("source:l6", "target:l6", "source_length", "target_length")


@dataclass(frozen=True)
class Own(md.Family):
    """Fields of any names.

    Attributes:
      dtype: of the vectors.
    """

    task = "examples"
    dtype: str = "float32"

    def batch(self, rows):
        vector = md.abstract((rows, md.Dim("features", 3)), jnp.dtype(self.dtype))
        return {"vector": vector, "id": md.abstract((rows,), jnp.int32)}


def configured(family, **values):
    """A configuration of a family, in batches of four rows; `__` stands for a dot."""
    values = {key.replace("__", "."): value for key, value in values.items()}
    config = replace(Config(), model=family)
    return override(config, **{"batch": 4, "data.validation": 0.0, **values})


def opened(config):
    """The data of a configuration."""
    task = task_of(config)
    rows = md.Dim("batch", config.batch // config.microbatches)
    return task.open(config, task.fields(config, rows), lambda text: None)


source = partial("data__sources__{}__{}".format, "a")
