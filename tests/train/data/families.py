"""Small families of models, for what their batches are; none of them is trained."""

from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp
import numpy as np

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
class Translator(md.Family):
    """Pairs, of which a decoder predicts the second text.

    Attributes:
      vocab: how many tokens there are.
    """

    task = "pairs"
    vocab: int = 256

    def batch(self, rows):
        source, length = md.Dim("source_length", 6), md.Dim("length", 5)
        texts = {"source": source, "tokens": length, "targets": length}
        return {
            **{name: md.abstract((rows, dim), jnp.int32) for name, dim in texts.items()},
            "source_length": md.abstract((rows,), jnp.int32),
        }


@dataclass(frozen=True)
class Towers(md.Family):
    """Pairs that are compared."""

    task = "pairs"

    def batch(self, rows):
        text = md.abstract((rows, md.Dim("length", 6)), jnp.int32)
        size = md.abstract((rows,), jnp.int32)
        return {
            "source": text,
            "target": text,
            "source_length": size,
            "target_length": size,
        }


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


@dataclass(frozen=True)
class Strange(md.Family):
    """A batch of one's choice.

    Attributes:
      names: of its fields; after a colon their dims, in letters.
    """

    names: tuple[str, ...] = ()
    dtype: str = "int32"

    def batch(self, rows):
        found = {}
        for each in self.names:
            name, _, dims = each.partition(":")
            dims = [md.Dim(letter, 4) for letter in dims]
            found[name] = md.abstract((rows, *dims), jnp.dtype(self.dtype))
        return found


def configured(family, **values):
    """A configuration of a family, in batches of four rows; `__` stands for a dot."""
    values = {key.replace("__", "."): value for key, value in values.items()}
    config = replace(Config(), model=family)
    return override(config, **{"batch": 4, "data.validation": 0.0, **values})


def opened(config):
    """The data of a configuration, and what was reported."""
    task = task_of(config)
    rows = md.Dim("batch", config.batch // config.microbatches)
    return task.open(config, task.fields(config, rows), lambda text: None)


source = partial("data__sources__{}__{}".format, "a")


def whole(batches):
    """Batches as one, field by field."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
