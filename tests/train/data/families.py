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
      names: of its fields, each with its dims and its dtype, as `vector features=3 float32`.
    """

    names: tuple[str, ...] = ()

    def batch(self, rows):
        found = {}
        for each in self.names:
            name, *words = each.split()
            dims = [word.split("=") for word in words if "=" in word]
            dims = [md.Dim(dim, int(size)) for dim, size in dims]
            dtype = [word for word in words if "=" not in word] or ["int32"]
            found[name] = md.abstract((rows, *dims), jnp.dtype(dtype[0]))
        return found


@dataclass(frozen=True)
class Translator(Strange):
    """Pairs, of which a decoder predicts the second text.

    Attributes:
      vocab: how many tokens there are.
    """

    task = "pairs"
    names: tuple[str, ...] = ("source s=6", "tokens l=5", "targets l=5", "source_length")
    vocab: int = 256


@dataclass(frozen=True)
class Towers(Strange):
    """Pairs that are compared."""

    task = "pairs"
    names: tuple[str, ...] = ("source l=6", "target l=6", "source_length", "target_length")


@dataclass(frozen=True)
class Own(Strange):
    """Fields of any names."""

    task = "examples"
    names: tuple[str, ...] = ("vector features=3 float32", "id")


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
